package lb

import (
	"math"
	"time"
)

// ResourceLoad takes the host whose scarcest resource the connection burdens the
// least: it compares load factors, the greatest of demand/available over CPU,
// memory, disk and network. It admits: a host that cannot carry one more is not
// chosen, and if none can, the connection is refused or served here, as WhenFull
// says.
//
// What is available is 1 less the reported share and Headroom, and less Demand for
// each connection that this chooser has handed over since. A resource that a host
// does not report counts as the average of those that do. The load factor is one
// over the connections that still fit, available/demand of the scarcest resource,
// and those are one fewer for each that was handed over: so a pick compares one
// number per host, however many resources there are.
//
// Source: Venkatasubramanian and Ramanathan, "Load Management in Distributed Video
// Servers", ICDCS 1997.
//
// It wins where connections use different things (a host that is idle may have a
// full disk), where their demand is known, and where a full service must turn
// people away instead of getting slow for all.
//
// It loses where demand is not known: then a count of connections says as much.
// Old reports are as bad for it as for others; compare two hosts, not all.
type ResourceLoad struct {
	// Demand is what one connection takes, as a share of each resource of a host.
	// If all are 0, a thousandth of each.
	Demand Resources
	// DemandAt is the weight of the host on which Demand was measured: a host of
	// twice the weight has half of it. 0 means that Demand is the same on all.
	DemandAt uint16
	// Headroom is the share of each resource that connections must leave free.
	Headroom float32
	// D is the number of hosts compared, as in [PowerOfD]; 0 means 2. [EveryHost]
	// compares all. If none of them can carry one more, all are asked.
	D int
	// WhenFull is Serve or Refuse.
	WhenFull Action
}

// EveryHost, as a ResourceLoad's D, compares all hosts, as the paper has it. Every
// negative D means the same.
const EveryHost = -1

// defaultDemand makes the most used resource decide.
const defaultDemand = 0.001

// resources is how many there are.
const resources = 4

func (r Resources) list() [resources]float64 {
	return [resources]float64{float64(r.CPU), float64(r.Memory), float64(r.Disk), float64(r.Network)}
}

// Build implements [Policy].
func (p ResourceLoad) Build(s *Snapshot) Picker {
	s = reported(s)
	r := &resourceLoad{candidates: candidatesOf(s), full: Choice{}}
	r.draw = r.others(p.D)
	if p.D < 0 {
		r.draw = EveryHost
	}
	if p.WhenFull == Refuse {
		r.full.Do = Refuse
	}
	if p.Demand == (Resources{}) {
		p.Demand = Resources{defaultDemand, defaultDemand, defaultDemand, defaultDemand}
	}
	r.room = make([]float64, len(s.Hosts))
	average := averageUse(s)
	for i := range s.Hosts {
		r.room[i] = p.room(&s.Hosts[i], average)
	}
	return r
}

// room is how many connections fit on a host, by its report.
func (p ResourceLoad) room(h *Host, average [resources]float64) float64 {
	demand, scale, least := p.Demand.list(), 1.0, math.Inf(1)
	if p.DemandAt > 0 && h.Weight > 0 {
		scale = float64(p.DemandAt) / float64(h.Weight)
	}
	for k, used := range h.Load.list() {
		if used < 0 {
			used = average[k]
		}
		if demand[k] > 0 {
			least = min(least, (1-used-float64(p.Headroom))/(demand[k]*scale))
		}
	}
	return least
}

// averageUse returns the mean of each resource over the eligible hosts that report
// it, 0 where nobody does.
func averageUse(s *Snapshot) (mean [resources]float64) {
	var know [resources]float64
	for _, i := range ready(s) {
		for k, used := range s.Hosts[i].Load.list() {
			if used >= 0 {
				mean[k], know[k] = mean[k]+used, know[k]+1
			}
		}
	}
	for k := range mean {
		mean[k] /= max(know[k], 1)
	}
	return mean
}

type resourceLoad struct {
	candidates
	room []float64 // by host
	draw int
	full Choice
}

func (p *resourceLoad) Pick(f Flow, _ time.Duration) Choice {
	if p.home < 0 && len(p.peers) == 0 {
		return Choice{}
	}
	i := p.cheapest(f, p.draw, noRoom, p)
	if i < 0 && p.draw >= 0 {
		f.Conn = ^f.Conn // the draws that led here would bias a tie
		i = p.cheapest(f, EveryHost, noRoom, p)
	}
	switch i {
	case -1:
		return p.full
	case p.home:
		return Choice{}
	}
	return Choice{Do: Send, Host: i}
}

// noRoom is the score of a host that the connection would fill up: its load factor
// is 1.
const noRoom = -1

// score is less the more connections still fit.
func (p *resourceLoad) score(i int) float64 {
	return float64(max(p.hosts[i].since(), 0)) - p.room[i]
}
