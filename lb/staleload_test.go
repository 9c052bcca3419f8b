package lb

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// boardOf makes levels of equal vessels.
func boardOf(loads ...float64) levels {
	var l levels
	for i, load := range loads {
		l = append(l, level{first: int32(i), hosts: 1, load: load, capacity: 1})
	}
	slices.SortFunc(l, func(a, b level) int { return a.compare(&b) })
	l.sum()
	return l
}

// FIGURES 21.
func TestStaleLoadShares(t *testing.T) {
	for _, tt := range []struct {
		name  string
		loads []float64
		conns float64
		want  []float64
		reach int
	}{
		{"six make all level", []float64{0, 2, 4}, 6, []float64{4. / 6, 2. / 6, 0}, 3},
		{"three reach two", []float64{0, 2, 4}, 3, []float64{2.5 / 3, 0.5 / 3, 0}, 2},
		{"one reaches one", []float64{0, 2, 4}, 1, []float64{1, 0, 0}, 1},
		{"many hide the difference", []float64{0, 2, 4}, 6e9, []float64{1. / 3, 1. / 3, 1. / 3}, 3},
		{"none go to the lowest", []float64{1, 2, 1}, 0, []float64{0.5, 0.5, 0}, 2},
		{"alone", []float64{7}, 3, []float64{1}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := boardOf(tt.loads...)
			require.Equal(t, tt.reach, l.reach(tt.conns))
			for k, want := range tt.want {
				conns := max(tt.conns, fewest)
				require.InDelta(t, want, l[k].share(l.surface(conns))/conns, 1e-6)
			}
		})
	}
}

// pour is the slow way to level vessels: it looks for the level by halving.
func pour(s *Snapshot, all []int, mean, conns float64) (level float64) {
	low, high := 0.0, 1e12
	for range 200 {
		level = (low + high) / 2
		sum := 0.0
		for _, i := range all {
			sum += max(0, level*float64(s.Hosts[i].Weight)/mean-float64(s.Hosts[i].Estimate()))
		}
		if sum < conns {
			low = level
		} else {
			high = level
		}
	}
	return level
}

// poured gives the hosts of a set their shares, by the rule.
func (p StaleLoad) poured(s *Snapshot, of []int, mean float64, age time.Duration) []float64 {
	shares, sum := make([]float64, len(s.Hosts)), 0.0
	capacities := 0.0
	for _, i := range of {
		capacities += float64(s.Hosts[i].Weight) / mean
	}
	for _, i := range of {
		over := map[Interpretation]time.Duration{BasicLI: p.Period, AggressiveLI: age, AgedLI: s.Hosts[i].Age}[p.Rule]
		conns := p.Load * over.Seconds() / p.Service.Seconds() * capacities
		capacity, load := float64(s.Hosts[i].Weight)/mean, float64(s.Hosts[i].Estimate())
		level := pour(s, of, mean, max(conns, 1e-3))
		if p.Rule == AggressiveLI {
			if load/capacity <= level*(1+1e-9) {
				shares[i] = capacity
			}
		} else {
			shares[i] = max(0, level*capacity-load) / max(conns, 1e-3)
		}
		sum += shares[i]
	}
	for _, i := range of {
		shares[i] /= sum
	}
	return shares
}

func (p StaleLoad) slow(s *Snapshot, since time.Duration) odds {
	total, all := among(s, nil, 0), eligiblePeers(s)
	age := time.Duration(0)
	for _, i := range all {
		age += s.Hosts[i].Age / time.Duration(len(all))
	}
	if s.Self >= 0 && s.Hosts[s.Self].Eligible() {
		all = append(all, s.Self)
	}
	if len(all) == 0 {
		return total
	}
	mean := 0.0
	for _, i := range all {
		mean += float64(s.Hosts[i].Weight) / float64(len(all))
	}
	k := p.K
	if k == 0 || k > len(all) {
		k = len(all)
	}
	sets, sum := combinations(all, k), make([]float64, len(total))
	for _, set := range sets {
		for i, share := range p.poured(s, set, mean, age+since) {
			sum[i] += share / float64(len(sets))
		}
	}
	for i := range total {
		if sum[i] < 1e-6 {
			sum[i] = 0
		}
		total[i] = new(big.Rat).SetFrac64(int64(math.Round(sum[i]*1e9)), 1e9)
	}
	return total
}

func TestStaleLoadAgainstOracle(t *testing.T) {
	for _, rule := range []Interpretation{BasicLI, AggressiveLI, AgedLI} {
		for _, k := range []int{0, 1, 2, 3} {
			t.Run(fmt.Sprintf("rule %d of %d", rule, k), func(t *testing.T) {
				rnd := seeded(80)
				for round := range 100 {
					s := somewhere(rnd)
					s.Taken = time.Hour
					weights := uint16(50)
					if round%2 == 0 {
						weights = 3 // then many hosts are alike
					}
					for i := range s.Hosts {
						// Not so many that shares of fractions of a connection decide.
						s.Hosts[i].Conns, s.Hosts[i].Weight = s.Hosts[i].Conns%7, s.Hosts[i].Weight%weights
						if i != s.Self {
							s.Hosts[i].Age = time.Duration(rnd.IntN(5)) * time.Second
						}
					}
					since := time.Duration(rnd.IntN(3)) * 700 * time.Millisecond
					p := StaleLoad{Rule: rule, K: k, Load: 0.9, Service: 2 * time.Second, Period: 3 * time.Second}
					aged := *s
					if rule == AgedLI { // ages grow, those of all in steps, of which the middle counts
						aged.Hosts = append([]Host(nil), s.Hosts...)
						grown := since
						if k == 0 || k >= len(ready(s)) {
							grown = since/(p.Period/8)*(p.Period/8) + p.Period/16
						}
						for i := range aged.Hosts {
							aged.Hosts[i].Age += grown
						}
					}
					want := p.slow(&aged, since)
					picker, got := p.Build(s), make([]int, len(want))
					for range 600 {
						i := served(t, s, picker.Pick(flow(rnd), s.Taken+since))
						if i < 0 {
							i = len(s.Hosts)
						}
						got[i]++
					}
					checkOdds(t, s, want, got)
				}
			})
		}
	}
}

// The lowest alone at first, then the next with it, then all.
func TestStaleLoadAggressiveGoesOn(t *testing.T) {
	s := table(-1, 0, 2, 4)
	s.Taken = time.Hour
	picker := StaleLoad{Rule: AggressiveLI}.Build(s)
	for after, want := range map[time.Duration][]float64{
		0:                       {1, 0, 0},
		600 * time.Millisecond:  {1, 0, 0},                // 1.8 connections have come
		700 * time.Millisecond:  {0.5, 0.5, 0},            // 2.1
		1900 * time.Millisecond: {0.5, 0.5, 0},            // 5.7
		2100 * time.Millisecond: {1. / 3, 1. / 3, 1. / 3}, // 6.3
	} {
		got, rnd := make([]int, 3), seeded(81)
		for range 3000 {
			got[picker.Pick(flow(rnd), s.Taken+after).Host]++
		}
		require.Less(t, chiSquare(got, want), limit(2), "after %v: %v", after, got)
	}
}

// A caller that does not say when the snapshot was taken gets the ages it had then.
func TestStaleLoadWithoutTaken(t *testing.T) {
	s := table(-1, 0, 2, 4)
	picker, rnd := StaleLoad{Rule: AggressiveLI}.Build(s), seeded(82)
	for range 100 {
		require.Equal(t, 0, picker.Pick(flow(rnd), time.Hour).Host)
	}
}
