package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/lb"
)

const (
	// soakStep is the simulated time between two new connections: so long that at most
	// 4,000 are in the table at once, where an idle one stays for 2 h 5 min.
	soakStep = 200 * time.Millisecond
	// soakRoom is what the table has room for: more than are ever open.
	soakRoom = 4096
	// soakMost is how many connections may be open at once.
	soakMost = 4000
	// ownersLeave is after how many connections a peer leaves the cluster; half as
	// many later it comes back.
	ownersLeave = 5000
	// soakLife is after how many steps the peers' sockets are gone, whatever the clients
	// say, and soakLoss is how many answers there are for each that gets lost.
	soakLife = 3000
	soakLoss = 8
	// soakTick is how many connections open between two ticks.
	soakTick = 5
	// clockWraps is when the flow table's clock of milliseconds does.
	clockWraps = 1 << 32 * time.Millisecond
	// afterwards is longer than any flow is remembered.
	afterwards = 3 * time.Hour
)

// A soak runs connections of every kind through an engine, in simulated time. Each
// kind's packets are sent some steps apart, so that those of many connections mix.
type soak struct {
	engine *dpr.Engine
	pkts   []dpr.Packet
	extra  []dpr.Packet
	kinds  []soakKind
	now    time.Time
	most   int // the most entries seen at once
	peer   dpr.PeerID
	gone   int // how often a peer has left
	asked  int // how many questions peers were asked
	denied int // how often they said that a connection is gone
	asking []dpr.Question
}

func newSoak() (*soak, error) {
	e, err := dpr.New(dpr.Config{
		MaxFlows: soakRoom,
		Confirm:  true,
		Services: []dpr.Service{
			{Name: "tcp", Proto: dpr.TCP, Port: 80, Addrs: []netip.Addr{benchVIP.Addr()}},
			{Name: "udp", Proto: dpr.UDP, Port: 80, Addrs: []netip.Addr{benchVIP.Addr()}},
		},
	})
	if err != nil {
		return nil, err
	}
	s := &soak{engine: e, pkts: dpr.NewPackets(len(soakDelays), 2048), extra: dpr.NewPackets(8, 2048), kinds: soakKinds(), now: time.Now()}
	return s, s.setPeers("h1", "h2")
}

// setPeers makes these the cluster's other hosts, as the engine knows it. The policy
// goes on to choose a peer that has left.
func (s *soak) setPeers(names ...string) error {
	var peers []dpr.Peer
	for _, name := range names {
		peers = append(peers, dpr.Peer{ID: name})
	}
	if err := s.engine.SetPeers(peers); err != nil {
		return err
	}
	s.peer = s.engine.PeerID("h1")
	snap := &lb.Snapshot{}
	for _, name := range []string{"h0", "h1", "h2", "never a peer"} {
		snap.Hosts = append(snap.Hosts, lb.Host{ID: name, Weight: 1})
	}
	snap.Hosts[0].Flags = lb.Local
	return errors.Join(s.engine.SetSnapshot("tcp", soakPolicy{}, snap), s.engine.SetSnapshot("udp", soakPolicy{}, snap))
}

// soakPolicy gives equal shares of the connections to this host, to two peers and to
// one that nobody knows, and refuses as many.
type soakPolicy struct{}

func (soakPolicy) Build(*lb.Snapshot) lb.Picker { return soakPolicy{} }

func (soakPolicy) Pick(f lb.Flow, _ time.Duration) lb.Choice {
	switch n := int(f.Conn % 5); n {
	case 0:
		return lb.Choice{}
	case 4:
		return lb.Choice{Do: lb.Refuse}
	default:
		return lb.Choice{Do: lb.Send, Host: n}
	}
}

// run opens so many connections, at every moment the next, and returns when the last
// one has sent its last packet and all are forgotten. The table's clock wraps half way.
// It calls mark when a tenth of them is through.
func (s *soak) run(ctx context.Context, connections int, mark func()) error {
	last := soakDelays[len(soakDelays)-1]
	s.now = s.now.Add(clockWraps - time.Duration(connections)*soakStep/2)
	for step := range connections + last {
		if step%ownersLeave == 0 {
			if err := s.changePeers(ctx, step); err != nil {
				return err
			}
		} else if step%ownersLeave == ownersLeave/2 {
			if err := s.setPeers("h1", "h2"); err != nil {
				return err
			}
		}
		if step == connections/10 {
			mark()
		}
		s.step(step, connections)
		s.now = s.now.Add(soakStep)
		if step%soakTick == 0 {
			s.tick(step)
		}
	}
	for range 600 { // a tick forgets a bounded number, and takes a flow one round on
		s.now = s.now.Add(afterwards)
		s.tick(connections + last + soakLife)
	}
	return nil
}

// tick lets the engine forget, and brings it the peers' answers to what it asks.
func (s *soak) tick(step int) {
	s.engine.Tick(s.now)
	s.asking = s.engine.Questions(s.asking[:0])
	for i := range s.asking {
		q := &s.asking[i]
		if s.asked++; s.asked%soakLoss == 0 {
			continue
		}
		life := dpr.Open
		if step-connectionOf(q.Client) > soakLife {
			life = dpr.Gone
			s.denied++
		}
		s.engine.Answer(q, life, s.now)
	}
}

func (s *soak) changePeers(ctx context.Context, step int) error {
	s.most = max(s.most, s.entries())
	if step == 0 {
		return nil
	}
	s.gone++
	return errors.Join(ctx.Err(), s.setPeers("h1"))
}

// step sends the packets that are due: each of another connection.
func (s *soak) step(step, connections int) {
	n := 0
	for stage, delay := range soakDelays {
		c := step - delay
		if c < 0 || c >= connections {
			continue
		}
		kind := &s.kinds[c%len(s.kinds)]
		if stage < len(kind.packets) {
			kind.write(&s.pkts[n], stage, c)
			if kind.fromPeer {
				s.pkts[n].Peer = s.peer
			}
			n++
		}
	}
	s.engine.Process(s.pkts[:n], s.now)
	for s.engine.Extra(s.extra, s.now) > 0 {
	}
}

// entries counts all that the table holds.
func (s *soak) entries() (n int) {
	for _, count := range s.engine.Stats().Flows {
		n += count
	}
	return n
}

// open adds up all counts of open flows.
func (s *soak) open() (n int) {
	abs := func(v int) int { return max(v, -v) }
	for _, services := range s.engine.Stats().Open {
		for _, count := range services {
			n += abs(count)
		}
	}
	for _, service := range []string{"tcp", "udp"} {
		n += abs(int(s.engine.Serving(service).Load()))
	}
	return n
}

// settledMemory returns the process's memory without what the collector would take. It
// gives back a part of what is free each time.
func settledMemory() float64 {
	for range 20 {
		debug.FreeOSMemory()
	}
	return ownMemory()
}

// warmHeap has the Go runtime make what it needs for a heap larger than the soak's, which
// it never gives back.
func warmHeap() {
	var garbage [][]byte
	for size := 16; size <= 32<<10; size *= 2 {
		for range 4 << 20 / size {
			garbage = append(garbage, make([]byte, size))
		}
	}
	runtime.KeepAlive(garbage)
}

// soakGarbage is how much garbage there may be between two collections, in percent of
// what is held. With the usual 100, or 4 MiB, what is held lies so scattered in the end
// that a twentieth more memory cannot be given back, although it is the same.
const soakGarbage = 10

func runSoak(ctx context.Context, o *options) (*report, error) {
	s, err := newSoak()
	if err != nil {
		return nil, err
	}
	defer s.engine.Close()
	defer debug.SetGCPercent(debug.SetGCPercent(soakGarbage))
	warmHeap()
	start := time.Now()
	var early float64
	if err := s.run(ctx, o.connections, func() { early = settledMemory() }); err != nil {
		return nil, err
	}
	late := settledMemory()
	r := newReport("soak")
	r.Notes = append(r.Notes, fmt.Sprintf("%d connections of %d kinds in %.0f s, %.0f days of simulated time; a peer left %d times.",
		o.connections, len(s.kinds), time.Since(start).Seconds(), float64(o.connections)*soakStep.Hours()/24, s.gone))
	stats := s.engine.Stats()
	r.Tables = []*table{s.table(&stats, early, late)}
	r.Targets = []target{
		atMost("table entries at once", float64(s.most), soakMost),
		atMost("flows for which the table had no room", float64(stats.TableFull), 0),
		atMost("table entries and timers at the end", float64(s.entries()), 0),
		atMost("counts of open flows at the end", float64(s.open()), 0),
		// A byte per connection would double it.
		atMost("memory at the end ÷ at a tenth of the connections", late/early, 1.02),
	}
	return r, nil
}

// table shows that all kinds of endings were met.
func (s *soak) table(stats *dpr.Stats, early, late float64) *table {
	values := []struct {
		row string
		n   uint64
	}{
		{"memory at a tenth of the connections, KiB", uint64(early / 1024)},
		{"memory at the end, KiB", uint64(late / 1024)},
		{"packets for peers", stats.Verdicts[dpr.Forward]},
		{"packets for this host", stats.Verdicts[dpr.Local]},
		{"packets of flows whose peer had left", stats.PeerGone},
		{"packets of unknown flows", stats.Unknown},
		{"questions to peers", uint64(s.asked)},
		{"connections that peers called gone", uint64(s.denied)},
		{"connections refused", stats.Services["tcp"].Refused + stats.Services["udp"].Refused},
		{"connections redirected", stats.Services["tcp"].RedirectedOut + stats.Services["udp"].RedirectedOut},
		{"connections served here", stats.Services["tcp"].Served + stats.Services["udp"].Served},
		{"fragments without a first one", stats.Drops[dpr.FragmentLost]},
	}
	var rows []string
	for _, v := range values {
		rows = append(rows, v.row)
	}
	t := newTable("soak", rows, []string{theValue})
	for _, v := range values {
		t.add(v.row, theValue, float64(v.n))
	}
	return t
}
