package lb

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// rated is the policies that rate hosts, the long way: of each equally likely draw
// the peers of least score share, unless the own host scores no more. An infinite
// score is no host; without any, the index full answers, or if negative the own host.
func rated(s *Snapshot, draw int, full int, score func(i int) float64) odds {
	peers := eligiblePeers(s)
	if full < 0 {
		full = len(s.Hosts)
		if s.Self >= 0 {
			full = s.Self
		}
	}
	home := s.Self >= 0 && s.Hosts[s.Self].Eligible()
	if draw = min(draw, len(peers)+1); home || draw > len(peers) {
		draw--
	}
	sets := combinations(peers, draw)
	total := make(odds, len(s.Hosts)+1)
	for i := range total {
		total[i] = new(big.Rat)
	}
	for _, set := range sets {
		best := slices.Clone(set)
		if home {
			best = append(best, s.Self)
		}
		best = slices.DeleteFunc(best, func(i int) bool { return math.IsInf(score(i), 1) })
		if len(best) == 0 {
			best = peers
			if home {
				best = append(slices.Clone(peers), s.Self)
			}
			best = slices.DeleteFunc(slices.Clone(best), func(i int) bool { return math.IsInf(score(i), 1) })
		}
		least := math.Inf(1)
		for _, i := range best {
			least = min(least, score(i))
		}
		best = slices.DeleteFunc(best, func(i int) bool { return score(i) > least })
		if slices.Contains(best, s.Self) {
			best = []int{s.Self}
		}
		if len(best) == 0 {
			best = []int{full}
		}
		for _, i := range best {
			total[i].Add(total[i], big.NewRat(1, int64(len(sets)*len(best))))
		}
	}
	return total
}

// reporting fills in what hosts say besides counts of connections.
func reporting(s *Snapshot, rnd *rand.Rand) {
	for i := range s.Hosts {
		h := &s.Hosts[i]
		h.InFlight, h.Latency = uint32(rnd.IntN(4)), time.Duration(rnd.IntN(4))*time.Millisecond
		h.Load = Resources{CPU: 0.25 * float32(rnd.IntN(5)), Memory: 0.25 * float32(rnd.IntN(6)-1), Disk: -1}
		if rnd.IntN(2) == 0 {
			h.Live = new(atomic.Int32)
			h.Live.Store(int32(rnd.IntN(3)))
		}
	}
}

func (p ResourceLoad) slow(s *Snapshot) odds {
	known, sum := 0.0, 0.0
	for _, h := range s.Hosts {
		if h.Eligible() && h.Load.Memory >= 0 {
			known, sum = known+1, sum+float64(h.Load.Memory)
		}
	}
	full := -1
	if p.WhenFull == Refuse {
		full = len(s.Hosts)
	}
	if len(eligiblePeers(s)) == 0 && (s.Self < 0 || !s.Hosts[s.Self].Eligible()) {
		return among(s, nil, 0)
	}
	return rated(s, p.D, full, func(i int) float64 {
		h, sent := &s.Hosts[i], 0.0
		if i != s.Self && h.Live != nil {
			sent = float64(h.Live.Load() - h.LiveThen)
		}
		memory := float64(h.Load.Memory)
		if memory < 0 {
			memory = sum / max(known, 1)
		}
		cpu := 0.25 / (1 - float64(h.Load.CPU) - sent*0.25)
		mem := 0.125 / (1 - memory - sent*0.125)
		if factor := max(cpu, mem); cpu > 0 && mem > 0 && factor < 1 {
			return factor
		}
		return math.Inf(1)
	})
}

func (p Prequal) slow(s *Snapshot) odds {
	flying := func(i int) int64 {
		h := s.Hosts[i]
		if i != s.Self && h.Live != nil {
			return max(0, int64(h.InFlight)+int64(h.Live.Load()-h.LiveThen))
		}
		return int64(h.InFlight)
	}
	var all []int64
	known, sum := 0.0, 0.0
	for i, h := range s.Hosts {
		if h.Eligible() {
			all = append(all, flying(i))
			if h.Latency > 0 {
				known, sum = known+1, sum+h.Latency.Seconds()
			}
		}
	}
	slices.Sort(all)
	return rated(s, p.D, -1, func(i int) float64 {
		switch n := flying(i); {
		case n > all[int(math.Floor(p.Q*float64(len(all)-1)))]:
			return 1e9 + float64(n)
		case s.Hosts[i].Latency == 0 && known > 0:
			return math.Round(sum/known*1e12) / 1e12
		}
		return math.Round(s.Hosts[i].Latency.Seconds()*1e12) / 1e12
	})
}

func slowPeak(s *Snapshot, d int) odds {
	return rated(s, d, -1, func(i int) float64 {
		h, pending := s.Hosts[i], float64(s.Hosts[i].InFlight)
		if i != s.Self && h.Live != nil {
			pending += float64(h.Live.Load() - h.LiveThen)
		}
		if h.Latency == 0 && pending > 0 {
			return 1e30 + 1e20*pending
		}
		return float64(h.Latency) * (pending + 1)
	})
}

func TestRatingAgainstOracle(t *testing.T) {
	demand := Resources{CPU: 0.25, Memory: 0.125}
	for name, tt := range map[string]struct {
		policy Policy
		oracle func(s *Snapshot) odds
	}{
		"resource":        {ResourceLoad{Demand: demand}, ResourceLoad{D: 2}.slow},
		"resource refuse": {ResourceLoad{Demand: demand, WhenFull: Refuse}, ResourceLoad{D: 2, WhenFull: Refuse}.slow},
		"resource of 3":   {ResourceLoad{Demand: demand, D: 3}, ResourceLoad{D: 3}.slow},
		"resource of all": {ResourceLoad{Demand: demand, D: EveryHost}, ResourceLoad{D: 99}.slow},
		"prequal":         {Prequal{}, Prequal{Q: 0.84, D: 3}.slow},
		"prequal median":  {Prequal{Q: 0.5, D: 8}, Prequal{Q: 0.5, D: 8}.slow},
		"peak ewma":       {&PeakEWMA{}, func(s *Snapshot) odds { return slowPeak(s, 2) }},
		"peak ewma of 4":  {&PeakEWMA{D: 4}, func(s *Snapshot) odds { return slowPeak(s, 4) }},
	} {
		t.Run(name, func(t *testing.T) {
			rnd := seeded(90)
			for range 200 {
				s := somewhere(rnd)
				reporting(s, rnd)
				want := tt.oracle(s)
				picker, got := tt.policy.Build(s), make([]int, len(want))
				for range 300 {
					c := picker.Pick(flow(rnd), 0)
					if c.Do == Refuse {
						got[len(s.Hosts)]++
					} else if i := served(t, s, c); i < 0 {
						got[len(s.Hosts)]++
					} else {
						got[i]++
					}
				}
				checkOdds(t, s, want, got)
			}
		})
	}
}

// FIGURES 27 and the rest of 3.2.
func TestLoadFactor(t *testing.T) {
	for _, tt := range []struct {
		name         string
		demand, used Resources
		want         float64
	}{
		{"net is scarcer", Resources{CPU: 0.1, Network: 0.1}, Resources{CPU: 0.5, Network: 0.8}, 0.5},
		{"a third free", Resources{Disk: 1. / 8}, Resources{Disk: 5. / 8}, 1. / 3},
		{"nothing free", Resources{CPU: 0.1, Memory: 0.1}, Resources{Memory: 1}, math.Inf(1)},
		{"nothing needed of what is not free", Resources{CPU: 0.25}, Resources{Memory: 1}, 0.25},
		{"more used than there is", Resources{CPU: 0.1}, Resources{CPU: 1.5}, math.Inf(1)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			room := ResourceLoad{Demand: tt.demand}.room(&Host{Load: tt.used}, [resources]float64{})
			if factor := 1 / max(room, 0); math.IsInf(tt.want, 1) {
				require.True(t, math.IsInf(factor, 1))
			} else {
				require.InDelta(t, tt.want, factor, 1e-6)
			}
		})
	}
}

// Own connections count at once: each takes a tenth, five fit, the fifth with
// nothing left over does not, and then the answer is the one for a full cluster.
func TestResourceAdmission(t *testing.T) {
	for _, tt := range []struct {
		name     string
		policy   ResourceLoad
		weight   uint16
		admitted int
		full     Choice
	}{
		{"serve", ResourceLoad{}, 100, 4, Choice{}},
		{"refuse", ResourceLoad{WhenFull: Refuse}, 100, 4, Choice{Do: Refuse}},
		{"headroom", ResourceLoad{Headroom: 0.25, WhenFull: Refuse}, 100, 2, Choice{Do: Refuse}},
		{"twice the host", ResourceLoad{DemandAt: 100, WhenFull: Refuse}, 200, 9, Choice{Do: Refuse}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := table(-1, 0)
			s.Hosts[0].Weight, s.Hosts[0].Load.CPU, s.Hosts[0].Live = tt.weight, 0.5, new(atomic.Int32)
			tt.policy.Demand = Resources{CPU: 0.1}
			picker := tt.policy.Build(s)
			for range tt.admitted {
				require.Equal(t, Choice{Do: Send}, picker.Pick(Flow{}, 0))
				s.Hosts[0].Live.Add(1)
			}
			require.Equal(t, tt.full, picker.Pick(Flow{}, 0))
			s.Hosts[0].Live.Add(-1)
			require.Equal(t, Choice{Do: Send}, picker.Pick(Flow{}, 0), "one has ended")
		})
	}
}

// FIGURES 30.
func TestHotCold(t *testing.T) {
	s := table(-1, 0, 0, 0, 0)
	for i, flying := range []uint32{1, 2, 3, 10} {
		s.Hosts[i].InFlight = flying
		s.Hosts[i].Latency = []time.Duration{9, 4, 8, 1}[i] * time.Millisecond
	}
	picker := Prequal{D: 4}.Build(s)
	require.EqualValues(t, 3, picker.(*prequal).hot)
	require.Equal(t, Choice{Do: Send, Host: 1}, picker.Pick(Flow{}, 0))
	require.Equal(t, 0, Prequal{D: 4, Q: -1}.Build(s).Pick(Flow{}, 0).Host, "all hot: fewest in flight")
	require.Equal(t, 3, Prequal{D: 4, Q: 1}.Build(s).Pick(Flow{}, 0).Host, "none hot: fastest")
}

// FIGURES 29.
func TestReuseBudget(t *testing.T) {
	for n, want := range map[int]float64{50: 1.923, 100: 1.316, 1000: 1.025} {
		require.InDelta(t, want, ReuseBudget(n, 16, 3, 1, 1), 0.001)
	}
	require.True(t, math.IsInf(ReuseBudget(20, 16, 3, 1, 1), 1))
	require.EqualValues(t, 1, ReuseBudget(1000, 16, 9, 1, 1))
}

// FIGURES 32.
func TestPeakEWMAForgets(t *testing.T) {
	const ms = time.Millisecond
	p := &PeakEWMA{}
	cost := func(taken, age, latency time.Duration) float64 {
		s := table(-1, 0)
		s.Hosts[0].Latency, s.Hosts[0].Age, s.Taken = latency, age, taken
		return p.Build(s).(*peakEWMA).cost[0] / float64(ms)
	}
	start := time.Hour
	require.InDelta(t, 100, cost(start, 0, 100*ms), 1e-9)
	half := start + 6931471806*time.Nanosecond // ln 2 times Tau
	require.InDelta(t, 50, cost(half, half-start, 100*ms), 1e-6, "no report since: 6.93 s halve it")
	require.InDelta(t, 200, cost(half+1, 0, 200*ms), 1e-5, "up at once")
	later := half + 10*time.Second
	require.InDelta(t, 200/math.E+100*(1-1/math.E), cost(later, 0, 100*ms), 1e-5, "down slowly")
	require.InDelta(t, 100/math.E, cost(later+20*time.Second, 10*time.Second, 100*ms), 16, "a report in between")
}

func TestPeakEWMAScore(t *testing.T) {
	s := table(-1, 0, 0, 0)
	s.Hosts[0].Latency, s.Hosts[0].InFlight = 100*time.Millisecond, 3
	s.Hosts[1].InFlight = 5
	p := new(PeakEWMA).Build(s).(*peakEWMA)
	require.EqualValues(t, 400*time.Millisecond, p.score(0))
	require.InDelta(t, 1.4e14, p.score(1), 1e13, "requests, and none answered")
	require.Zero(t, p.score(2), "never tried")
}

func TestPeakEWMAForgetsHostsThatAreGone(t *testing.T) {
	p := new(PeakEWMA)
	for i := range 10 {
		p.Build(&Snapshot{Self: -1, Hosts: []Host{{ID: fmt.Sprint(i), Weight: 1}}})
	}
	require.Len(t, p.hosts, 1)
}
