package lb

import (
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// slowAffinity is the definition: for each of the key's d random points the host
// next to it that is new, on a ring that is searched in full; then the choice.
func slowAffinity(s *Snapshot, d, threshold int, key uint64) (first int, lighter []int) {
	points, of := draws(key), []int{}
	for range d {
		host, ahead, p := -1, uint64(0), points.next()
		for i, h := range s.Hosts {
			n := numbers(h.ID)
			for range affinityPoints {
				way := n.next() - p
				if h.Eligible() && !slices.Contains(of, i) && (host < 0 || way < ahead) {
					host, ahead = i, way
				}
			}
		}
		of = append(of, host)
	}
	load := func(i, less int) float64 {
		return float64(s.Hosts[i].Estimate()+1-int64(less)) / float64(s.Hosts[i].Weight)
	}
	for _, i := range of[1:] {
		if load(i, 0) < load(of[0], threshold) {
			lighter = append(lighter, i)
		}
	}
	least := 1e300
	for _, i := range lighter {
		least = min(least, load(i, 0))
	}
	return of[0], slices.DeleteFunc(lighter, func(i int) bool { return load(i, 0) > least })
}

func TestAffinityAgainstOracle(t *testing.T) {
	rnd := seeded(70)
	for range 150 {
		s := crowd(4 + rnd.IntN(5))
		for i := range s.Hosts {
			s.Hosts[i].Conns = uint32(rnd.IntN(5))
		}
		s.Hosts[0].Flags = Draining
		d, threshold := 1+rnd.IntN(3), rnd.IntN(2)
		picker := (&Affinity{D: d, Threshold: threshold, By: ByClient}).Build(s)
		for range 10 {
			f := flow(rnd)
			first, lighter := slowAffinity(s, d, threshold, f.Client)
			got := served(t, s, picker.Pick(f, 0))
			if len(lighter) == 0 {
				require.Equal(t, first, got)
			} else {
				require.Contains(t, lighter, got)
			}
		}
	}
}

// A client keeps to its candidates whatever the load, and to the first of them as
// long as the loads are equal; they are distinct even where luck is short.
func TestAffinityKeepsToItsCandidates(t *testing.T) {
	rnd := seeded(71)
	for n := 1; n < 6; n++ {
		s := crowd(n)
		p := &Affinity{D: 3, By: ByClient}
		for range 200 {
			f := flow(rnd)
			of := p.Build(s).(Finder).Candidates(nil, f)
			require.Len(t, of, min(3, n))
			require.Equal(t, of[0], p.Build(s).Pick(f, 0).Host)
			loaded := crowd(n)
			for i := range loaded.Hosts {
				loaded.Hosts[i].Conns = rnd.Uint32N(9)
			}
			f.Conn = rnd.Uint64()
			picker := p.Build(loaded)
			require.Equal(t, of, picker.(Finder).Candidates(nil, f))
			require.Contains(t, of, picker.Pick(f, 0).Host)
		}
	}
}

// If a host goes, keys that did not have it keep their candidates, and the others
// keep the one they had beside it.
func TestAffinityDisruption(t *testing.T) {
	s, p, rnd := crowd(20), &Affinity{}, seeded(72)
	before, after := p.Build(s).(Finder), p.Build(away(s, 7, Unhealthy)).(Finder)
	for range 5000 {
		f := flow(rnd)
		was, is := before.Candidates(nil, f), after.Candidates(nil, f)
		require.NotContains(t, is, 7)
		for _, i := range was {
			if i != 7 {
				require.Contains(t, is, i)
			}
		}
	}
}

// Balance second: two candidates even out what one leaves at the mercy of keys.
func TestAffinityBalances(t *testing.T) {
	most := func(p Policy) int {
		s, rnd := crowd(10), seeded(73)
		for i := range s.Hosts {
			s.Hosts[i].Live = new(atomic.Int32)
		}
		return fill(p, s, 1000, rnd)
	}
	require.Less(t, most(&Affinity{}), 108)
	require.Greater(t, most(&Affinity{D: 1}), 112)
	require.Less(t, most(&Affinity{Threshold: 5}), 115, "nor does a threshold cost more than itself")
}
