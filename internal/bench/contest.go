package main

import (
	"math/rand/v2"
	"slices"
	"time"
)

// A runner handles one packet of each of 32 flows.
type runner interface{ run(flows *[32]uint32) }

// slice is how long a runner runs at a time: long against a clock's reading, short
// against what else the machine does.
const slice = 100 * time.Millisecond

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

// measure returns each runner's times for a packet, in nanoseconds.
func (c *contest) measure(rounds int) []samples {
	all := make([]samples, len(c.runners))
	order := randomFlows(c.flows)
	for range rounds {
		for i := range c.runners {
			all[i] = append(all[i], timePerPacket(c.runners[i], order))
		}
		for i := len(c.runners) - 1; i >= 0; i-- {
			all[i] = append(all[i], timePerPacket(c.runners[i], order))
		}
	}
	return all
}

// randomFlows returns batches of flows in random order.
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

// scaling returns the throughput of two runners at once, on disjoint halves of the
// flows, over that of one alone on its half.
func scaling(a, b runner, flows, rounds int) samples {
	order := randomFlows(flows / 2)
	other := slices.Clone(order)
	for i := range other {
		for k := range other[i] {
			other[i][k] += uint32(flows / 2)
		}
	}
	both := func() float64 { // packets a nanosecond
		second := make(chan float64)
		go func() { second <- 1 / timePerPacket(b, other) }()
		return 1/timePerPacket(a, order) + <-second
	}
	var all samples
	for range rounds {
		one := 1 / timePerPacket(a, order)
		two := both() + both()
		one += 1 / timePerPacket(a, order)
		all = append(all, two/one)
	}
	return all
}

// loads are two random loads, the second at a place that the first one gives: the
// least that a hash table costs.
type loads struct {
	first, second []uint32
	sum           uint32
}

func newLoads(flows int) *loads {
	l := &loads{first: hugeSlice[uint32](flows), second: hugeSlice[uint32](16 * flows)}
	for i, n := range rand.New(rand.NewPCG(3, 4)).Perm(flows) {
		l.first[i] = uint32(16 * n) // each entry has a cache line of its own
		l.second[16*n] = uint32(i)  // and memory: pages that nobody wrote to are all one
	}
	return l
}

func (l *loads) run(flows *[32]uint32) {
	for _, f := range flows {
		l.sum += l.second[l.first[f]]
	}
}
