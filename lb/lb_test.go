package lb

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// table makes a snapshot of hosts that all weigh 10 and carry the given counts.
func table(self int, conns ...uint32) *Snapshot {
	s := &Snapshot{Self: self}
	for i, n := range conns {
		s.Hosts = append(s.Hosts, Host{ID: fmt.Sprintf("h%03d", i), Weight: 10, Conns: n})
	}
	if self >= 0 && self < len(conns) {
		s.Hosts[self].Flags |= Local
	}
	return s
}

// saying has the hosts say in every way what their counts of connections do.
func saying(s *Snapshot) *Snapshot {
	for i := range s.Hosts {
		h := &s.Hosts[i]
		h.InFlight, h.Latency, h.Load.CPU = h.Conns, time.Duration(1+h.Conns), float32(h.Conns)/101
	}
	return s
}

func flow(rnd *rand.Rand) Flow { return Flow{Conn: rnd.Uint64(), Client: rnd.Uint64()} }

func seeded(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

// served returns the index of the host that a choice gives the connection to.
func served(t *testing.T, s *Snapshot, c Choice) int {
	t.Helper()
	switch {
	case c == Choice{}:
		return s.Self
	case c.Do != Send || c.Host == s.Self:
		require.Fail(t, "neither serves here nor sends to a peer", "%+v", c)
	}
	return c.Host
}

// shares counts what each host gets of n random flows.
func shares(t *testing.T, p Policy, s *Snapshot, n int, seed uint64) []int {
	t.Helper()
	picker, rnd, got := p.Build(s), seeded(seed), make([]int, len(s.Hosts))
	for range n {
		got[served(t, s, picker.Pick(flow(rnd), 0))]++
	}
	return got
}

// chiSquare is Pearson's statistic of counts against expected shares.
func chiSquare(got []int, want []float64) float64 {
	n := 0
	for _, g := range got {
		n += g
	}
	sum := 0.0
	for i, g := range got {
		if e := want[i] * float64(n); e > 0 && e < 1 && g < 9 {
			continue // too rare for the statistic; nine of them would be once in 10^6 runs
		} else if e > 0 {
			sum += (float64(g) - e) * (float64(g) - e) / e
		} else if g > 0 {
			return float64(n) // impossible happened
		}
	}
	return sum
}

// limit is the value that a chi-square variable with dof degrees of freedom
// exceeds with probability 0.0001 (Wilson and Hilferty's approximation).
func limit(dof int) float64 {
	const z = 3.719
	k := 2.0 / (9 * float64(dof))
	root := 1 - k + z*math.Sqrt(k)
	return float64(dof) * root * root * root
}

func uniform(n int) []float64 {
	w := make([]float64, n)
	for i := range w {
		w[i] = 1 / float64(n)
	}
	return w
}

func TestEstimate(t *testing.T) {
	var live atomic.Int32
	for _, tt := range []struct {
		name             string
		conns            uint32
		live, then, want int64
		noLive           bool
	}{
		{name: "the counter wrapped", conns: 7, live: math.MinInt32 + 1, then: math.MaxInt32 - 1, want: 10},
		{name: "as reported", conns: 7, want: 7},
		{name: "three sent since", conns: 7, live: 5, then: 2, want: 10},
		{name: "two ended since", conns: 7, live: 2, then: 4, want: 5},
		{name: "never negative (A54)", conns: 1, live: -3, then: 4, want: 0},
		{name: "own host counts by Live alone", live: 9, want: 9},
		{name: "largest count", conns: 1<<32 - 1, live: 1, want: 1 << 32},
		{name: "no correction", conns: 7, then: 4, noLive: true, want: 7},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := Host{Conns: tt.conns, Live: &live, LiveThen: int32(tt.then)}
			live.Store(int32(tt.live))
			if tt.noLive {
				h.Live = nil
			}
			require.Equal(t, tt.want, h.Estimate())
		})
	}
}

func TestEligible(t *testing.T) {
	require.True(t, (&Host{Weight: 1}).Eligible())
	require.True(t, (&Host{Weight: 1, Flags: Local}).Eligible())
	require.False(t, (&Host{}).Eligible(), "weight 0")
	for _, f := range []Flags{Draining, Stale, Unhealthy} {
		require.False(t, (&Host{Weight: 1, Flags: Local | f}).Eligible(), f)
	}
}

func TestHashMembers(t *testing.T) {
	of := func(ids ...string) uint64 {
		var hosts []Host
		for _, id := range ids {
			hosts = append(hosts, Host{ID: id})
		}
		return HashMembers(hosts)
	}
	require.Equal(t, uint64(14695981039346656037), of(), "FNV-1a's offset basis")
	require.Equal(t, of("a", "b"), of("a", "b"))
	for name, other := range map[string]uint64{
		"fewer": of("a"), "more": of("a", "b", "c"), "joined": of("ab"), "order": of("b", "a"),
		"border moved": of("", "ab"),
	} {
		require.NotEqual(t, of("a", "b"), other, name)
	}
}

// comparing is one of each policy that compares counts and prefers the own host,
// made afresh.
func comparing() map[string]Policy {
	return map[string]Policy{
		"home-or-other":  HomeOrOther{},
		"any gain":       HomeOrOther{Theta: AnyGain},
		"home-or-others": HomeOrOthers{},
		"least":          LeastConnections{},
		"least 2":        LeastConnections{Threshold: 2},
		"p2c":            PowerOfD{},
		"d=8":            PowerOfD{D: 8},
	}
}

// turning is one of each policy that gives hosts their turns.
func turning() map[string]Policy {
	return map[string]Policy{"rr": new(RoundRobin), "smooth-rr": new(SmoothRoundRobin)}
}

// spreading is one of each policy that spreads connections over equal hosts.
func spreading() map[string]Policy {
	all := comparing()
	maps.Copy(all, turning())
	all["random"] = Random{}
	return all
}

// hashing is one of each policy that goes by the flow alone.
func hashing() map[string]Policy {
	return map[string]Policy{
		"rendezvous": Rendezvous{},
		"maglev":     &Maglev{},
		"ring":       &Ring{},
		"jump":       Jump{},
	}
}

// choosing is one of each policy that hashes, and then compares counts.
func choosing() map[string]Policy {
	return map[string]Policy{
		"bounded-load":  &BoundedLoad{},
		"ring, smaller": &Geometric{},
		"ring, left":    &Geometric{Ties: ToLeft},
		"torus, larger": &Geometric{Space: OnTorus, Ties: ToLarger},
		"torus, any":    &Geometric{Space: OnTorus, Ties: ToAny, D: 3},
		"affinity":      &Affinity{},
	}
}

// rating is one of each policy that goes by more than counts, or by chance.
func rating() map[string]Policy {
	return map[string]Policy{
		"basic":       StaleLoad{},
		"aggressive":  StaleLoad{Rule: AggressiveLI},
		"aged of 3":   StaleLoad{Rule: AgedLI, K: 3},
		"resource":    ResourceLoad{},
		"resources":   ResourceLoad{D: EveryHost},
		"prequal":     Prequal{},
		"peak-ewma":   &PeakEWMA{},
		"least, slow": &SlowStart{Policy: LeastConnections{}},
		"ring, slow":  &SlowStart{Policy: &Ring{}, Settled: &Ring{}},
	}
}

// every is one of each policy but Stay.
func every() map[string]Policy {
	all := spreading()
	maps.Copy(all, rating())
	maps.Copy(all, hashing())
	maps.Copy(all, choosing())
	return all
}

func TestNobodyEligible(t *testing.T) { // A58, A60
	away := func(f func(h *Host)) *Snapshot {
		s := table(0, 5, 5, 5)
		for i := range s.Hosts {
			f(&s.Hosts[i])
		}
		return s
	}
	for name, s := range map[string]*Snapshot{
		"weights 0":      away(func(h *Host) { h.Weight = 0 }),
		"draining":       away(func(h *Host) { h.Flags |= Draining }),
		"stale":          away(func(h *Host) { h.Flags |= Stale }),
		"unhealthy":      away(func(h *Host) { h.Flags |= Unhealthy }),
		"empty":          {Self: -1},
		"router, all 0":  {Self: -1, Hosts: []Host{{ID: "a"}, {ID: "b"}}},
		"alone":          table(0, 1000),
		"alone, weight0": {Self: 0, Hosts: []Host{{ID: "a"}}},
	} {
		for policy, p := range every() {
			t.Run(name+"/"+policy, func(t *testing.T) {
				picker, rnd := p.Build(s), seeded(1)
				for range 100 {
					require.Zero(t, picker.Pick(flow(rnd), 0), "the same answer every time")
				}
			})
		}
	}
}

func TestOneEligible(t *testing.T) {
	for policy, p := range every() {
		t.Run(policy, func(t *testing.T) {
			for self := -1; self < 3; self++ {
				s := table(self, 0, 9000, 0)
				s.Hosts[0].Flags |= Draining
				s.Hosts[2].Weight = 0
				if self == 1 {
					continue
				}
				picker, rnd := p.Build(s), seeded(2)
				for range 100 {
					require.Equal(t, Choice{Do: Send, Host: 1}, picker.Pick(flow(rnd), 0), "self %d", self)
				}
			}
		})
	}
}

func TestA55TiesAreSpread(t *testing.T) {
	knowing := spreading()
	maps.Copy(knowing, rating())
	delete(knowing, "ring, slow") // its arcs are not equal
	for policy, p := range knowing {
		t.Run(policy+"/router", func(t *testing.T) {
			got := shares(t, p, table(-1, 0, 0, 0), 3000, 3)
			require.Less(t, chiSquare(got, uniform(3)), limit(2), "shares %v", got)
		})
		t.Run(policy+"/own host drains", func(t *testing.T) {
			s := table(1, 0, 0, 0, 0)
			s.Hosts[1].Flags |= Draining
			got := shares(t, p, s, 3000, 4)
			third := []float64{1. / 3, 0, 1. / 3, 1. / 3}
			require.Less(t, chiSquare(got, third), limit(2), "shares %v", got)
		})
	}
	t.Run("a tie stays at home", func(t *testing.T) {
		for policy, p := range comparing() {
			require.Equal(t, []int{0, 500, 0}, shares(t, p, table(1, 4, 4, 4), 500, 5), policy)
		}
	})
}

// Not Geometric, whose points may fall to one host as in its paper.
func TestA56TwoHosts(t *testing.T) {
	knowing := comparing()
	maps.Copy(knowing, rating())
	delete(knowing, "ring, slow") // it does not look at load
	knowing["affinity"] = &Affinity{}
	for policy, p := range knowing {
		t.Run(policy, func(t *testing.T) {
			for self := -1; self < 2; self++ {
				require.Equal(t, []int{1000, 0}, shares(t, p, saying(table(self, 0, 100)), 1000, 6), "self %d", self)
				require.Equal(t, []int{0, 1000}, shares(t, p, saying(table(self, 100, 0)), 1000, 7), "self %d", self)
			}
			require.Equal(t, []int{1000}, shares(t, p, table(-1, 5), 1000, 8), "one host, no loop")
		})
	}
}

func TestA58WeightsChangeWhileChoosing(t *testing.T) {
	for policy, p := range every() {
		t.Run(policy, func(t *testing.T) {
			var current atomic.Pointer[Picker]
			set := func(weights ...uint16) {
				s := table(0, make([]uint32, len(weights))...)
				for i := range weights {
					s.Hosts[i].Weight = weights[i]
				}
				picker := p.Build(s)
				current.Store(&picker)
			}
			set(1, 1)
			done := make(chan struct{})
			for g := range 8 {
				go func() {
					defer func() { done <- struct{}{} }()
					rnd := seeded(uint64(g))
					for range 2000 {
						(*current.Load()).Pick(flow(rnd), 0)
					}
				}()
			}
			for range 200 {
				set(0, 0)
				set(0)
				set()
				set(1, 0, 3)
			}
			for range 8 {
				<-done
			}
		})
	}
}

// set() above makes an empty snapshot whose Self is 0: a caller's mistake that
// must not end the process either.
func TestA58EmptySnapshotWithSelf(t *testing.T) {
	for policy, p := range every() {
		require.Zero(t, p.Build(&Snapshot{}).Pick(Flow{Conn: 1}, 0), policy)
	}
}

func TestA59WeightZeroGetsNothing(t *testing.T) {
	for policy, p := range every() {
		t.Run(policy, func(t *testing.T) {
			s := table(0, 50, 0, 50, 50)
			saying(s).Hosts[1].Weight = 0 // idle, and yet
			require.Zero(t, shares(t, p, s, 2000, 9)[1])
			s.Hosts[1].Weight = 1 // weight 1 is not weight 0
			require.NotZero(t, shares(t, p, s, 2000, 9)[1])
			s.Hosts[1].Flags |= Draining
			require.Zero(t, shares(t, p, s, 2000, 9)[1])
			s.Hosts[1].Flags = 0 // and back: nothing sticks
			require.NotZero(t, shares(t, p, s, 2000, 9)[1])
		})
	}
}

// Ten choosers see the same table, a second old, in which one host is idle. A62 asks
// that no host gets more than a stated share of what comes in between two reports,
// here 1,000 connections: by n choices in all it is n tenths, with the home ones.
func TestA62NoStampede(t *testing.T) {
	const hosts, flows = 10, 10_000
	for name, tt := range map[string]struct {
		policy Policy
		share  float64
	}{
		"home-or-other":  {HomeOrOther{}, 0.2},
		"home-or-others": {HomeOrOthers{}, 0.3},
		"power of 4":     {PowerOfD{D: 4}, 0.4},
		"affinity":       {&Affinity{}, 0.25},
		"basic":          {StaleLoad{Service: 10 * time.Millisecond, Period: time.Second}, 0.2},
	} {
		t.Run(name, func(t *testing.T) {
			rnd, got := seeded(10), make([]int, hosts)
			var pickers []Picker
			var tables []*Snapshot
			for self := range hosts {
				s := table(self, 100, 100, 100, 0, 100, 100, 100, 100, 100, 100)
				for i := range s.Hosts {
					s.Hosts[i].Live = new(atomic.Int32)
				}
				tables, pickers = append(tables, s), append(pickers, tt.policy.Build(s))
			}
			for range flows {
				entry := rnd.IntN(hosts)
				to := served(t, tables[entry], pickers[entry].Pick(flow(rnd), 0))
				tables[entry].Hosts[to].Live.Add(1)
				got[to]++
			}
			require.LessOrEqual(t, float64(slices.Max(got)), (tt.share+0.01)*flows, "%v", got)
		})
	}
}

// H3 reported that it was idle and is silent since, H4 has joined and not yet
// reported: whoever makes the snapshot marks them, and neither looks attractive.
func TestA62SilentAndUnknownHosts(t *testing.T) {
	for policy, p := range every() {
		s := saying(table(0, 50, 50, 0, 0))
		s.Hosts[2].Flags, s.Hosts[2].Age = Stale, 30*time.Second
		s.Hosts[3].Flags = Unhealthy
		got := shares(t, p, s, 1000, 12)
		require.Zero(t, got[2]+got[3], "%s: %v", policy, got)
	}
}

func TestOwnRedirectsCountAtOnce(t *testing.T) {
	s := table(0, 0, 3, 4)
	own := new(atomic.Int32)
	own.Store(6)
	s.Hosts[0].Live = own
	s.Hosts[1].Live, s.Hosts[2].Live = new(atomic.Int32), new(atomic.Int32)
	picker, got := LeastConnections{}.Build(s), []int{0, 0, 0}
	for i := range 20 {
		to := served(t, s, picker.Pick(Flow{Conn: uint64(i)}, 0))
		s.Hosts[to].Live.Add(1)
		got[to]++
	}
	require.Equal(t, []int{5, 8, 7}, got, "20 more than 6, 3 and 4 are 11 each; a tie stays at home")
}

func TestPickDoesNotAllocate(t *testing.T) {
	s := saying(table(3, 9, 9, 9, 20, 1, 9, 0, 0, 0, 9))
	s.Hosts[4].Since, s.Taken = time.Second, time.Second
	for policy, p := range every() {
		picker, n := p.Build(s), uint64(0)
		require.Zero(t, testing.AllocsPerRun(1000, func() {
			n++
			picker.Pick(Flow{Conn: n}, time.Duration(n))
		}), policy)
	}
}

// BenchmarkPick shows what a pick costs and how that grows with the hosts: policies
// that compare a few do not depend on how many there are.
func BenchmarkPick(b *testing.B) {
	specs := append(Names(), "power-of-d:d=8", "geometric:space=torus", "geometric:points=100",
		"stale-load:rule=aggressive", "stale-load:k=2", "resource:d=0", "p2c:slow-start=1m")
	for _, n := range []int{10, 100, 1000, 10_000} {
		s, rnd := table(0, make([]uint32, n)...), seeded(11)
		s.Taken = time.Hour
		for i := range s.Hosts {
			h := &s.Hosts[i]
			h.Conns, h.Live = uint32(rnd.IntN(50)), new(atomic.Int32)
			h.InFlight, h.Latency = uint32(rnd.IntN(50)), time.Duration(rnd.IntN(50))*time.Millisecond
			h.Load.CPU, h.Age = rnd.Float32(), 250*time.Millisecond
		}
		s.Hosts[n/2].Since = 20 * time.Second
		for _, spec := range specs {
			p, err := Parse(spec)
			require.NoError(b, err)
			b.Run(fmt.Sprintf("%s/n=%d", spec, n), func(b *testing.B) {
				picker := p.Build(s)
				b.ReportAllocs()
				f := Flow{}
				for b.Loop() {
					f.Conn++
					picker.Pick(f, s.Taken)
				}
			})
		}
	}
}

// BenchmarkBuild shows what a snapshot costs whose loads alone have changed, and
// one whose members have.
func BenchmarkBuild(b *testing.B) {
	for _, n := range []int{10, 1000, 10_000} {
		s := crowd(n)
		for _, spec := range append(Names(), "geometric:space=torus") {
			for _, what := range []string{"loads", "members"} {
				b.Run(fmt.Sprintf("%s/%s/n=%d", spec, what, n), func(b *testing.B) {
					p, err := Parse(spec)
					require.NoError(b, err)
					p.Build(s)
					for b.Loop() {
						if what == "members" {
							s.Hosts[0].Weight ^= 1
							s.Hosts[1].Flags ^= Stale
						}
						p.Build(s)
					}
				})
			}
		}
	}
}
