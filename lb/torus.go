package lb

import "math"

// torus finds the nearest of many sites on a square of 2^32 by 2^32 whose opposite
// sides meet. Coordinates are whole numbers, so all choosers agree whatever their
// processor, and differences wrap round by themselves. Sites are kept in the order
// of a grid of cells that hold about one each, row by row, so that neighbours in a
// row are neighbours in memory.
type torus struct {
	sites []spot
	first []int32 // of a cell: its first site; one more at the end
	m     int     // cells in a row, and rows
}

type spot struct{ x, y uint32 }

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
	t := &torus{sites: make([]spot, len(sites)), m: max(1, int(math.Sqrt(float64(len(sites)))))}
	g := regions{space: t, owner: make([]int32, len(sites))}
	next := t.count(sites)
	for i, s := range sites {
		c := t.cell(s)
		t.sites[next[c]], g.owner[next[c]] = s, owner[i]
		next[c]++
	}
	if sizes {
		for i := range t.sites {
			g.size = append(g.size, t.area(i))
		}
	}
	return g
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

func (t *torus) column(x uint32) int { return int(uint64(x) * uint64(t.m) >> 32) }

// width of a cell; some are wider by one.
func (t *torus) width() uint64 { return 1 << 32 / uint64(t.m) }

// nearest returns the site that is nearest to the point p. It looks at the cells
// around p, more of them until none that it leaves out can hold a nearer one.
func (t *torus) nearest(p uint64) int {
	s := nearest{to: spotOf(p), dist: math.MaxUint64, site: -1}
	for r := 1; ; r++ {
		t.around(r, &s)
		if out := uint64(r) * t.width(); 2*r+1 >= t.m || s.dist <= out*out {
			return s.site
		}
	}
}

type nearest struct {
	to   spot
	dist uint64 // squared
	site int
}

// around looks at the square of cells that reaches r cells from the point's own.
func (t *torus) around(r int, s *nearest) {
	if 2*r+1 >= t.m {
		t.scan(0, len(t.sites), s)
		return
	}
	left, right := t.column(s.to.x)-r, t.column(s.to.x)+r+1
	for y := t.column(s.to.y) - r; y <= t.column(s.to.y)+r; y++ {
		row := (y + t.m) % t.m * t.m
		t.scan(int(t.first[row+max(left, 0)]), int(t.first[row+min(right, t.m)]), s)
		if left < 0 {
			t.scan(int(t.first[row+left+t.m]), int(t.first[row+t.m]), s)
		}
		if right > t.m {
			t.scan(int(t.first[row]), int(t.first[row+right-t.m]), s)
		}
	}
}

func (t *torus) scan(from, until int, s *nearest) {
	for i := from; i < until; i++ {
		dx, dy := int64(int32(t.sites[i].x-s.to.x)), int64(int32(t.sites[i].y-s.to.y))
		if dist := uint64(dx*dx + dy*dy); dist < s.dist {
			s.dist, s.site = dist, i
		}
	}
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
