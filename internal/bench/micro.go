package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/lb"
)

// A runner handles one packet of each of 32 flows.
type runner interface{ run(flows *[32]uint32) }

const (
	rounds = 5
	// slice is how long a runner runs at a time: long against a clock's reading,
	// short against what else the machine does.
	slice = 100 * time.Millisecond
)

// A contest measures runners side by side: in each round each runs twice, in the
// order ABC CBA, so that a machine that slows down slows all of them.
type contest struct {
	names   []string
	runners []runner
	flows   int
}

func (c *contest) add(name string, r runner) {
	c.names, c.runners = append(c.names, name), append(c.runners, r)
}

// measure returns each runner's median time for a packet, in nanoseconds.
func (c *contest) measure() []float64 {
	samples := make([][]float64, len(c.runners))
	order := randomFlows(c.flows)
	for range rounds {
		for i := range c.runners {
			samples[i] = append(samples[i], timePerPacket(c.runners[i], order))
		}
		for i := len(c.runners) - 1; i >= 0; i-- {
			samples[i] = append(samples[i], timePerPacket(c.runners[i], order))
		}
	}
	medians := make([]float64, len(samples))
	for i, s := range samples {
		slices.Sort(s)
		medians[i] = s[len(s)/2]
	}
	return medians
}

// randomFlows returns batches of flows in random order, each flow equally often.
func randomFlows(flows int) [][32]uint32 {
	rng := rand.New(rand.NewPCG(1, 2))
	batches := make([][32]uint32, max(1024, flows/32))
	for i := range batches {
		for k := range batches[i] {
			batches[i][k] = uint32(rng.IntN(flows))
		}
	}
	return batches
}

func timePerPacket(r runner, order [][32]uint32) float64 {
	packets := 0
	start := time.Now()
	for at := 0; ; at = (at + 64) % (len(order) - 63) {
		for i := range 64 {
			r.run(&order[at+i])
		}
		packets += 64 * 32
		if took := time.Since(start); took > slice {
			return float64(took.Nanoseconds()) / float64(packets)
		}
	}
}

// loads are two random loads, the second at a place that the first one gives: the
// least that a hash table costs.
type loads struct{ first, second []uint32 }

func newLoads(flows int) *loads {
	l := &loads{first: make([]uint32, flows), second: make([]uint32, 16*flows)}
	for i, n := range rand.New(rand.NewPCG(3, 4)).Perm(flows) {
		l.first[i] = uint32(16 * n) // each entry has a cache line of its own
	}
	return l
}

var sink uint32

func (l *loads) run(flows *[32]uint32) {
	for _, f := range flows {
		sink += l.second[l.first[f]]
	}
}

// engine is dpr's, with all flows established and redirected.
type engine struct {
	*dpr.Engine
	pkts     []dpr.Packet
	template []byte
	now      time.Time
}

var (
	benchClient = netip.MustParseAddrPort("10.0.0.1:40000")
	benchVIP    = netip.MustParseAddrPort("198.51.100.1:80")
)

// always sends every flow to the first peer.
type always struct{}

func (always) Build(*lb.Snapshot) lb.Picker          { return always{} }
func (always) Pick(lb.Flow, time.Duration) lb.Choice { return lb.Choice{Do: lb.Send, Host: 1} }
func packetTemplate(flags dprtest.Flags, payload int) []byte {
	return dprtest.TCP(benchClient, benchVIP, dprtest.Options{Flags: flags, Seq: 1, Payload: make([]byte, payload)})
}

func newEngine(flows int) (*engine, error) {
	e, err := dpr.New(dpr.Config{
		MaxFlows: flows + flows/4,
		Services: []dpr.Service{{Name: "web", Proto: dpr.TCP, Port: 80, Addrs: []netip.Addr{benchVIP.Addr()}}},
	})
	if err != nil {
		return nil, err
	}
	r := &engine{Engine: e, pkts: dpr.NewPackets(32, 256), now: time.Now()}
	if err := e.SetPeers([]dpr.Peer{{ID: "h2"}}); err != nil {
		return nil, err
	}
	snap := &lb.Snapshot{Hosts: []lb.Host{{ID: "h1", Weight: 1}, {ID: "h2", Weight: 1}}}
	if err := e.SetSnapshot("web", always{}, snap); err != nil {
		return nil, err
	}
	for _, flags := range []dprtest.Flags{dprtest.SYN, dprtest.ACK} {
		r.template = packetTemplate(flags, 24)
		var batch [32]uint32
		for at := 0; at < flows; at += 32 {
			for k := range batch {
				batch[k] = uint32(min(at+k, flows-1))
			}
			r.run(&batch)
		}
	}
	return r, nil
}

// client puts the flow's number into the client's address.
func client(pkt []byte, flow uint32) { binary.BigEndian.PutUint32(pkt[12:], 10<<24|flow) }

func (e *engine) run(flows *[32]uint32) {
	for i, f := range flows {
		p := &e.pkts[i]
		p.Off, p.Peer, p.Len = dpr.Headroom, 0, copy(p.Buf[dpr.Headroom:], e.template)
		client(p.Bytes(), f)
	}
	e.Process(e.pkts, e.now)
}

// micro prints the cost of a packet of a known flow beside its yardsticks.
func micro(w io.Writer, sizes []int) error {
	for _, flows := range sizes {
		c := contest{flows: flows}
		c.add("two dependent random loads", newLoads(flows))
		c.add("floor", newFloor(flows))
		e, err := newEngine(flows)
		if err != nil {
			return err
		}
		c.add("carom: known flow", e)
		oracle := newGopacket(flows)
		c.add("gopacket and a map", oracle)
		medians := c.measure()
		e.Close()
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintf(t, "%d flows, batch 32\tns/packet\t÷ floor\t÷ carom\t\n", flows)
		for i, name := range c.names {
			fmt.Fprintf(t, "%s\t%.1f\t%.2f\t%.2f\t\n", name, medians[i], medians[i]/medians[1], medians[i]/medians[2])
		}
		fmt.Fprintln(t)
		if err := t.Flush(); err != nil {
			return err
		}
	}
	return nil
}
