package main

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"testing"

	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/lb"
)

// The columns of a micro table, by the names that targets go by.
const (
	perPacket = "ns/packet"
	overFloor = "÷ floor"
	overOurs  = "÷ carom"
)

const (
	theLoads    = "two dependent random loads"
	theFloor    = "floor"
	oursBy32    = "carom: known flow, batch 32"
	oursBy1     = "carom: known flow, batch 1"
	oursBy64    = "carom: known flow, batch 64"
	theGopacket = "gopacket and a map"
	theReuse    = "gopacket and a map, decoders reused"
	theGvisor   = "gVisor: connection tracking and NAT"
)

// gvisorMost is the most flows that gVisor is measured with: its table has 16,384
// buckets, whatever it holds, so that more would measure their chains alone.
const gvisorMost = 100_000

// runMicro measures what a packet costs the engine, beside yardsticks.
func runMicro(ctx context.Context, o *options) (*report, error) {
	r := newReport("micro")
	r.Notes = []string{
		fmt.Sprintf("Packets of 64 bytes of TCP over IPv4, flows in random order; %d rounds in the order ABC CBA, medians.", o.rounds),
		"Everything but the floor and the loads makes each packet by a copy of 64 bytes first.",
		"gopacket decodes as its documentation begins with, by NewPacket, or into the same layers again and again.",
		fmt.Sprintf("gVisor is not measured above %d flows: its table has 16,384 buckets.", gvisorMost),
	}
	tables := map[int]*table{}
	for _, flows := range []int{1000, 100_000, 1_000_000} {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		t, err := microTable(flows, o.rounds)
		if err != nil {
			return nil, err
		}
		tables[flows] = t
		r.Tables = append(r.Tables, t)
	}
	others, err := otherFigures(o.rounds)
	if err != nil {
		return nil, err
	}
	r.Tables = append(r.Tables, others)
	r.Targets = microTargets(tables, others)
	return r, nil
}

// microTable measures a known flow's packet with so many flows.
func microTable(flows, rounds int) (*table, error) {
	e, err := newEngine(flows+flows/4, always{})
	if err != nil {
		return nil, err
	}
	defer e.Close()
	e.fill(flows)
	c := contest{flows: flows}
	c.add(theLoads, newLoads(flows))
	c.add(theFloor, newFloor(flows))
	c.add(oursBy32, e.batches(32, dprtest.ACK))
	c.add(oursBy1, e.batches(1, dprtest.ACK))
	c.add(oursBy64, e.batches(64, dprtest.ACK))
	c.add(theGopacket, newGopacket(flows, false))
	c.add(theReuse, newGopacket(flows, true))
	if flows <= gvisorMost {
		c.add(theGvisor, newGvisor(flows))
	}
	runtime.GC()
	all := c.measure(rounds)
	t := newTable(fmt.Sprintf("%d flows", flows), c.names, []string{perPacket, overFloor, overOurs})
	floor, ours := all[1].median(), all[2].median()
	for i, name := range c.names {
		t.Samples[i][0] = all[i]
		t.add(name, overFloor, all[i].median()/floor)
		t.add(name, overOurs, all[i].median()/ours)
	}
	return t, nil
}

// The rows of the last micro table.
const (
	rowPacketAllocs = "allocations per packet"
	rowFlowAllocs   = "allocations per new flow"
	rowGoroutines   = "1 → 2 goroutines on disjoint flows, throughput"
	rowNewHome      = "new flow, home-or-other, ns"
	rowNewRobin     = "new flow, round robin, ns"
	rowNewRatio     = "home-or-other ÷ round robin, new flows/s"
	rowFlowBytes    = "memory per flow in a full table, bytes"
)

const theValue = "value"

func otherFigures(rounds int) (*table, error) {
	t := newTable("others", []string{rowPacketAllocs, rowFlowAllocs, rowGoroutines, rowNewHome, rowNewRobin, rowNewRatio, rowFlowBytes},
		[]string{theValue})
	for _, measure := range []func(*table, int) error{flowMemory, allocations, goroutines, policies} {
		if err := measure(t, rounds); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// allocations counts those of 32 packets at a time.
func allocations(t *table, _ int) error {
	e, err := newEngine(1<<16, always{})
	if err != nil {
		return err
	}
	defer e.Close()
	e.fill(1000)
	order := randomFlows(1000)
	fresh := &opener{engine: e, next: 1000}
	known := e.batches(32, dprtest.ACK)
	t.add(rowPacketAllocs, theValue, testing.AllocsPerRun(1000, func() { known.run(&order[0]) })/32)
	t.add(rowFlowAllocs, theValue, testing.AllocsPerRun(1000, func() { fresh.run(&order[0]) })/32)
	return nil
}

func goroutines(t *table, rounds int) error {
	const flows = 100_000
	e, err := newEngine(flows+flows/4, always{})
	if err != nil {
		return err
	}
	defer e.Close()
	e.fill(flows)
	for _, v := range scaling(e.batches(32, dprtest.ACK), e.batches(32, dprtest.ACK), flows, rounds) {
		t.add(rowGoroutines, theValue, v)
	}
	return nil
}

// policies compares what opening flows costs in a cluster of ten hosts.
func policies(t *table, rounds int) error {
	const room = 1 << 16 // full soon; then each flow takes the place of the oldest
	c := contest{flows: room}
	for _, p := range []struct {
		row    string
		policy lb.Policy
	}{{rowNewHome, lb.HomeOrOther{}}, {rowNewRobin, &lb.RoundRobin{}}} {
		e, err := newEngine(room, p.policy)
		if err != nil {
			return err
		}
		defer e.Close()
		c.add(p.row, &opener{engine: e})
	}
	all := c.measure(rounds)
	for i, s := range all {
		for _, v := range s {
			t.add(c.names[i], theValue, v)
		}
	}
	t.add(rowNewRatio, theValue, all[1].median()/all[0].median())
	return nil
}

// flowMemory fills a table and sees by how much the process has grown.
func flowMemory(t *table, _ int) error {
	const flows = 4 << 20 // enough for the rest to vanish
	before := ownMemory()
	e, err := newEngine(flows, always{})
	if err != nil {
		return err
	}
	defer e.Close()
	e.fill(flows)
	if after := ownMemory(); !math.IsNaN(after) {
		t.add(rowFlowBytes, theValue, (after-before)/flows)
	}
	return nil
}

// microTargets judges what the micro benchmarks can.
func microTargets(tables map[int]*table, others *table) []target {
	of := func(row string) float64 { return others.median(row, theValue) }
	return []target{
		atMost("floor ÷ two dependent random loads, 1M flows",
			tables[1_000_000].median(theFloor, perPacket)/tables[1_000_000].median(theLoads, perPacket), 1.5),
		atMost("known flow, 1k flows, batch 32, over the floor", tables[1000].median(oursBy32, overFloor), 1.6),
		atMost("known flow, 1M flows, batch 32, over the floor", tables[1_000_000].median(oursBy32, overFloor), 1.3),
		atLeast("gopacket + map ÷ ours (known flow, 1k)", tables[1000].median(theGopacket, overOurs), 10),
		atLeast("the same, gopacket's decoders reused", tables[1000].median(theReuse, overOurs), 10),
		atLeast("gVisor connection tracking ÷ ours (known flow, 1k)", tables[1000].median(theGvisor, overOurs), 3),
		atMost("allocations per packet", of(rowPacketAllocs), 0),
		atMost("allocations per new flow", of(rowFlowAllocs), 0),
		atLeast("1 → 2 goroutines on disjoint flows", of(rowGoroutines), 1.7),
		atLeast("home-or-other ÷ round robin, new flows/s", of(rowNewRatio), 0.95),
		atMost("bytes per flow, entry and bucket", of(rowFlowBytes), 72),
	}
}
