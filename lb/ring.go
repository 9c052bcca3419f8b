package lb

import (
	"cmp"
	"math/bits"
	"slices"
)

// Ring is consistent hashing: each host has a number of points on a circle, and a
// key belongs to the host whose point comes next, clockwise. Use it by pointer:
// it keeps its points until hosts or weights change.
//
// Source: Karger and others, "Consistent Hashing and Random Trees", STOC 1997;
// several points per host: Stoica and others, "Chord", SIGCOMM 2001.
//
// It wins where keys shall stay when hosts come and go, at a constant cost: if a
// host goes exactly its keys move. [BoundedLoad], [Geometric] and [Affinity] build
// on it.
//
// It loses to [Maglev] in evenness: with a thousand hosts the fullest has 6.8
// times the average at 1 point per host, 2.4 at 10, 1.4 at 100 and 1.1 at 1000;
// and to policies that know loads where keys are unequally popular.
type Ring struct {
	// Points is the number of points of a host that has the greatest weight; the
	// others have fewer in proportion, at least one. 0 means 100. A point has
	// about 16 bytes.
	Points int
	// By is what a connection's key is. Default ByConn.
	By Key

	kept kept[*ring]
}

// ringPoints keeps the standard deviation of hosts' shares at 10 %.
const ringPoints = 100

// maxPoints bounds the points of a host: more of them even out nothing visible.
const maxPoints = 10_000

// Build implements [Policy].
func (p *Ring) Build(s *Snapshot) Picker {
	points := pointsOr(p.Points, ringPoints)
	r := p.kept.get(membersOf(s), func(m members) *ring { return newRing(m, points) })
	return &placed{r, p.By, s.Self}
}

func pointsOr(points, def int) int {
	if points <= 0 {
		return def
	}
	return min(points, maxPoints)
}

// ring is a circle of 2^64 places, with points sorted by place. As points are
// spread evenly, a key's successor is found by its high bits: first has for each
// of at least as many buckets as there are points the first point in or after it,
// and at last their number.
// Four times as many spare most keys a second look, as long as they fit a cache
// (2^16 of them have 256 KiB).
type ring struct {
	points []point
	first  []int32
	shift  int
}

type point struct {
	place uint64
	owner int32
}

func newRing(m members, points int) *ring {
	r := new(ring)
	for _, h := range m.list {
		n := numbers(h.id)
		for range pointsOf(h.weight, m.heaviest, points) {
			r.points = append(r.points, point{n.next(), h.host})
		}
	}
	r.index()
	return r
}

// pointsOf returns how many points a host has, rounded to the nearest.
func pointsOf(weight, heaviest uint16, points int) int {
	return max(1, (2*int(weight)*points+int(heaviest))/(2*int(heaviest)))
}

// index puts the points into their buckets, and those of each in order.
func (r *ring) index() {
	width := bits.Len(uint(len(r.points)))
	width = max(width, min(width+2, 16))
	r.shift = 64 - width
	r.first = make([]int32, 1<<width+1)
	for i := range r.points {
		r.first[r.points[i].place>>r.shift+1]++
	}
	for b := range r.first[1:] {
		r.first[b+1] += r.first[b]
	}
	next, points := slices.Clone(r.first), make([]point, len(r.points))
	for _, p := range r.points {
		at := &next[p.place>>r.shift]
		points[*at] = p
		*at++
	}
	for b := range r.first[1:] {
		slices.SortFunc(points[r.first[b]:r.first[b+1]], func(a, b point) int {
			return cmp.Or(cmp.Compare(a.place, b.place), cmp.Compare(a.owner, b.owner))
		})
	}
	r.points = points
}

// next returns the point that is at x or comes next, going round. There must be
// one.
func (r *ring) next(x uint64) int {
	i := int(r.first[x>>r.shift])
	for ; i < len(r.points); i++ {
		if r.points[i].place >= x {
			return i
		}
	}
	return 0
}

func (r *ring) place(key uint64) int {
	if len(r.points) == 0 {
		return -1
	}
	return int(r.points[r.next(scramble(key))].owner)
}

// arc is the part of the circle, out of 2^64, that belongs to point i. The only
// point has all of it, which is 0.
func (r *ring) arc(i int) uint64 {
	before := (i + len(r.points) - 1) % len(r.points)
	return r.points[i].place - r.points[before].place
}
