package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/internal/header"
	"github.com/carom-dpr/carom/lb"
)

// A replay is a run of a capture through an engine.
type replay struct {
	*options
	engine  *dpr.Engine
	out     io.Writer
	leaving *ngWriter // nil if nobody wants to see what leaves
	before  dpr.Stats // before the packet
	origin  time.Time // of the capture
	start   time.Time // of the engine's clock
	now     time.Time // by the engine's clock
	frames  int
}

func newReplay(o *options, out io.Writer) (*replay, error) {
	engine, err := dpr.New(o.config)
	if err != nil {
		return nil, err
	}
	r := &replay{options: o, engine: engine, out: out, start: time.Now()}
	r.now = r.start
	if err := r.configure(); err != nil {
		return nil, errors.Join(err, engine.Close())
	}
	r.before = engine.Stats()
	return r, nil
}

// configure gives the engine its peers, and each service a snapshot.
func (r *replay) configure() error {
	if err := r.engine.SetPeers(r.peers); err != nil {
		return err
	}
	for _, s := range r.config.Services {
		snap := &lb.Snapshot{Hosts: []lb.Host{r.self}}
		for _, h := range r.hosts {
			h.Live = r.engine.Live(h.ID, s.Name)
			snap.Hosts = append(snap.Hosts, h)
		}
		slices.SortFunc(snap.Hosts, func(a, b lb.Host) int { return strings.Compare(a.ID, b.ID) })
		snap.Self = slices.IndexFunc(snap.Hosts, func(h lb.Host) bool { return h.ID == r.self.ID })
		snap.Members = lb.HashMembers(snap.Hosts)
		if err := r.engine.SetSnapshot(s.Name, r.policy, snap); err != nil {
			return err
		}
	}
	return nil
}

func (r *replay) run(c capture) error {
	for {
		data, at, err := next(c, &r.frames)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := r.packet(data, at); err != nil {
			return err
		}
	}
}

// packet runs one packet and those that it sets free.
func (r *replay) packet(data []byte, at time.Time) error {
	if r.origin.IsZero() {
		r.origin = at
	}
	if now := r.start.Add(at.Sub(r.origin)); !r.still && now.After(r.now) {
		r.now = now
	}
	r.engine.Tick(r.now)
	if notes := r.notes(); notes != "" {
		fmt.Fprintf(r.out, "------ %s\n", notes)
	}
	p := dpr.NewPackets(1, max(len(data), headerRoom))[0]
	p.Len = copy(p.Buf[p.Off:], data)
	p.GSO = r.superFrame(data)
	if r.uplink != "" {
		p.Peer = r.engine.PeerID(r.uplink)
	}
	pkts := []dpr.Packet{p}
	r.engine.Process(pkts, r.now)
	if err := r.tell(fmt.Sprintf("%6d", r.frames), at, data, &pkts[0]); err != nil {
		return err
	}
	return r.released(at)
}

// headerRoom is enough for what the engine makes of a short packet, such as a reset.
const headerRoom = 128

// released tells of packets that had to wait for this one, or that it was cut into.
func (r *replay) released(at time.Time) error {
	for {
		p := dpr.NewPackets(1, dpr.MaxPacket)
		if r.engine.Extra(p, r.now) == 0 {
			return nil
		}
		if err := r.tell("     +", at, p[0].Bytes(), &p[0]); err != nil {
			return err
		}
	}
}

// superFrame is what a device would say of a packet that stands for several.
func (r *replay) superFrame(data []byte) dpr.GSO {
	var h header.Packet
	if r.gso == 0 || h.Parse(data) != header.OK || h.Proto != header.ProtoTCP || h.PayloadLen <= r.gso {
		return dpr.GSO{}
	}
	g := dpr.GSO{Type: dpr.GSOTCP4, HdrLen: uint16(h.Len - h.PayloadLen), Size: uint16(r.gso)}
	if h.Version == 6 {
		g.Type = dpr.GSOTCP6
	}
	return g
}

// tell prints the line of a packet, and writes the packet if it leaves.
func (r *replay) tell(number string, at time.Time, in []byte, p *dpr.Packet) error {
	verdict := p.Verdict.String()
	if p.Verdict == dpr.Forward || p.Verdict == dpr.Transmit && p.Peer != 0 {
		verdict += " " + r.peerName(p.Peer)
	}
	state, known := r.state(in)
	if !known {
		state = "-"
	}
	what := joined(r.notes(), changes(in, p))
	seconds := at.Sub(r.origin).Seconds()
	fmt.Fprintf(r.out, "%s %12.6f  %-12s %-12s %s", number, seconds, verdict, state, dprtest.Describe(in))
	if what != "" {
		fmt.Fprintf(r.out, " | %s", what)
	}
	fmt.Fprintln(r.out)
	return r.write(at, p, joined(strings.TrimSpace(number)+": "+verdict, "flow "+state, what))
}

// write keeps a packet that leaves the engine.
func (r *replay) write(at time.Time, p *dpr.Packet, comment string) error {
	if r.leaving == nil || p.Verdict == dpr.Drop || p.Verdict == dpr.Hold {
		return nil
	}
	return r.leaving.packet(at, p.Bytes(), comment)
}

func (r *replay) peerName(id dpr.PeerID) string {
	for i := range r.peers {
		if r.engine.PeerID(r.peers[i].ID) == id {
			return r.peers[i].ID
		}
	}
	return "?"
}

// notes says what the engine has counted since it was last asked that explains a
// verdict. With one packet at a time that is what became of it.
func (r *replay) notes() string {
	after := r.engine.Stats()
	var notes []string
	for _, reason := range dpr.Reasons() {
		if after.Drops[reason] > r.before.Drops[reason] {
			notes = append(notes, reason.String())
		}
	}
	for _, c := range []struct {
		name          string
		before, after uint64
	}{
		{"unknown flow", r.before.Unknown, after.Unknown},
		{"its peer is gone", r.before.PeerGone, after.PeerGone},
		{"flow table full", r.before.TableFull, after.TableFull},
	} {
		if c.after > c.before {
			notes = append(notes, c.name)
		}
	}
	if n := sum(r.before.Flows) - sum(after.Flows); n > 0 {
		notes = append(notes, fmt.Sprintf("%d forgotten", n))
	}
	r.before = after
	return strings.Join(notes, ", ")
}

func sum[K comparable](counts map[K]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// state looks for the flow that the packet belongs to, or that it quotes. It goes
// through the whole table: fine for a capture that people read.
func (r *replay) state(data []byte) (state string, known bool) {
	var h, quote header.Packet
	if h.Parse(data) != header.OK {
		return "", false
	}
	client, dialled := h.Source(), h.Destination()
	if h.IsICMPError() && quote.ParseQuote(header.ICMP(data[h.L4:h.Len]).Body()) == header.OK {
		h, client, dialled = quote, quote.Destination(), quote.Source()
	}
	for f := range r.engine.Flows(r.now) {
		there := f.Client == client && f.Dialled == dialled || f.Server == client && f.Source == dialled // at a plain server
		if there && r.proto(f.Service) == dpr.Proto(h.Proto) {
			return f.State.String(), true
		}
	}
	return "", false
}

func (r *replay) proto(service string) dpr.Proto {
	for i := range r.config.Services {
		if r.config.Services[i].Name == service {
			return r.config.Services[i].Proto
		}
	}
	return 0
}

// finish prints the totals.
func (r *replay) finish() error {
	s := r.engine.Stats()
	fmt.Fprintf(r.out, "\n%d frames\n", r.frames)
	for v := dpr.Drop; v <= dpr.Hold; v++ {
		if n := s.Verdicts[v]; n > 0 {
			fmt.Fprintf(r.out, "%8d %v\n", n, v)
		}
	}
	for _, reason := range dpr.Reasons() {
		if n := s.Drops[reason]; n > 0 {
			fmt.Fprintf(r.out, "%8d dropped: %v\n", n, reason)
		}
	}
	for _, state := range slices.Sorted(maps.Keys(s.Flows)) {
		if n := s.Flows[state]; n > 0 {
			fmt.Fprintf(r.out, "%8d in the table: %v\n", n, state)
		}
	}
	if r.leaving == nil {
		return nil
	}
	return r.leaving.flush()
}

// A field is a part of an IP header that may be rewritten.
type field struct {
	name     string
	at, size int
}

var (
	fields4 = []field{
		{"tos", 1, 1}, {"length", 2, 2}, {"id", 4, 2}, {"fragment", 6, 2}, {"ttl", 8, 1}, {"checksum", 10, 2},
		{"source", 12, 4}, {"destination", 16, 4},
	}
	fields6 = []field{{"length", 4, 2}, {"hop limit", 7, 1}, {"source", 8, 16}, {"destination", 24, 16}}
)

// changes says what of a packet was rewritten.
func changes(in []byte, p *dpr.Packet) string {
	out := p.Bytes()
	switch {
	case p.Verdict == dpr.Reply:
		return "answered: " + answer(out)
	case p.Verdict == dpr.Drop || p.Verdict == dpr.Hold:
		return ""
	}
	var list []string
	fields, body := fields4, 20
	if out[0]>>4 == 6 {
		fields, body = fields6, 40
	}
	for _, f := range fields {
		if was, is := in[f.at:f.at+f.size], out[f.at:f.at+f.size]; !bytes.Equal(was, is) {
			list = append(list, fmt.Sprintf("%s %s to %s", f.name, number(was), number(is)))
		}
	}
	if p.Verdict == dpr.Transmit {
		translated, only := ports(in, out)
		if list = append(list, translated...); only {
			return strings.Join(list, ", ")
		}
	}
	switch {
	case len(out) < len(in) && bytes.Equal(in[body:len(out)], out[body:]):
		list = append(list, fmt.Sprintf("last %d bytes cut off", len(in)-len(out)))
	case !bytes.Equal(in[body:], out[body:]):
		list = append(list, "what follows the IP header")
	}
	return strings.Join(list, ", ")
}

// answer describes a packet of the engine's own.
func answer(out []byte) string {
	s := dprtest.Describe(out)
	var h header.Packet
	if h.Parse(out) == header.OK && h.IsICMPError() {
		if rest := binary.BigEndian.Uint32(out[h.L4+4:]); rest > 0 {
			s += fmt.Sprintf(", MTU %d", rest)
		}
	}
	return s
}

func number(b []byte) string {
	switch len(b) {
	case 1:
		return fmt.Sprint(b[0])
	case 2:
		return fmt.Sprintf("%#04x", binary.BigEndian.Uint16(b))
	}
	return fmt.Sprintf("%x", b)
}

// joined joins what there is.
func joined(parts ...string) string {
	parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
	return strings.Join(parts, "; ")
}
