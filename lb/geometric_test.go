package lb

import (
	"cmp"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// named makes n hosts whose places are those of trial.
func named(n, trial int) *Snapshot {
	s := &Snapshot{Self: -1}
	live := make([]atomic.Int32, n)
	for i := range n {
		s.Hosts = append(s.Hosts, Host{ID: fmt.Sprintf("%d/%d", trial, i), Weight: 1, Live: &live[i]})
	}
	return s
}

// fill places n connections and returns the greatest count.
func fill(p Policy, s *Snapshot, n int, rnd *rand.Rand) int {
	picker := p.Build(s)
	for range n {
		s.Hosts[picker.Pick(flow(rnd), 0).Host].Live.Add(1)
	}
	most := int64(0)
	for i := range s.Hosts {
		most = max(most, s.Hosts[i].Estimate())
	}
	return int(most)
}

// slowNearest is the definition of who owns a point: for each host's sites, in
// the order of the hosts, how far they are.
func slowNearest(s *Snapshot, space Space, points int, p uint64) (host int, site uint64) {
	host, nearest := -1, new(big.Int)
	for i, h := range s.Hosts {
		n := numbers(h.ID)
		for range points {
			at := n.next()
			dist := new(big.Int).SetUint64(at - p)
			if space == OnTorus {
				x, y := gap(at>>32, p>>32), gap(at&math.MaxUint32, p&math.MaxUint32)
				dist = x.Mul(x, x).Add(x, y.Mul(y, y))
			}
			if h.Eligible() && (host < 0 || dist.Cmp(nearest) < 0) {
				host, site, nearest = i, at, dist
			}
		}
	}
	return host, site
}

// gap is the shorter way from a to b on a circle of 2^32.
func gap(a, b uint64) *big.Int {
	d := int64(a) - int64(b)
	d = max(d, -d)
	return big.NewInt(min(d, 1<<32-d))
}

func TestNearestAgainstOracle(t *testing.T) {
	for _, space := range []Space{OnRing, OnTorus} {
		for _, n := range []int{1, 2, 3, 4, 5, 9, 17, 100, 1000} {
			for _, points := range []int{1, 3} {
				s := named(n, int(space))
				g := (&Geometric{Space: space, Points: points}).regions(membersOf(s))
				rnd := seeded(50)
				for range 300 {
					p := rnd.Uint64()
					want, _ := slowNearest(s, space, points, p)
					require.EqualValues(t, want, g.owner[g.space.nearest(p)], "space %d, %d hosts", space, n)
				}
			}
		}
	}
}

// Regions fill the space, and points meet them as often as their size says.
func TestRegionSizes(t *testing.T) {
	for _, space := range []Space{OnRing, OnTorus} {
		for _, n := range []int{2, 3, 5, 30, 300} {
			for trial := range 5 {
				g := (&Geometric{Space: space}).regions(membersOf(named(n, trial)))
				want, sum := make([]float64, n), 0.0
				for i, size := range g.size {
					want[i] = float64(size) / (1 << 64)
					sum += want[i]
				}
				require.InDelta(t, 1, sum, 1e-9, "space %d, %d hosts", space, n)
				got, rnd := make([]int, n), seeded(51)
				for range 200 * n {
					got[g.space.nearest(rnd.Uint64())]++
				}
				require.Less(t, chiSquare(got, want), limit(n-1), "space %d, %d hosts", space, n)
			}
		}
	}
}

// slowGeometric gives the hosts that may have the flow, by the definition.
func slowGeometric(p *Geometric, s *Snapshot, f Flow) []int {
	g := (&Geometric{Space: p.Space}).regions(membersOf(s)) // ToLeft keeps no sizes
	type found struct {
		host int
		load float64
		size uint64
	}
	var of []found
	d := draws(p.By.of(f))
	for i := range p.D {
		x := d.next()
		if p.Ties == ToLeft {
			part := new(big.Int).SetUint64(math.MaxUint64 / uint64(p.D))
			in := new(big.Int).Mul(new(big.Int).SetUint64(x), part)
			x = in.Rsh(in, 64).Add(in, part.Mul(part, big.NewInt(int64(i)))).Uint64()
		}
		host, _ := slowNearest(s, p.Space, 1, x)
		h := &s.Hosts[host]
		of = append(of, found{host, float64(h.Estimate()+1) / float64(h.Weight), g.size[slices.Index(g.owner, int32(host))]})
	}
	least := slices.MinFunc(of, func(a, b found) int { return cmp.Compare(a.load, b.load) }).load
	of = slices.DeleteFunc(of, func(a found) bool { return a.load > least })
	switch p.Ties {
	case ToSmaller:
		return []int{slices.MinFunc(of, func(a, b found) int { return cmp.Compare(a.size, b.size) }).host}
	case ToLarger:
		return []int{slices.MaxFunc(of, func(a, b found) int { return cmp.Compare(a.size, b.size) }).host}
	case ToLeft:
		return []int{of[0].host}
	}
	var hosts []int
	for _, a := range of {
		hosts = append(hosts, a.host)
	}
	return hosts
}

func TestGeometricAgainstOracle(t *testing.T) {
	for _, space := range []Space{OnRing, OnTorus} {
		for _, ties := range []Ties{ToSmaller, ToLarger, ToLeft, ToAny} {
			t.Run(fmt.Sprint(space, ties), func(t *testing.T) {
				rnd := seeded(52)
				for range 100 {
					s := somewhere(rnd)
					p := &Geometric{Space: space, Ties: ties, D: 1 + rnd.IntN(4), By: Key(rnd.IntN(2))}
					picker := p.Build(s)
					for range 10 {
						f := flow(rnd)
						if len(membersOf(s).list) == 0 {
							require.Zero(t, picker.Pick(f, 0))
							continue
						}
						require.Contains(t, slowGeometric(p, s, f), served(t, s, picker.Pick(f, 0)))
					}
				}
			})
		}
	}
}

// Two points of three are owned by one host: it is one host, not two in three.
func TestGeometricTiesAreBetweenHosts(t *testing.T) {
	s := named(2, 3)
	p, rnd := &Geometric{D: 4, Ties: ToAny}, seeded(53)
	picker, got := p.Build(s), []int{0, 0}
	for range 20_000 {
		f := flow(rnd)
		if of := picker.(Finder).Candidates(nil, f); len(of) == 2 {
			got[picker.Pick(f, 0).Host]++
		}
	}
	require.Less(t, chiSquare(got, uniform(2)), limit(1), "%v", got)
}

// FIGURES 11: share of trials in which the fullest of 256 hosts has 3 of 256
// connections, by the rule for ties.
func TestGeometricTieRules(t *testing.T) {
	const trials = 1000
	for ties, want := range map[Ties]float64{ToSmaller: 0.75, ToLeft: 0.53, ToAny: 0.26, ToLarger: 0.05} {
		three, rnd := 0, seeded(54)
		for trial := range trials {
			if fill(&Geometric{Ties: ties}, named(256, trial), 256, rnd) == 3 {
				three++
			}
		}
		require.InDelta(t, want, float64(three)/trials, 0.05, "ties %d", ties)
	}
}

// FIGURES 2.2: mean of the greatest count, n connections on n hosts.
func TestGeometricMaximum(t *testing.T) {
	for _, tt := range []struct {
		space    Space
		d, n     int
		trials   int
		mean, by float64
	}{
		{OnRing, 1, 256, 400, 8.30, 0.35},
		{OnRing, 2, 4096, 40, 4.12, 0.15},
		{OnRing, 3, 4096, 40, 3.10, 0.15},
		{OnTorus, 1, 256, 150, 5.82, 0.3},
		{OnTorus, 2, 256, 150, 3.04, 0.06},
		{OnTorus, 3, 256, 150, 2.53, 0.13},
	} {
		sum, rnd := 0, seeded(55)
		for trial := range tt.trials {
			sum += fill(&Geometric{Space: tt.space, D: tt.d, Ties: ToAny}, named(tt.n, trial), tt.n, rnd)
		}
		require.InDelta(t, tt.mean, float64(sum)/float64(tt.trials), tt.by, "%+v", tt)
	}
}

// FIGURES 13: the longest arc of n is H_n/n.
func TestLongestArc(t *testing.T) {
	const n, rings = 256, 400
	sum := 0.0
	for trial := range rings {
		g := newRing(membersOf(named(n, trial)), 1).regions()
		sum += n * float64(slices.Max(g.size)) / (1 << 64)
	}
	require.InDelta(t, 6.12, sum/rings, 0.25)
}

// FIGURES 2.2: the maximum with few hosts and many connections, and what points do.
func TestGeometricFewHosts(t *testing.T) {
	for points, want := range map[int][2]float64{1: {130, 185}, 100: {100, 106}} {
		sum, rnd := 0, seeded(56)
		for trial := range 100 {
			sum += fill(&Geometric{Points: points}, named(10, trial), 1000, rnd)
		}
		mean := float64(sum) / 100
		require.True(t, mean > want[0] && mean < want[1], "%d points: %.1f", points, mean)
	}
}
