package dpr_test

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
)

// A modelFlow is what the model knows of a connection: as much as the documents say of
// the connection table, and no more.
type modelFlow struct {
	state   string
	host    string // that serves it
	isn     uint32
	next    uint32 // expected of the client
	counted bool
	denied  bool
	late    bool
	leapt   bool
	seen    time.Time // its last packet
}

// modelLimits are the idle times of the documents. A flow whose peer answers for it
// lives on, so the model knows a range only where questions are asked.
var modelLimits = map[string]time.Duration{
	"embryonic": time.Minute, "unconfirmed": time.Minute, "established": 2*time.Hour + 5*time.Minute,
	"closing": 4 * time.Minute, "closed": 10 * time.Second, "handover": 10 * time.Second,
}

// A model is the connection table as one would explain it: a map of flows.
type model struct {
	bench *bench
	flows map[netip.AddrPort]*modelFlow
	hosts []string // that are members
}

// end and begin move a flow out of and into its host's count.
func (f *modelFlow) begin() { f.counted = true }
func (f *modelFlow) end()   { f.counted = false }

func within(a, b uint32, window int32) bool { d := int32(a - b); return -window <= d && d <= window }

// packet says what a client's packet does and where it goes: to a host, "local", or
// "reset".
func (m *model) packet(from netip.AddrPort, flags dprtest.Flags, seq uint32, payload int, choice string, now time.Time) string {
	f := m.flows[from]
	opens := flags&(syn|ack) == syn
	if f != nil && f.host != "local" && !slices.Contains(m.hosts, f.host) {
		delete(m.flows, from)
		if f = nil; !opens {
			if flags&rst != 0 {
				return "local"
			}
			return "reset"
		}
	}
	if f != nil && opens && seq != f.isn && (f.state == "closing" || f.state == "closed" || f.state == "handover") {
		f = nil
	}
	if f == nil {
		if !opens {
			return "local"
		}
		if !slices.Contains(m.hosts, choice) {
			m.flows[from] = &modelFlow{state: "handover", host: "local", isn: seq, seen: now}
			return "local"
		}
		f = &modelFlow{state: "embryonic", host: choice, isn: seq, next: seq + 1 + uint32(payload), seen: now}
		if flags&dprtest.FIN != 0 {
			f.next++
		}
		f.begin()
		m.flows[from] = f
		return f.host
	}
	if f.state != "handover" {
		f.follow(flags, seq, payload)
	}
	f.seen = now
	return f.host
}

// follow moves the state along, as the section on the flow table says.
func (f *modelFlow) follow(flags dprtest.Flags, seq uint32, payload int) {
	open := f.state == "established" || f.state == "unconfirmed"
	switch {
	case flags&(syn|ack) == syn:
		if f.state == "closed" && f.denied {
			f.state, f.denied, f.leapt = "embryonic", false, false
			f.begin()
		}
		if f.state == "embryonic" {
			f.next = seq + 1
		}
		if open || f.state == "embryonic" {
			f.isn = seq
		}
	case flags&rst != 0:
		if within(seq, f.next, 64<<10) && !f.leapt {
			f.state, f.late, f.denied = "closed", false, false
			f.end()
		}
	case flags&ack == 0:
	case within(seq, f.next, 16<<20):
		f.advance(flags, seq, payload)
	case open && seq == f.isn+1:
		f.next, f.leapt = seq, true
		f.advance(flags, seq, payload)
	}
}

// advance follows a segment that lies where the client may be.
func (f *modelFlow) advance(flags dprtest.Flags, seq uint32, payload int) {
	exact := seq == f.next
	end := seq + uint32(payload)
	for _, flag := range []dprtest.Flags{dprtest.FIN, syn} {
		if flags&flag != 0 {
			end++
		}
	}
	ahead := int32(end-f.next) > 0
	revived := ahead || f.denied || f.state == "closed" && exact && f.late
	switch {
	case f.state == "embryonic":
		f.state = "unconfirmed"
	case f.state == "established" || f.state == "unconfirmed":
	case revived:
		f.state, f.denied = "unconfirmed", false
		f.begin()
	case f.state == "closed" && exact:
		f.late = true
	}
	if int32(seq-f.next) > 64<<10 {
		f.leapt = true
	}
	near := within(seq, f.next, 64<<10) && !f.leapt
	if ahead {
		f.next = end
	}
	if flags&dprtest.FIN != 0 && near {
		f.state = "closing"
		f.end()
	}
}

// answer says what a serving host's word does.
func (m *model) answer(q dpr.Question, life dpr.Life, peer string, now time.Time) {
	f := m.flows[q.Client]
	if f == nil || f.host != peer || f.state == "closed" {
		return
	}
	switch {
	case life == dpr.Gone:
		f.state, f.denied, f.seen = "closed", true, now
		f.end()
	case life == dpr.Open && (f.state == "embryonic" || f.state == "unconfirmed"):
		f.state, f.seen = "established", now
	}
}

// count returns how many flows a host has.
func (m *model) count(host string) (n int) {
	for _, f := range m.flows {
		if f.host == host && f.counted {
			n++
		}
	}
	return n
}

// machine runs an engine and the model side by side.
type machine struct {
	*model
	questions []dpr.Question
}

func modelClient(n int) netip.AddrPort { return netip.AddrPortFrom(client.Addr(), uint16(1000+n)) }

// seq draws a number that means something to the flow, most of the time.
func (m *machine) seq(t *rapid.T, from netip.AddrPort) uint32 {
	near := rapid.SampledFrom([]int{0, 0, 0, 0, 1, -1, 10, -10, 1 << 20, 64 << 10, 64<<10 + 1, -64<<10 - 1, 16 << 20, 16<<20 + 1}).Draw(t, "offset")
	base := rapid.SampledFrom([]uint32{1000, 0xfffffff0, 0x80000000}).Draw(t, "base")
	if f := m.flows[from]; f != nil && rapid.IntRange(0, 5).Draw(t, "known") > 0 {
		base = rapid.SampledFrom([]uint32{f.next, f.isn}).Draw(t, "number")
	}
	return base + uint32(near)
}

func (m *machine) send(t *rapid.T) {
	b := m.bench
	from := modelClient(rapid.SampledFrom([]int{0, 0, 0, 0, 1, 2}).Draw(t, "client")) // one has a long life
	flags := dprtest.Flags(rapid.OneOf(rapid.Just(int(ack)), rapid.Just(int(syn)), rapid.Just(int(rst)), rapid.IntRange(0, 63)).Draw(t, "flags"))
	seq := m.seq(t, from)
	payload := rapid.SampledFrom([]int{0, 0, 1, 100}).Draw(t, "payload")
	choice := rapid.SampledFrom([]string{"h2", "h3"}).Draw(t, "choice")
	b.choose(choice)
	p := packet(dprtest.TCP(from, vip, dprtest.Options{Flags: flags, Seq: seq, Ack: 1, Payload: make([]byte, payload)}))
	pkts := []dpr.Packet{p}
	b.Process(pkts, b.now)
	want := m.packet(from, flags, seq, payload, choice, b.now)
	switch got := pkts[0]; want {
	case "local":
		require.True(t, got.Verdict == dpr.Local || got.Verdict == dpr.Drop, "%v", got.Verdict)
	case "reset":
		require.Equal(t, dpr.Reply, got.Verdict)
		if flags&ack != 0 {
			require.Equal(t, uint32(1), binary.BigEndian.Uint32(got.Bytes()[24:]))
		}
	default:
		require.Equal(t, dpr.Forward, got.Verdict, "to %s", want)
		require.Equal(t, b.PeerID(want), got.Peer, "one host for its whole life")
	}
}

// wait lets time pass, in steps that no timeout lies within, and takes questions.
func (m *machine) wait(t *rapid.T) {
	b := m.bench
	b.pass(time.Duration(rapid.SampledFrom([]int{1, 3, 11, 50, 70}).Draw(t, "seconds")) * time.Second)
	m.sync(t)
	m.questions = b.Questions(m.questions)
	slices.SortFunc(m.questions, func(a, b dpr.Question) int { // the same in each run
		return cmp.Or(cmp.Compare(a.Peer, b.Peer), a.Client.Compare(b.Client))
	})
}

// sync forgets in the model what the engine has forgotten, and requires that it had the
// right to: nothing goes before its time, and by much later all is gone.
func (m *machine) sync(t *rapid.T) {
	b := m.bench
	there := map[netip.AddrPort]dpr.Flow{}
	for f := range b.Flows(b.now) {
		there[f.Client] = f
	}
	for from, f := range m.flows {
		have, ok := there[from]
		idle := b.now.Sub(f.seen)
		if !ok {
			require.GreaterOrEqual(t, idle+idle/64+time.Second, modelLimits[f.state], "%v went too soon as %s", from, f.state)
			delete(m.flows, from)
			continue
		}
		if f.state == "unconfirmed" && have.State == dpr.Established {
			f.state = "established" // its peer was silent for too long to be believed
			f.seen = b.now
		}
		delete(there, from)
	}
	require.Empty(t, there, "nobody opened these")
}

func (m *machine) reply(t *rapid.T) {
	if len(m.questions) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.questions)-1).Draw(t, "question")
	q := m.questions[i]
	life := rapid.SampledFrom([]dpr.Life{dpr.Unsaid, dpr.Opening, dpr.Open, dpr.Gone}).Draw(t, "life")
	peer := ""
	for _, h := range m.hosts {
		if m.bench.PeerID(h) == q.Peer {
			peer = h
		}
	}
	m.bench.Answer(&q, life, m.bench.now)
	m.answer(q, life, peer, m.bench.now)
	if rapid.Bool().Draw(t, "forget") {
		m.questions = slices.Delete(m.questions, i, i+1)
	}
}

// members changes who is a member.
func (m *machine) members(t *rapid.T) {
	m.hosts = rapid.SampledFrom([][]string{{"h2", "h3"}, {"h2"}, {"h3"}, nil}).Draw(t, "members")
	m.join(t)
}

func (m *machine) join(t require.TestingT) {
	var peers []dpr.Peer
	for _, h := range m.hosts {
		peers = append(peers, dpr.Peer{ID: h})
	}
	// The flows of who left are not another's when it comes back.
	for from, f := range m.flows {
		if f.host != "local" && !slices.Contains(m.hosts, f.host) {
			m.flows[from].host = "nobody"
			f.end()
		}
	}
	require.NoError(t, m.bench.SetPeers(peers))
}

// check compares states and counts.
func (m *machine) check(t *rapid.T) {
	m.sync(t)
	b := m.bench
	for f := range b.Flows(b.now) {
		require.Equal(t, m.flows[f.Client].state, f.State.String(), "%v", f.Client)
	}
	for _, host := range m.hosts {
		require.Equal(t, m.count(host), b.open(host, "web"), "flows of %s", host)
	}
}

// Random packets of random flows, with answers, membership and time: the engine does
// what the model says, no count is ever negative, and all are 0 at the end.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := newBench(t, dpr.Config{Confirm: true, ErrorsPerSecond: 1_000_000_000})
		m := &machine{model: &model{bench: b, flows: map[netip.AddrPort]*modelFlow{}, hosts: []string{"h2", "h3"}}}
		rt.Repeat(map[string]func(*rapid.T){
			"send": m.send, "sent": m.send, "sand": m.send, "wait": m.wait, "reply": m.reply, "members": m.members, "": m.check,
		})
		for range 700 { // rounds of every state
			b.pass(3 * time.Hour)
		}
		require.Zero(t, b.flows())
		m.hosts, m.flows = []string{"h2", "h3"}, nil
		m.join(t)
		for _, host := range m.hosts {
			require.Zero(t, b.open(host, "web"))
		}
	})
}
