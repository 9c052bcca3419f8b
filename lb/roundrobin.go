package lb

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"
)

// RoundRobin gives every eligible host its turn, the own host included, as often
// as its weight says and spread evenly: with weights 2, 1, 1 the turns are
// a, b, c, a and again. The turn is kept over new snapshots; each chooser starts
// at its own place, so that choosers do not march in step. Use it by pointer;
// services that share one share its turns.
//
// Source: weighted round robin as stride scheduling (Waldspurger and Weihl,
// MIT/LCS/TM-528, 1995).
//
// It wins when connections are short and alike and nothing is known of load: it
// needs no reports beyond who is there. It loses as soon as connections differ in
// length, since it does not see that a host is full, and it redirects all but one
// connection in n.
type RoundRobin struct {
	turn atomic.Uint64
}

// maxTurns bounds the schedule when weights have no useful common divisor: each
// host's share is then right to about one part in 4096.
const maxTurns = 4096

// Build implements [Policy].
func (p *RoundRobin) Build(s *Snapshot) Picker {
	return p.picker(s, schedule(s.Hosts, ready(s)))
}

// picker hands out the turns of order, which is one round.
func (p *RoundRobin) picker(s *Snapshot, order []int32) Picker {
	r := &roundRobin{turn: &p.turn, self: s.Self, order: order}
	if s.Self >= 0 && len(order) > 0 {
		r.start = uint64(len(order) * s.Self / len(s.Hosts))
	}
	return r
}

type roundRobin struct {
	turn  *atomic.Uint64
	start uint64
	self  int
	order []int32 // one round: indexes of hosts, each as often as its weight says
}

func (r *roundRobin) Pick(Flow, time.Duration) Choice {
	if len(r.order) == 0 {
		return Choice{}
	}
	t := r.turn.Add(1) - 1 + r.start
	return to(int(r.order[t%uint64(len(r.order))]), r.self)
}

// schedule spreads one round: the k-th of a host's w turns is due at (k+1/2)/w of
// the round.
func schedule(hosts []Host, who []int32) []int32 {
	type turn struct {
		host      int32
		num, span int64 // due at num/span
	}
	var round []turn
	for i, w := range turns(hosts, who) {
		for k := range w {
			round = append(round, turn{who[i], 2*k + 1, 2 * w})
		}
	}
	slices.SortStableFunc(round, func(a, b turn) int {
		return cmp.Compare(a.num*b.span, b.num*a.span)
	})
	order := make([]int32, len(round))
	for i := range round {
		order[i] = round[i].host
	}
	return order
}

// turns returns how many turns each host has in a round: the weights without
// their common divisor, scaled down where they would make more than maxTurns.
func turns(hosts []Host, who []int32) []int64 {
	var divisor, sum int64
	for _, i := range who {
		divisor = gcd(divisor, int64(hosts[i].Weight))
		sum += int64(hosts[i].Weight)
	}
	n := make([]int64, len(who))
	for k, i := range who {
		n[k] = int64(hosts[i].Weight) / divisor
		if sum/divisor > maxTurns {
			n[k] = max(1, int64(hosts[i].Weight)*maxTurns/sum)
		}
	}
	return n
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
