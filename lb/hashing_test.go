package lb

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// crowd makes hosts of equal weight, without load.
func crowd(n int) *Snapshot { return table(-1, make([]uint32, n)...) }

// owners lists the ID of each of n random keys' host.
func owners(p Policy, s *Snapshot, n int) []string {
	picker, rnd, ids := p.Build(s), seeded(30), make([]string, n)
	for k := range ids {
		ids[k] = s.Hosts[picker.Pick(flow(rnd), 0).Host].ID
	}
	return ids
}

// moved counts the keys that changed hosts, and those whose host was not one of gone.
func moved(before, after []string, gone ...string) (all, needless int) {
	for k := range before {
		if before[k] != after[k] {
			all++
			if !slices.Contains(gone, before[k]) {
				needless++
			}
		}
	}
	return all, needless
}

// without returns the snapshot when the host has left.
func without(s *Snapshot, host int) *Snapshot {
	return &Snapshot{Self: s.Self, Hosts: slices.Delete(slices.Clone(s.Hosts), host, host+1)}
}

// away returns the snapshot when the host has the flags.
func away(s *Snapshot, host int, f Flags) *Snapshot {
	t := &Snapshot{Self: s.Self, Hosts: slices.Clone(s.Hosts)}
	t.Hosts[host].Flags |= f
	return t
}

// A host that leaves, or that merely drains, moves its own tenth of the keys and,
// within twice that, no others. Jump's numbers do not bear a host leaving for good
// other than at the end, which its comment says.
// FIGURES 38: but for Maglev, exactly the host's own keys move.
func TestA61MembershipChange(t *testing.T) {
	const keys = 100_000
	for policy, p := range hashing() {
		t.Run(policy, func(t *testing.T) {
			s := crowd(10)
			before := owners(p, s, keys)
			changes := map[string]*Snapshot{"drains": away(s, 4, Draining), "last leaves": without(s, 9)}
			if policy != "jump" {
				changes["leaves"] = without(s, 4)
			}
			for change, after := range changes {
				gone := s.Hosts[4].ID
				if change == "last leaves" {
					gone = s.Hosts[9].ID
				}
				all, needless := moved(before, owners(p, after, keys), gone)
				require.Less(t, all, keys*2/10, change)
				require.Greater(t, all, keys*6/100, change)
				if policy != "maglev" {
					require.Zero(t, needless, "%s: only the host's own keys move", change)
				}
			}
			require.Equal(t, before, owners(p, s, keys), "and back: nothing sticks")
		})
	}
}

// Snapshots are sorted, so the order in which a host got to know the others cannot
// matter; what might is which one chooses, and what it built before.
func TestA61AllHostsAgree(t *testing.T) {
	for policy := range hashing() {
		t.Run(policy, func(t *testing.T) {
			old := hashing()[policy]
			old.Build(crowd(7))
			s := crowd(10)
			s.Hosts[3].Weight = 25
			a, rnd := hashing()[policy].Build(s), seeded(31)
			var others []Picker
			for self := range s.Hosts {
				own := *s
				own.Self = self
				others = append(others, old.Build(&own))
			}
			for range 1000 {
				f := flow(rnd)
				want := a.Pick(f, 0).Host
				for self, b := range others {
					require.Equal(t, to(want, self), b.Pick(f, 0))
				}
			}
		})
	}
}

// Both hosts that a key would have had are away: the key has another one that is
// not, all of its chooser's peers agree on which, and it is back when they are.
func TestA60BothCandidatesDown(t *testing.T) {
	all := hashing()
	for name, p := range choosing() {
		all[name] = p
	}
	for policy, p := range all {
		t.Run(policy, func(t *testing.T) {
			s, rnd := crowd(4), seeded(32)
			up := p.Build(s)
			down := p.Build(away(away(s, 1, Unhealthy), 2, Stale))
			none := p.Build(away(away(away(away(s, 0, Draining), 1, Unhealthy), 2, Stale), 3, Stale))
			again := p.Build(s)
			for range 1000 {
				f := flow(rnd)
				require.Contains(t, []int{0, 3}, down.Pick(f, 0).Host)
				require.Zero(t, none.Pick(f, 0))
				require.Equal(t, up.Pick(f, 0), again.Pick(f, 0))
			}
		})
	}
}

func TestKeysAreByConnectionOrClient(t *testing.T) {
	for _, spec := range []string{"rendezvous", "maglev", "ring", "jump", "bounded-load", "geometric", "affinity"} {
		t.Run(spec, func(t *testing.T) {
			for by, together := range map[string]bool{"conn": false, "client": true} {
				p, err := Parse(spec + ":by=" + by)
				require.NoError(t, err)
				picker, hosts := p.Build(crowd(20)), map[int]bool{}
				for conn := range uint64(100) {
					hosts[picker.Pick(Flow{Conn: conn, Client: 7}, 0).Host] = true
				}
				require.Equal(t, together, len(hosts) == 1, "%d hosts by %s", len(hosts), by)
			}
		})
	}
}

// Whatever a picker that is a Finder chooses is among the candidates it names.
func TestCandidatesHaveTheChoice(t *testing.T) {
	for policy, p := range every() {
		rnd := seeded(33)
		for range 100 {
			s := somewhere(rnd)
			finder, ok := p.Build(s).(Finder)
			if !ok {
				continue
			}
			for range 20 {
				f := flow(rnd)
				c, of := finder.Pick(f, 0), finder.Candidates(make([]int, 0, MaxD), f)
				if len(of) == 0 {
					require.Zero(t, c, policy)
					continue
				}
				require.Contains(t, of, served(t, s, c), policy)
				for k, i := range of {
					require.True(t, s.Hosts[i].Eligible())
					require.NotContains(t, of[:k], i, "each but once")
				}
			}
		}
	}
}

// The oracles that follow are the definitions, written down the long way.

func slowRendezvous(s *Snapshot, key uint64) int {
	host, first := -1, math.Inf(1)
	for i, h := range s.Hosts {
		n := numbers(h.ID)
		u := (float64(scramble(key^n.next())>>11) + 0.5) / (1 << 53)
		if t := -math.Log(u) / float64(h.Weight); h.Eligible() && t < first {
			host, first = i, t
		}
	}
	return host
}

func slowRing(points int) func(s *Snapshot, key uint64) int {
	return func(s *Snapshot, key uint64) int {
		host, ahead := -1, uint64(math.MaxUint64)
		heaviest := 0.0
		for _, h := range s.Hosts {
			heaviest = max(heaviest, float64(h.Weight))
		}
		for i, h := range s.Hosts {
			n := numbers(h.ID)
			for range int(max(1, math.Round(float64(points)*float64(h.Weight)/heaviest))) {
				if way := n.next() - scramble(key); h.Eligible() && way <= ahead {
					host, ahead = i, way
				}
			}
		}
		return host
	}
}

// The paper's loop with fractions for its floating point.
func slowJumpHash(key uint64, n int64) int64 {
	b, j := big.NewInt(-1), new(big.Int)
	for j.Cmp(big.NewInt(n)) < 0 {
		b.Set(j)
		key = key*2862933555777941757 + 1
		j.Add(b, big.NewInt(1))
		j.Mul(j, big.NewInt(1<<31))
		j.Quo(j, new(big.Int).SetUint64(key>>33+1))
	}
	return b.Int64()
}

func TestHashingAgainstOracle(t *testing.T) {
	for name, tt := range map[string]struct {
		policy Policy
		oracle func(s *Snapshot, key uint64) int
	}{
		"rendezvous": {Rendezvous{}, slowRendezvous},
		"ring 1":     {&Ring{Points: 1}, slowRing(1)},
		"ring 7":     {&Ring{Points: 7}, slowRing(7)},
		"ring":       {&Ring{}, slowRing(100)},
	} {
		t.Run(name, func(t *testing.T) {
			rnd := seeded(34)
			for range 200 {
				s := somewhere(rnd)
				picker := tt.policy.Build(s)
				for range 50 {
					f := flow(rnd)
					require.Equal(t, to(tt.oracle(s, f.Conn), s.Self), picker.Pick(f, 0), "%+v", s)
				}
			}
		})
	}
}

func TestHashingSharesByWeight(t *testing.T) {
	for policy, p := range map[string]Policy{
		"rendezvous": Rendezvous{}, "maglev": &Maglev{}, "jump": Jump{},
	} {
		t.Run(policy, func(t *testing.T) {
			s, want := crowd(4), []float64{0.1, 0.2, 0.3, 0.4}
			for i := range s.Hosts {
				s.Hosts[i].Weight = uint16(1 + i)
			}
			got := shares(t, p, s, 100_000, 35)
			require.Less(t, chiSquare(got, want), limit(3), "%v", got)
			require.Less(t, chiSquare(shares(t, p, crowd(9), 90_000, 36), uniform(9)), limit(8))
		})
	}
}

// FIGURES 7.6 and 7.7: how far the fullest is above the average.
func TestHashingBalance(t *testing.T) {
	if testing.Short() {
		t.Skip("builds rings of a million points")
	}
	for _, tt := range []struct {
		policy   Policy
		keys     int
		low, top float64
	}{
		{Rendezvous{}, 65_537, 1.30, 1.55},
		{&Ring{Points: 1}, 655_373, 5, 10},
		{&Ring{Points: 10}, 655_373, 2.0, 2.9},
		{&Ring{Points: 100}, 655_373, 1.3, 1.55},
		{&Ring{Points: 1000}, 655_373, 1.08, 1.2},
	} {
		got := slices.Max(shares(t, tt.policy, crowd(1000), tt.keys, 37))
		ratio := float64(got) * 1000 / float64(tt.keys)
		require.True(t, ratio > tt.low && ratio < tt.top, "%+v: %.2f", tt.policy, ratio)
	}
}

// FIGURES 34: the table of the Maglev paper, before and after B1 goes.
func TestMaglevGolden(t *testing.T) {
	b0, b1, b2 := walk{at: 3, skip: 4, weight: 1}, walk{at: 0, skip: 2, weight: 1}, walk{at: 3, skip: 1, weight: 1}
	require.Equal(t, maglev{1, 0, 1, 0, 2, 2, 0}, populate([]walk{b0, b1, b2}, 7))
	require.Equal(t, maglev{0, 0, 0, 0, 1, 1, 1}, populate([]walk{b0, b2}, 7), "1 is B2 here")
}

// slowMaglev is the paper's pseudocode with the permutations written out.
func slowMaglev(walks []walk, size uint64) maglev {
	permutation := make([][]uint64, len(walks))
	for i, w := range walks {
		for j := range size {
			permutation[i] = append(permutation[i], (w.at+j*w.skip)%size)
		}
	}
	next, entry := make([]int, len(walks)), make(maglev, size)
	for j := range entry {
		entry[j] = -1
	}
	for n := uint64(0); ; {
		for i := range walks {
			c := permutation[i][next[i]]
			for entry[c] >= 0 {
				next[i]++
				c = permutation[i][next[i]]
			}
			entry[c] = int32(i)
			next[i]++
			if n++; n == size {
				return entry
			}
		}
	}
}

func TestMaglevAgainstOracle(t *testing.T) {
	rnd := seeded(38)
	for _, size := range []uint64{3, 7, 101, 1009} {
		for n := 1; n < 12; n++ {
			var walks []walk
			for range n {
				walks = append(walks, walk{at: rnd.Uint64N(size), skip: 1 + rnd.Uint64N(size-1), weight: 5})
			}
			want := slowMaglev(walks, size)
			require.Equal(t, want, populate(walks, size))
		}
	}
}

// FIGURES 35: hosts' entries differ by one at most.
func TestMaglevBalance(t *testing.T) {
	entries := func(s *Snapshot, size int) []int {
		count := make([]int, len(s.Hosts))
		for _, i := range newMaglev(membersOf(s), size) {
			count[i]++
		}
		return count
	}
	for _, n := range []int{1, 2, 3, 10, 100, 1000} {
		for _, size := range []int{0, 1009, 10_000} {
			count := entries(crowd(n), size)
			require.LessOrEqual(t, slices.Max(count)-slices.Min(count), 1, "%d hosts", n)
		}
	}
	s := crowd(2)
	s.Hosts[1].Weight = 20
	require.Equal(t, []int{21846, 43691}, entries(s, 0), "weights 1 and 2 as Envoy documents it")
}

// FIGURES 36: which entries change when k hosts of n go, and how many needlessly.
func TestMaglevDisruption(t *testing.T) {
	if testing.Short() {
		t.Skip("builds 50 tables of 65537 entries")
	}
	for _, tt := range []struct {
		n, k           int
		all, needless  float64
		trials, margin float64
	}{
		{n: 100, k: 1, all: 0.0155, needless: 0.0055, trials: 40, margin: 0.15},
		{n: 1000, k: 10, all: 0.0337, needless: 0.0237, trials: 8, margin: 0.15},
	} {
		rnd, s := seeded(39), crowd(tt.n)
		before := newMaglev(membersOf(s), 0)
		changed, needless := 0.0, 0.0
		for range int(tt.trials) {
			after := s
			for _, i := range rnd.Perm(tt.n)[:tt.k] {
				after = away(after, i, Stale)
			}
			for slot, i := range newMaglev(membersOf(after), 0) {
				if i != before[slot] {
					changed++
					if after.Hosts[before[slot]].Eligible() {
						needless++
					}
				}
			}
		}
		require.InEpsilon(t, tt.all, changed/tt.trials/maglevSize, tt.margin, "%+v", tt)
		require.InEpsilon(t, tt.needless, needless/tt.trials/maglevSize, tt.margin, "%+v", tt)
	}
}

func TestMaglevKeepsItsTable(t *testing.T) {
	p, s := new(Maglev), crowd(3)
	table := func() *int32 { return &p.Build(s).(*placed).table.(maglev)[0] }
	first := table()
	s.Hosts[0].Conns = 50
	require.Same(t, first, table(), "loads do not matter")
	s.Hosts[0].Weight++
	require.NotSame(t, first, table())
}

func TestNextPrime(t *testing.T) {
	for n, want := range map[int]int{-1: 3, 3: 3, 4: 5, 65536: 65537, 655360: 655373, 1 << 24: 16777259} {
		require.Equal(t, want, nextPrime(n))
		require.True(t, big.NewInt(int64(want)).ProbablyPrime(20))
	}
}

func TestJumpHash(t *testing.T) {
	for _, tt := range []struct {
		key     uint64
		n, want int
	}{{1, 1, 0}, {42, 57, 43}, {0xdead10cc, 1, 0}, {0xdead10cc, 666, 361}, {256, 1024, 520}} {
		require.Equal(t, tt.want, jumpHash(tt.key, tt.n), "known from other implementations")
	}
	rnd := seeded(40)
	for range 20_000 {
		key, n := rnd.Uint64(), 1+rnd.IntN(5000)
		require.EqualValues(t, slowJumpHash(key, int64(n)), jumpHash(key, n))
	}
}

// FIGURES 39: growing from n to n+1 moves 1/(n+1) of the keys, to the new bucket.
func TestJumpGrowth(t *testing.T) {
	const keys = 1_000_000
	for _, n := range []int{10, 100, 1000} {
		moved, rnd := 0, seeded(41)
		for range keys {
			key := rnd.Uint64()
			if to := jumpHash(key, n+1); to != jumpHash(key, n) {
				require.Equal(t, n, to)
				moved++
			}
		}
		want := float64(keys) / float64(n+1)
		require.InDelta(t, want, moved, 4*math.Sqrt(want), fmt.Sprint(n))
	}
}

// One host in a hundred is eligible: the tries of a third of the keys do not
// suffice, and they go to the next eligible host.
func TestJumpFindsTheLastOne(t *testing.T) {
	s := crowd(100)
	for i := range s.Hosts {
		if i != 42 {
			s.Hosts[i].Flags = Stale
		}
	}
	require.Equal(t, 1000, shares(t, Jump{}, s, 1000, 42)[42])
}
