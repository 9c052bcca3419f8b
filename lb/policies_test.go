package lb

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// odds is the slow oracle's answer: for each host the exact probability to get
// the connection.
type odds []*big.Rat

// among is the comparing policies written down the long way, in fractions: of
// the candidate peers the lightest share the connection, unless the own host is
// not more than theta above them.
func among(s *Snapshot, peers []int, theta int64) odds {
	out := make(odds, len(s.Hosts)+1) // the last is "serve here" of a router
	for i := range out {
		out[i] = new(big.Rat)
	}
	here := s.Self
	if here < 0 {
		here = len(s.Hosts)
	}
	load := func(i int, less int64) *big.Rat {
		return big.NewRat(s.Hosts[i].Estimate()+1-less, int64(s.Hosts[i].Weight))
	}
	var best []int
	for _, i := range peers {
		switch {
		case len(best) == 0 || load(i, 0).Cmp(load(best[0], 0)) < 0:
			best = []int{i}
		case load(i, 0).Cmp(load(best[0], 0)) == 0:
			best = append(best, i)
		}
	}
	stay := len(best) == 0 ||
		s.Self >= 0 && s.Hosts[s.Self].Eligible() && load(best[0], 0).Cmp(load(s.Self, theta)) >= 0
	if stay {
		best = []int{here}
	}
	for _, i := range best {
		out[i].SetFrac64(1, int64(len(best)))
	}
	return out
}

func eligiblePeers(s *Snapshot) (peers []int) {
	for i := range s.Hosts {
		if i != s.Self && s.Hosts[i].Eligible() {
			peers = append(peers, i)
		}
	}
	return peers
}

// combinations lists all subsets of k of the given numbers.
func combinations(of []int, k int) (all [][]int) {
	if k == 0 {
		return [][]int{nil}
	}
	for i := range of {
		for _, rest := range combinations(of[i+1:], k-1) {
			all = append(all, append([]int{of[i]}, rest...))
		}
	}
	return all
}

// drawn averages among over all equally likely draws of d hosts, the own one, if
// it may serve, always in.
func drawn(s *Snapshot, d int, theta int64) odds {
	peers := eligiblePeers(s)
	if s.Self >= 0 && s.Hosts[s.Self].Eligible() {
		d--
	}
	sets := combinations(peers, min(d, len(peers)))
	total := make(odds, len(s.Hosts)+1)
	for i := range total {
		total[i] = new(big.Rat)
	}
	for _, set := range sets {
		for i, p := range among(s, set, theta) {
			total[i].Add(total[i], p.Mul(p, big.NewRat(1, int64(len(sets)))))
		}
	}
	return total
}

// weighted gives each eligible host its weight's share.
func weighted(s *Snapshot) odds {
	out, sum := among(s, nil, 0), int64(0)
	all := eligiblePeers(s)
	if s.Self >= 0 && s.Hosts[s.Self].Eligible() {
		all = append(all, s.Self)
	}
	for _, i := range all {
		sum += int64(s.Hosts[i].Weight)
	}
	for i := range out {
		if sum > 0 {
			out[i] = new(big.Rat)
		}
	}
	for _, i := range all {
		out[i].SetFrac64(int64(s.Hosts[i].Weight), sum)
	}
	return out
}

// somewhere makes a small random snapshot in which anything may be the case.
func somewhere(rnd *rand.Rand) *Snapshot {
	s := &Snapshot{Self: -1}
	for i := range rnd.IntN(7) {
		h := Host{ID: fmt.Sprint(i), Weight: uint16(1 + rnd.IntN(3)), Conns: uint32(rnd.IntN(6))}
		switch rnd.IntN(8) {
		case 0:
			h.Weight = 0
		case 1:
			h.Flags = Flags(2 << rnd.IntN(3))
		case 2:
			h.Weight, h.Conns = 65535, 1<<32-1
		}
		s.Hosts = append(s.Hosts, h)
	}
	if len(s.Hosts) > 0 {
		s.Self = rnd.IntN(len(s.Hosts)+1) - 1
	}
	return s
}

func TestAgainstOracle(t *testing.T) {
	for _, tt := range []struct {
		name   string
		policy Policy
		oracle func(s *Snapshot) odds
	}{
		{"home-or-other", HomeOrOther{}, func(s *Snapshot) odds { return drawn(s, 2, 1) }},
		{"home-or-other any", HomeOrOther{Theta: AnyGain}, func(s *Snapshot) odds { return drawn(s, 2, 0) }},
		{"home-or-other 3", HomeOrOther{Theta: 3}, func(s *Snapshot) odds { return drawn(s, 2, 3) }},
		{"power of 1", PowerOfD{D: 1}, func(s *Snapshot) odds { return drawn(s, 1, 0) }},
		{"power of 2", PowerOfD{}, func(s *Snapshot) odds { return drawn(s, 2, 0) }},
		{"power of 3", PowerOfD{D: 3, Threshold: 1}, func(s *Snapshot) odds { return drawn(s, 3, 1) }},
		{"power of all", PowerOfD{D: 1 << 30}, func(s *Snapshot) odds { return among(s, eligiblePeers(s), 0) }},
		{"home-or-others", HomeOrOthers{}, func(s *Snapshot) odds { return drawn(s, 3, 1) }},
		{"home-or-others 3", HomeOrOthers{D: 3, Theta: AnyGain}, func(s *Snapshot) odds { return drawn(s, 4, 0) }},
		{"random", Random{}, weighted},
		{"least", LeastConnections{}, func(s *Snapshot) odds { return among(s, eligiblePeers(s), 0) }},
		{"least 2", LeastConnections{Threshold: 2}, func(s *Snapshot) odds { return among(s, eligiblePeers(s), 2) }},
		{"stay", Stay{}, func(s *Snapshot) odds { return among(s, nil, 0) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rnd := seeded(20)
			for range 100 {
				s := somewhere(rnd)
				want := tt.oracle(s)
				picker, got := tt.policy.Build(s), make([]int, len(want))
				for range 600 {
					i := served(t, s, picker.Pick(flow(rnd), 0))
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

func checkOdds(t *testing.T, s *Snapshot, want odds, got []int) {
	t.Helper()
	share, possible := make([]float64, len(want)), 0
	for i, p := range want {
		share[i], _ = p.Float64()
		if p.Sign() > 0 {
			possible++
		} else {
			require.Zero(t, got[i], "host %d of %+v: %v", i, s, want)
		}
	}
	if possible > 1 {
		require.Less(t, chiSquare(got, share), limit(possible-1), "%+v: want %v, got %v", s, share, got)
	}
}

func TestPickDependsOnFlowAlone(t *testing.T) {
	s := table(-1, 1, 1, 1, 1, 1, 1)
	for policy, p := range every() {
		if turning()[policy] != nil {
			continue
		}
		a, b := p.Build(s), p.Build(table(-1, 1, 1, 1, 1, 1, 1))
		rnd := seeded(21)
		for range 200 {
			f := flow(rnd)
			require.Equal(t, a.Pick(f, 0), b.Pick(f, 99), "%s: a run can be repeated", policy)
		}
	}
}

func TestWeightsShareInProportion(t *testing.T) {
	for policy, p := range map[string]Policy{"least": LeastConnections{}, "d=3": PowerOfD{D: 3}} {
		t.Run(policy, func(t *testing.T) {
			s, rnd := table(-1, 0, 0, 0), seeded(22)
			s.Hosts[0].Weight, s.Hosts[1].Weight, s.Hosts[2].Weight = 1, 2, 3
			for range 600 {
				s.Hosts[p.Build(s).Pick(flow(rnd), 0).Host].Conns++
			}
			for i := range s.Hosts {
				require.InDelta(t, 100*(i+1), s.Hosts[i].Conns, 1)
			}
		})
	}
}

func TestSubsetIsUniform(t *testing.T) {
	for _, tt := range []struct{ k, n, sets int }{{0, 3, 1}, {1, 4, 4}, {2, 5, 10}, {3, 6, 20}, {4, 4, 1}, {8, 9, 9}} {
		t.Run(fmt.Sprintf("%d of %d", tt.k, tt.n), func(t *testing.T) {
			seen, rnd := map[int]int{}, seeded(23)
			for range 1000 * tt.sets {
				var room [MaxD]int32
				d, set := draws(rnd.Uint64()), 0
				for _, x := range d.subset(tt.k, tt.n, &room) {
					require.Less(t, int(x), tt.n)
					require.Zero(t, set>>x&1, "drawn twice")
					set |= 1 << x
				}
				seen[set]++
			}
			require.Len(t, seen, tt.sets)
			var counts []int
			for _, n := range seen {
				counts = append(counts, n)
			}
			if tt.sets > 1 {
				require.Less(t, chiSquare(counts, uniform(tt.sets)), limit(tt.sets-1))
			}
		})
	}
}

// The reference output of splitmix64 for seed 0.
func TestDrawsAreSplitmix64(t *testing.T) {
	var d draws
	for _, want := range []uint64{0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f} {
		require.Equal(t, want, d.next())
	}
}

func TestRoundRobinOrder(t *testing.T) {
	for _, tt := range []struct {
		name    string
		self    int
		weights []uint16
		want    string
	}{
		{"equal", -1, []uint16{7, 7, 7}, "012012"},
		{"starts at its own place", 1, []uint16{7, 7, 7}, "120120"},
		{"weights", -1, []uint16{2, 1, 1}, "01200120"},
		{"spread, not in a lump", -1, []uint16{5, 1, 1}, "00012000001200"},
		{"zero is left out", 0, []uint16{1, 0, 1}, "0202"},
		{"one", 0, []uint16{9}, "000"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := table(tt.self, make([]uint32, len(tt.weights))...)
			for i, w := range tt.weights {
				s.Hosts[i].Weight = w
			}
			picker, got := new(RoundRobin).Build(s), ""
			for range tt.want {
				got += fmt.Sprint(served(t, s, picker.Pick(Flow{}, 0)))
			}
			require.Equal(t, tt.want, got)
		})
	}
}

// The order of nginx, which keeps a's lump away from the ends.
func TestSmoothRoundRobinOrder(t *testing.T) {
	s := table(-1, 0, 0, 0)
	s.Hosts[0].Weight, s.Hosts[1].Weight, s.Hosts[2].Weight = 5, 1, 1
	picker, got := new(SmoothRoundRobin).Build(s), ""
	for range 14 {
		got += fmt.Sprint(served(t, s, picker.Pick(Flow{}, 0)))
	}
	require.Equal(t, "00102000010200", got)
}

// After any number of turns nobody is more than one turn away from its share, and
// a round has all turns.
func TestSmoothRoundRobinIsSmooth(t *testing.T) {
	rnd := seeded(24)
	for range 50 {
		s, sum := table(-1, make([]uint32, 1+rnd.IntN(6))...), 0
		for i := range s.Hosts {
			s.Hosts[i].Weight = uint16(1 + rnd.IntN(9))
			sum += int(s.Hosts[i].Weight)
		}
		picker, got := new(SmoothRoundRobin).Build(s), make([]int, len(s.Hosts))
		for turn := 1; turn <= 2*sum; turn++ {
			got[picker.Pick(Flow{}, 0).Host]++
			for i, n := range got {
				share := float64(turn) * float64(s.Hosts[i].Weight) / float64(sum)
				require.InDelta(t, share, n, 1.0001*float64(len(s.Hosts)-1), "turn %d of %v", turn, got)
			}
		}
		for i, n := range got {
			require.EqualValues(t, 2*int(s.Hosts[i].Weight), n)
		}
	}
}

func TestSmoothRoundRobinIsMadeAgainOnChange(t *testing.T) {
	p, s := new(SmoothRoundRobin), table(-1, 0, 0)
	a := p.Build(s).(*roundRobin)
	require.Equal(t, []int32{0, 1}, a.order)
	s = table(-1, 0, 0, 0)
	s.Hosts[0].Flags = Draining
	require.Equal(t, []int32{1, 2}, p.Build(s).(*roundRobin).order, "same turns, other hosts")
	s.Hosts[1].Weight = 20
	require.Equal(t, []int32{1, 2, 1}, p.Build(s).(*roundRobin).order)
}

func TestRoundRobinKeepsItsTurn(t *testing.T) {
	p, got := new(RoundRobin), make([]int, 3)
	for range 300 {
		s := table(-1, 0, 0, 0)
		got[p.Build(s).Pick(Flow{}, 0).Host]++
	}
	require.Equal(t, []int{100, 100, 100}, got, "a new snapshot does not start over")
}

func TestRoundRobinBoundsItsSchedule(t *testing.T) {
	s := table(-1, make([]uint32, 50)...)
	for i := range s.Hosts {
		s.Hosts[i].Weight = uint16(65535 - i)
	}
	s.Hosts[0].Weight = 1
	r := new(RoundRobin).Build(s).(*roundRobin)
	require.LessOrEqual(t, len(r.order), maxTurns+len(s.Hosts))
	require.Contains(t, r.order, int32(0), "the smallest weight still has a turn")
}
