package lb

import (
	"math"
	"sync"
	"time"
)

// PeakEWMA compares D hosts by how long a request would take: a moving average of
// the latency they report, times the requests in flight and this one. The average
// takes a rise at once and forgets it over Tau. The own host is one of the D, and a
// tie stays there. Use it by pointer: the averages live on from one snapshot to the
// next, by Snapshot.Taken; without it the last report counts alone.
//
// Source: Finagle's p2c with peak EWMA (com.twitter.finagle.loadbalancer), Ruben
// Oanta, 2014. There each client measures; here hosts report.
//
// It wins where latencies differ among hosts and jump: a host in trouble is left
// at once, and tried again in time. [Prequal] does better where hosts are close to
// full, since it looks at requests in flight first.
//
// It loses where latency says little of load, as when requests differ much among
// themselves, and where reports are older than a host's trouble lasts.
type PeakEWMA struct {
	// Tau is the time in which the average forgets all but 1/e. 0 means 10 s.
	Tau time.Duration
	// D is the number of hosts compared, as in [PowerOfD]; 0 means 2.
	D int

	mu    sync.Mutex
	hosts map[string]ewma
}

const peakTau = 10 * time.Second

// Build implements [Policy].
func (p *PeakEWMA) Build(s *Snapshot) Picker {
	s = reported(s)
	q := &peakEWMA{candidates: candidatesOf(s), cost: make([]float64, len(s.Hosts))}
	q.draw = q.others(p.D)
	tau := p.Tau
	if tau <= 0 {
		tau = peakTau
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	next := make(map[string]ewma, len(s.Hosts))
	for i := range s.Hosts {
		h := &s.Hosts[i]
		e := p.hosts[h.ID]
		e.report(h, s.Taken, tau)
		next[h.ID], q.cost[i] = e, e.cost
	}
	p.hosts = next // those that are gone are forgotten
	return q
}

// ewma is a host's average.
type ewma struct {
	cost float64       // in nanoseconds
	at   time.Duration // when it was that
	last time.Duration // when the report was made
	some bool          // there was one
}

// report takes in the host's latency, if its report is a new one, and brings the
// average up to when the snapshot was taken. From then on all hosts' averages would
// shrink alike, so comparisons need no clock.
func (e *ewma) report(h *Host, taken, tau time.Duration) {
	if taken == 0 {
		e.cost = float64(h.Latency)
		return
	}
	if made := taken - h.Age; !e.some {
		*e = ewma{float64(h.Latency), made, made, true}
	} else if made > e.last {
		e.observe(h.Latency, max(made, e.at), tau)
		e.last = made
	}
	e.observe(0, taken, tau)
}

// observe takes in a latency at a time that is not before the last one.
func (e *ewma) observe(latency, at, tau time.Duration) {
	keep := math.Exp(-float64(at-e.at) / float64(tau))
	e.cost = max(float64(latency), e.cost*keep+float64(latency)*(1-keep))
	e.at = at
}

type peakEWMA struct {
	candidates
	draw int
	cost []float64
}

func (p *peakEWMA) Pick(f Flow, _ time.Duration) Choice {
	i := p.cheapest(f, p.draw, math.Inf(1), p)
	if i == p.home {
		return Choice{}
	}
	return Choice{Do: Send, Host: i}
}

// unknownCost, in nanoseconds, is above all latencies: a host that has requests and
// no latency yet is the last choice, until its first request is answered.
const unknownCost = math.MaxInt64 >> 16

// score is the load in the source's words.
func (p *peakEWMA) score(i int) float64 {
	flying := float64(p.hosts[i].inFlight())
	if p.cost[i] == 0 && flying > 0 {
		return unknownCost + flying
	}
	return p.cost[i] * (flying + 1)
}
