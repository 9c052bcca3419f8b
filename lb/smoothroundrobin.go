package lb

import (
	"slices"
	"sync"
)

// SmoothRoundRobin is [RoundRobin] with the turns in the order of nginx: at each
// turn every host gains its weight, the host with the most has the turn and pays
// the sum of all weights. With weights 5, 1, 1 the turns are a, a, b, a, c, a, a.
// Use it by pointer; services that share one share its turns.
//
// Source: Sysoev, "Upstream: smooth weighted round-robin balancing", nginx change
// 52327e0627f4, 2012.
//
// It wins and loses where RoundRobin does. Between the two, this one keeps a small
// host's turns off the ends of a round; the other one's rounds are cheaper to
// make, since this one's take time in proportion to turns times hosts. They are
// made again only when hosts or weights change.
type SmoothRoundRobin struct {
	RoundRobin
	mu    sync.Mutex
	last  []int64 // the turns that round was made from
	round []int32 // places in the list of hosts
}

// Build implements [Policy].
func (p *SmoothRoundRobin) Build(s *Snapshot) Picker {
	all := ready(s)
	round := p.smooth(turns(s.Hosts, all))
	order := make([]int32, len(round))
	for t, k := range round {
		order[t] = all[k]
	}
	return p.picker(s, order)
}

func (p *SmoothRoundRobin) smooth(turns []int64) []int32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Equal(turns, p.last) {
		p.last, p.round = turns, smoothRound(turns)
	}
	return p.round
}

func smoothRound(turns []int64) []int32 {
	sum := int64(0)
	for _, n := range turns {
		sum += n
	}
	round, credit := make([]int32, sum), make([]int64, len(turns))
	for t := range round {
		best := 0
		for k, n := range turns {
			if credit[k] += n; credit[k] > credit[best] {
				best = k
			}
		}
		credit[best] -= sum
		round[t] = int32(best)
	}
	return round
}
