package lb

import (
	"math"
	"math/bits"
	"slices"
)

// torus finds the nearest of many sites on a square of 2^32 by 2^32 whose opposite
// sides meet. Coordinates are whole numbers, so all choosers agree whatever their
// processor, and differences wrap round by themselves. A grid of several cells
// per site lists for each cell the few sites that can be nearest to a point in it.
type torus struct {
	// sites are in the order of the cells that they are in, row by row, so that
	// neighbours in a row are neighbours in memory.
	sites []spot
	first []int32 // of a cell: its first site; one more at the end
	m     int     // cells in a row, and rows: a power of two
	shift int     // of a coordinate, to its column or row
	near  []listed
	list  []int32 // of a cell: where its list begins in near; one more at the end
}

type spot struct{ x, y uint32 }

type listed struct {
	spot
	site int32
}

// newTorus places each host at that many sites; sizes says whether to measure
// their regions.
func newTorus(m members, points int, sizes bool) regions {
	var sites []spot
	var owner []int32
	for _, h := range m.list {
		n := numbers(h.id)
		for range points {
			sites, owner = append(sites, spotOf(n.next())), append(owner, h.host)
		}
	}
	t := &torus{sites: make([]spot, len(sites)), shift: 32 - columns(len(sites))}
	t.m = 1 << (32 - t.shift)
	g := regions{space: t, owner: make([]int32, len(sites))}
	next := t.count(sites)
	for i, s := range sites {
		c := t.cell(s)
		t.sites[next[c]], g.owner[next[c]] = s, owner[i]
		next[c]++
	}
	if len(sites) > 0 {
		t.lists()
	}
	if sizes {
		for i := range t.sites {
			g.size = append(g.size, t.area(i))
		}
	}
	return g
}

// columns is how many cells there are in a row, as a power of two: so many that
// there are four cells per site, or sixteen as long as their index of four bytes
// each fits a cache. Then most lists have but one site.
func columns(sites int) int {
	root := math.Sqrt(float64(sites))
	return bits.Len(uint(max(1, 2*root, min(4*root, 256))) - 1)
}

// spotOf is the spot of a random number.
func spotOf(p uint64) spot { return spot{uint32(p >> 32), uint32(p)} }

// count sets first and returns a copy of it.
func (t *torus) count(sites []spot) []int32 {
	t.first = make([]int32, t.m*t.m+1)
	for _, s := range sites {
		t.first[t.cell(s)+1]++
	}
	for c := range t.first[1:] {
		t.first[c+1] += t.first[c]
	}
	return append([]int32(nil), t.first...)
}

func (t *torus) cell(s spot) int { return t.column(s.y)*t.m + t.column(s.x) }

func (t *torus) column(x uint32) int { return int(x >> t.shift) }

// width of a cell.
func (t *torus) width() uint64 { return 1 << t.shift }

// nearest returns the site that is nearest to the point p.
func (t *torus) nearest(p uint64) int {
	to := spotOf(p)
	c := t.cell(to)
	list := t.near[t.list[c]:t.list[c+1]]
	best := list[0]
	if len(list) > 1 {
		dist := best.distance(to)
		for _, s := range list[1:] {
			if d := s.distance(to); d < dist {
				best, dist = s, d
			}
		}
	}
	return int(best.site)
}

// distance is squared, the shorter way round.
func (s spot) distance(to spot) uint64 {
	dx, dy := int64(int32(s.x-to.x)), int64(int32(s.y-to.y))
	return uint64(dx*dx + dy*dy)
}

// lists fills near: for each cell those of the sites around it that no other one
// beats everywhere in the cell.
func (t *torus) lists() {
	var around []listed
	for y := range t.m {
		for x := range t.m {
			t.list = append(t.list, int32(len(t.near)))
			low, high := spot{t.edge(x), t.edge(y)}, spot{t.edge(x+1) - 1, t.edge(y+1) - 1}
			around = t.reachable(low, high, around[:0])
			for i := range around {
				if !slices.ContainsFunc(around, func(a listed) bool { return a.beats(&around[i], low, high) }) {
					t.near = append(t.near, around[i])
				}
			}
		}
	}
	t.list = append(t.list, int32(len(t.near)))
}

// edge is the first coordinate of a column; the one after the last is the first again.
func (t *torus) edge(column int) uint32 { return uint32(column << t.shift) }

// reachable lists the sites that may be nearest to a point in a cell: where the
// nearest one to the cell's middle is at most dist away, they are within dist plus
// twice the way from the middle to a corner.
func (t *torus) reachable(low, high spot, list []listed) []listed {
	middle := spot{low.x + (high.x-low.x)/2, low.y + (high.y-low.y)/2}
	corner := math.Sqrt(float64(middle.distance(high)))
	for r := 2; ; r += 2 {
		list = t.around(middle, r, list[:0])
		least := uint64(math.MaxUint64)
		for _, s := range list {
			least = min(least, s.distance(middle))
		}
		radius := math.Sqrt(float64(least)) + 2*corner + 2
		if 2*r+1 >= t.m || radius <= float64(r)*float64(t.width()) {
			return slices.DeleteFunc(list, func(s listed) bool {
				return math.Sqrt(float64(s.distance(middle))) > radius
			})
		}
	}
}

// around lists the sites in the square of cells that reaches r cells from at's own.
func (t *torus) around(at spot, r int, list []listed) []listed {
	if 2*r+1 >= t.m {
		return t.append(list, 0, int32(len(t.sites)))
	}
	left, right := t.column(at.x)-r, t.column(at.x)+r+1
	for y := t.column(at.y) - r; y <= t.column(at.y)+r; y++ {
		row := (y + t.m) % t.m * t.m
		list = t.append(list, t.first[row+max(left, 0)], t.first[row+min(right, t.m)])
		if left < 0 {
			list = t.append(list, t.first[row+left+t.m], t.first[row+t.m])
		}
		if right > t.m {
			list = t.append(list, t.first[row], t.first[row+right-t.m])
		}
	}
	return list
}

func (t *torus) append(list []listed, from, until int32) []listed {
	for i := from; i < until; i++ {
		list = append(list, listed{t.sites[i], i})
	}
	return list
}

// beats reports whether s is nearer than o to all corners of a cell, and so to all
// its points: those where it is nearer are a half plane. Where sites are so far that
// going round the other way might be nearer to some, it says no.
func (s *listed) beats(o *listed, low, high spot) bool {
	const far = 1 << 29
	for _, corner := range [...]spot{low, {high.x, low.y}, {low.x, high.y}, high} {
		mine, theirs := s.distance(corner), o.distance(corner)
		if mine >= theirs || theirs > far*far {
			return false
		}
	}
	return true
}

// area returns the size of a site's region, of 2^64: a Voronoi cell, cut out of
// the whole square by the bisectors towards the sites around, from the inside out,
// until those that are left are too far away to cut.
func (t *torus) area(site int) uint64 {
	at, p := t.sites[site], square()
	for r := 0; ; r++ {
		for y := -r; y <= r; y++ {
			step := max(2*r, 1)
			if y == -r || y == r {
				step = 1
			}
			for x := -r; x <= r; x += step {
				p = t.cut(p, at, x, y)
			}
		}
		if float64(r)*float64(t.width()) >= 2*p.reach() {
			return uint64(min(p.area(), math.Nextafter(1<<64, 0)))
		}
	}
}

// cut cuts p by the sites of the cell that is x columns and y rows from the one of
// at. Going round the torus it meets images of the same sites, as it must.
func (t *torus) cut(p polygon, at spot, x, y int) polygon {
	x, y = x+t.column(at.x), y+t.column(at.y)
	turnsX, turnsY := floorDiv(x, t.m), floorDiv(y, t.m)
	cell := (y-turnsY*t.m)*t.m + x - turnsX*t.m
	for _, s := range t.sites[t.first[cell]:t.first[cell+1]] {
		towards := vector{
			float64(int64(s.x) - int64(at.x) + int64(turnsX)<<32),
			float64(int64(s.y) - int64(at.y) + int64(turnsY)<<32),
		}
		if towards != (vector{}) {
			p = p.clip(towards)
		}
	}
	return p
}

func floorDiv(a, b int) int {
	q := a / b
	if q*b > a {
		q--
	}
	return q
}
