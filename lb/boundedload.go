package lb

import (
	"math"
	"sync"
	"time"
)

// BoundedLoad is consistent hashing on a [Ring] that passes over hosts which carry
// more than Factor times the average, weights considered: a key goes clockwise to
// the first host that has room. Use it by pointer: it keeps the ring and the
// capacities from one snapshot to the next.
//
// Source: Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded
// Loads", SODA 2018.
//
// The capacity is frozen. Were it computed afresh, then whenever the average moved
// it past a whole number every host's limit would change at once, and keys far
// from any change would move: with one point per host and 10 connections each, 99
// hosts' worth for one that left. It stays until it amounts to less than half the
// allowance above the average, or to more than all of it.
//
// It wins where keys shall stay but some are popular: at Factor 1.25 a key meets
// 1.003 hosts on average, and the fullest host is known. It loses to [Affinity],
// which evens out better and can say where a key may be, and where counts are old
// the bound is.
type BoundedLoad struct {
	// Factor is how many times the average, by weight, a host may carry before it
	// is passed over. 0 means 1.25; what is less than 1.01 counts as 1.01.
	Factor float64
	// Points is that of [Ring]. 0 means 100.
	Points int
	// By is what a connection's key is. Default ByConn.
	By Key

	kept     kept[*ring]
	mu       sync.Mutex
	capacity float64 // per weight, frozen; 0 at first
}

const (
	boundedFactor    = 1.25
	minBoundedFactor = 1.01
)

// Build implements [Policy].
func (p *BoundedLoad) Build(s *Snapshot) Picker {
	points, m := pointsOr(p.Points, ringPoints), membersOf(s)
	r := p.kept.get(m, func(m members) *ring { return newRing(m, points) })
	conns, weight := int64(0), int64(0)
	for _, h := range m.list {
		conns += s.Hosts[h.host].Estimate()
		weight += int64(h.weight)
	}
	b := &boundedLoad{ring: r, hosts: s.Hosts, by: p.By, self: s.Self}
	if weight > 0 {
		b.capacity = p.freeze(float64(conns+1) / float64(weight))
	}
	return b
}

// freeze returns the capacity per weight for an average of that many connections,
// the one to be placed included: the one there is as long as it will do.
func (p *BoundedLoad) freeze(average float64) float64 {
	factor := p.Factor
	if factor == 0 {
		factor = boundedFactor
	}
	slack := max(factor, minBoundedFactor) - 1
	p.mu.Lock()
	defer p.mu.Unlock()
	switch has := p.capacity/average - 1; {
	case has < slack/2:
		p.capacity = (1 + slack) * average
	case has > slack*(1+rounding):
		p.capacity = (1 + slack*3/4) * average
	}
	return p.capacity
}

// rounding is what computing with fractions may add to a whole number.
const rounding = 1e-9

type boundedLoad struct {
	ring     *ring
	hosts    []Host
	capacity float64 // per weight
	by       Key
	self     int
}

// maxWalk bounds the points that a key passes when all are full, which happens
// when many connections come between two snapshots. The lightest host met has it.
const maxWalk = 1024

func (p *boundedLoad) Pick(f Flow, _ time.Duration) Choice {
	if len(p.ring.points) == 0 {
		return Choice{}
	}
	d, best := draws(p.by.of(f)), lightest{host: -1}
	at := p.ring.next(d.next())
	for range min(maxWalk, len(p.ring.points)) {
		i := int(p.ring.points[at].owner)
		h := &p.hosts[i]
		if h.Estimate() < p.limit(h) {
			return to(i, p.self)
		}
		if i != best.host {
			best.offer(i, h, &d)
		}
		if at++; at == len(p.ring.points) {
			at = 0
		}
	}
	return to(best.host, p.self)
}

// limit is the number of connections that the host may carry.
func (p *boundedLoad) limit(h *Host) int64 {
	return int64(math.Ceil(p.capacity * float64(h.Weight) * (1 - rounding)))
}

func (p *boundedLoad) key(f Flow) uint64 { return p.by.of(f) }
