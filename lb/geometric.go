package lb

import (
	"math/bits"
	"time"
)

// Geometric places the hosts at random in a space, where each owns the region that
// is nearest to it. A key draws D points, and of the hosts that own them the
// lightest serves. The own host has no precedence. Use it by pointer: it keeps the
// regions until hosts change.
//
// Source: Byers, Considine and Mitzenmacher, "Geometric Generalizations of the
// Power of Two Choices", SPAA 2004: although the regions are of very different
// sizes, with n connections on n hosts the fullest has log log n / log D + O(1),
// as if the choices were uniform.
//
// It wins where a key's hosts must follow from the key, as with [Affinity], and
// hosts are many: one point per host does, where a single choice needs log n of
// them to be worse. Ties to the smaller region are best, then left, then random,
// then the larger.
//
// It loses with few hosts and many connections, where the sizes of the regions
// set the load, not the choices: with ten hosts that have 100 each on average the
// fullest has 156 at D 2, where uniform choices give 101. Take a hundred Points
// then, or Affinity.
type Geometric struct {
	// Space is where the hosts are. Default OnRing.
	Space Space
	// D is the number of points drawn; 0 means 2. More than MaxD counts as MaxD.
	D int
	// Ties says which of the lightest hosts serves. Default ToSmaller.
	Ties Ties
	// Points is how many places a host has; 0 means 1. Weights do not change it:
	// they count when loads are compared.
	Points int
	// By is what a connection's key is. Default ByConn.
	By Key

	kept kept[regions]
}

// A Space is where [Geometric] places the hosts.
type Space uint8

const (
	// OnRing is a circle; a point belongs to the host that comes next, clockwise.
	OnRing Space = iota
	// OnTorus is a square whose opposite sides meet; a point belongs to the host
	// that is nearest.
	OnTorus
)

// Ties says which host of several lightest ones serves.
type Ties uint8

const (
	// ToSmaller takes the one whose region is smaller, which is the less likely to
	// be drawn.
	ToSmaller Ties = iota
	// ToLarger takes the one whose region is larger.
	ToLarger
	// ToLeft draws the i-th point from the i-th part of the space and takes the
	// first (Vöcking, "How Asymmetry Helps Load Balancing", J. ACM 50(4), 2003).
	ToLeft
	// ToAny takes a random one.
	ToAny
)

// regions knows which host owns a point of a space.
type regions struct {
	space interface {
		nearest(p uint64) int // the site of a point
	}
	owner []int32  // of a site
	size  []uint64 // of a site's region, of 2^64; nil if nobody asks
}

// Build implements [Policy].
func (p *Geometric) Build(s *Snapshot) Picker {
	m := membersOf(s)
	for i := range m.list {
		m.list[i].weight = 1 // the places do not depend on it
	}
	m.heaviest = 1
	d := p.D
	if d <= 0 {
		d = 2
	}
	return &geometric{
		regions: p.kept.get(m, p.regions), hosts: s.Hosts,
		d: min(d, MaxD), ties: p.Ties, by: p.By, self: s.Self,
	}
}

func (p *Geometric) regions(m members) regions {
	points := pointsOr(p.Points, 1)
	if p.Space == OnTorus {
		return newTorus(m, points, p.Ties <= ToLarger)
	}
	return newRing(m, points).regions()
}

func (r *ring) regions() regions {
	g := regions{space: r}
	for i := range r.points {
		g.owner = append(g.owner, r.points[i].owner)
		g.size = append(g.size, r.arc(i))
	}
	return g
}

func (r *ring) nearest(p uint64) int { return r.next(p) }

type geometric struct {
	regions
	hosts []Host
	d     int
	ties  Ties
	by    Key
	self  int
}

func (p *geometric) Pick(f Flow, _ time.Duration) Choice {
	var room [MaxD]int32
	d, best, at := draws(f.Conn^1), lightest{host: -1}, int32(0) // ^1: not the points' draws
	sites := p.sites(f, &room)
	var counts [MaxD]int64 // see lightest.offerAll
	for k, site := range sites {
		counts[k] = p.hosts[p.owner[site]].Estimate()
	}
	for k, site := range sites {
		i := int(p.owner[site])
		load, weight := counts[k]+1, int64(p.hosts[i].Weight)
		switch order := best.order(load, weight); {
		case order < 0:
			best, at = lightest{host: i, load: load, weight: weight, ties: 1}, site
		case order == 0 && p.prefers(site, at, &best, &d):
			best.host, at = i, site
		}
	}
	return to(best.host, p.self)
}

// prefers settles a tie between a site and the one before.
func (p *geometric) prefers(site, before int32, best *lightest, d *draws) bool {
	switch p.ties {
	case ToSmaller:
		return p.size[site] < p.size[before]
	case ToLarger:
		return p.size[site] > p.size[before]
	case ToLeft:
		return false
	}
	best.ties++
	return d.below(best.ties) == 0
}

// sites lists the sites that own the flow's points, of each host the first one.
func (p *geometric) sites(f Flow, room *[MaxD]int32) []int32 {
	of := room[:0]
	if len(p.owner) == 0 {
		return of
	}
	d := draws(p.by.of(f))
	for i := range p.d {
		of = p.appendNew(of, int32(p.space.nearest(p.point(i, d.next()))))
	}
	return of
}

// point makes the i-th of the flow's points of a random number.
func (p *geometric) point(i int, x uint64) uint64 {
	if p.ties != ToLeft {
		return x
	}
	part := ^uint64(0) / uint64(p.d)
	in, _ := bits.Mul64(x, part)
	return uint64(i)*part + in
}

func (p *geometric) appendNew(of []int32, site int32) []int32 {
	for _, s := range of {
		if p.owner[s] == p.owner[site] {
			return of
		}
	}
	return append(of, site)
}

// Candidates implements [Finder].
func (p *geometric) Candidates(dst []int, f Flow) []int {
	var room [MaxD]int32
	for _, site := range p.sites(f, &room) {
		dst = append(dst, int(p.owner[site]))
	}
	return dst
}

func (p *geometric) key(f Flow) uint64 { return p.by.of(f) }
