package loadinfo

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/lb"
)

// eligible lists the hosts that would get new connections of www.
func eligible(b *Board, now time.Time) (list string) {
	s := b.Snapshot("www", now)
	for i := range s.Hosts {
		if s.Hosts[i].Eligible() {
			list += s.Hosts[i].ID + " "
		}
	}
	return list
}

var serving = Self{ID: "self", Boot: 1, Services: []OwnService{{Name: "www"}}}

func TestBlackout(t *testing.T) {
	b := withSelf(t, BoardConfig{}, serving)
	hear := func(boot, seq uint64, after time.Duration) {
		require.NoError(t, b.Receive(says("a", boot, seq, 1, 0), at(after)))
	}
	hear(1, 1, 0)
	require.Equal(t, "a:joining self:up", states(b, at(0)))
	require.Equal(t, "self ", eligible(b, at(0)))
	hear(1, 2, 500*time.Millisecond)
	require.Equal(t, "a:joining self:up", states(b, at(1100*time.Millisecond)), "time alone does not help")
	hear(1, 3, 1200*time.Millisecond)
	require.Equal(t, "a:up self:up", states(b, at(1200*time.Millisecond)), "heard for two periods")
	require.Equal(t, "a self ", eligible(b, at(1200*time.Millisecond)))

	const back = 30 * time.Second
	require.Equal(t, "a:down self:up", states(b, at(back)))
	hear(1, 4, back)
	require.Equal(t, "a:down self:up", states(b, at(back)), "one report does not bring it back")
	hear(1, 5, back+time.Second)
	require.Equal(t, "a:down self:up", states(b, at(back+time.Second)), "nor do two")
	hear(1, 6, back+1100*time.Millisecond)
	require.Equal(t, "a:up self:up", states(b, at(back+1100*time.Millisecond)))

	hear(2, 1, back+3*time.Second)
	require.Equal(t, "a:up self:up", states(b, at(back+3*time.Second)), "a quick restart has a history")
	hear(3, 1, 3*back)
	require.Equal(t, "a:joining self:up", states(b, at(3*back)), "a slow one has none")
}

// A single recorded datagram brings nobody back, on a board without history (A67)
// or by the detour of a network that works one way only (A71).
func TestA67ReplayWithoutHistory(t *testing.T) {
	b := withSelf(t, BoardConfig{}, serving)
	recorded := says("a", 1, 9, 1, 0)
	require.NoError(t, b.Receive(recorded, at(0)))
	for i := range 100 {
		now := at(time.Duration(i+1) * 100 * time.Millisecond)
		require.ErrorIs(t, b.Receive(recorded, now), ErrReplayed)
		require.Equal(t, "self ", eligible(b, now))
	}
	require.NoError(t, b.Receive(says("a", 2, 1, 1, 0), at(time.Minute)), "the true host is heard")
}

func TestA71DetoursDoNotFlap(t *testing.T) {
	b := withSelf(t, BoardConfig{}, serving)
	for i := range 40 { // two reports in 15 s come through
		begin := time.Duration(i) * 15 * time.Second
		require.NoError(t, b.Receive(says("h3", 1, uint64(2*i+1), 3, 0), at(begin-1200*time.Millisecond)))
		require.NoError(t, b.Receive(says("h3", 1, uint64(2*i+2), 3, 0), at(begin)))
		for d := time.Duration(0); d < 15*time.Second; d += 100 * time.Millisecond {
			require.Equal(t, "self ", eligible(b, at(begin+d)))
			if i > 0 {
				require.Equal(t, "h3:down self:up", states(b, at(begin+d)))
			}
		}
	}
}

// When most hosts fall silent at once, the network is to blame and nobody leaves.
func TestPoolIsNotEmptied(t *testing.T) {
	const stale, down = 2 * time.Second, 6 * time.Second
	for _, tt := range []struct {
		name          string
		self          bool // serves itself
		peers, silent int
		after         time.Duration
		want          string
	}{
		{"one of three is stale", true, 2, 1, stale, "h1 self "},
		{"half are stale", true, 3, 2, stale, "h2 self "},
		{"most are stale", true, 4, 3, stale, "h0 h1 h2 h3 self "},
		{"most are down: they are dead", true, 4, 3, down, "h3 self "},
		{"all others are down", true, 4, 4, down, "self "},
		{"a router hears nobody for a while", false, 3, 3, stale, "h0 h1 h2 "},
		{"a router hears nobody any more", false, 3, 3, down, "h0 h1 h2 "},
		{"a router hears one", false, 3, 2, down, "h2 "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			self := serving
			if !tt.self {
				self.Services = nil
			}
			b := withSelf(t, BoardConfig{Blackout: NoBlackout}, self)
			hear := func(i int, seq uint64, now time.Time) {
				require.NoError(t, b.Receive(says(fmt.Sprint("h", i), 1, seq, i, 0), now))
			}
			for i := range tt.peers {
				hear(i, 1, at(0))
			}
			for i := tt.silent; i < tt.peers; i++ {
				hear(i, 2, at(tt.after))
			}
			require.Equal(t, tt.want, eligible(b, at(tt.after)))
		})
	}
}

func TestDoubtSparesNoneThatDoesNotWant(t *testing.T) {
	b := withSelf(t, BoardConfig{Blackout: NoBlackout}, Self{ID: "router"})
	for i, change := range []func(r *Report){
		func(*Report) {},
		func(r *Report) { r.State = Draining },
		func(r *Report) { r.State = Joining },
		func(r *Report) { r.Services[0].Healthy = false },
		func(r *Report) { r.Services[0].Weight = 0 },
	} {
		r := says(fmt.Sprint("h", i), 1, 1, i, 0)
		change(&r)
		require.NoError(t, b.Receive(r, at(0)))
	}
	for _, after := range []time.Duration{0, 2 * time.Second, time.Minute} {
		require.Equal(t, "h0 ", eligible(b, at(after)), after)
	}
}

func TestRouterTakesWhoIsThereAtOnce(t *testing.T) {
	b := withSelf(t, BoardConfig{}, Self{ID: "router"})
	require.NoError(t, b.Receive(says("a", 1, 1, 1, 0), at(0)))
	require.Equal(t, "a ", eligible(b, at(0)), "a blackout would leave nobody")
}

func TestA62SilentAndNewHosts(t *testing.T) {
	b := withSelf(t, BoardConfig{}, serving)
	for i := range uint64(4) {
		now := at(time.Duration(i) * DefaultPeriod)
		require.NoError(t, b.Receive(says("h3", 1, i+1, 3, 0), now))
		require.NoError(t, b.Receive(says("h5", 1, i+1, 5, 0), now))
	}
	now := at(5 * time.Second)
	require.NoError(t, b.Receive(says("h5", 1, 9, 5, 0), now))
	require.NoError(t, b.Receive(says("h4", 1, 1, 4, 0), now))
	require.Equal(t, "h5 self ", eligible(b, now), "h3's 0 is old, h4's comes too early")
}

// A host with a long period is not silent because it is rare.
func TestPeriodOfTheSender(t *testing.T) {
	b := withSelf(t, BoardConfig{Blackout: NoBlackout}, serving)
	r := says("a", 1, 1, 1, 0)
	r.Period = 5 * time.Second
	require.NoError(t, b.Receive(r, at(0)))
	require.Equal(t, "a:up self:up", states(b, at(14*time.Second)))
	require.Equal(t, "a:stale self:up", states(b, at(15*time.Second)))
	require.Equal(t, "a:down self:up", states(b, at(50*time.Second)))
	r.Seq, r.Period = 2, 1<<60
	require.NoError(t, b.Receive(r, at(time.Minute)))
	b.Tick(at(2 * time.Hour))
	require.Equal(t, "self:up", states(b, at(2*time.Hour)), "no word keeps it for ever")
}

func TestFail(t *testing.T) {
	b := withSelf(t, BoardConfig{}, serving)
	for i := range uint64(4) {
		require.NoError(t, b.Receive(says("a", 5, i+1, 1, 0), at(time.Duration(i)*DefaultPeriod)))
	}
	now := at(1600 * time.Millisecond)
	b.Fail("a", 4, now)
	b.Fail("nobody", 4, now)
	require.Equal(t, "a:up self:up", states(b, now), "it was a former life")
	changes, cancel := b.Subscribe()
	defer cancel()
	b.Fail("a", 5, now)
	require.Len(t, changes, 1)
	require.Equal(t, "a:down self:up", states(b, now))
	require.NoError(t, b.Receive(says("a", 5, 5, 1, 0), now.Add(-50*time.Millisecond)))
	require.Equal(t, "a:down self:up", states(b, now), "a report that was under way")
	require.NoError(t, b.Receive(says("a", 5, 6, 1, 0), now.Add(time.Second)))
	require.NoError(t, b.Receive(says("a", 5, 7, 1, 0), now.Add(1500*time.Millisecond)))
	require.NoError(t, b.Receive(says("a", 5, 8, 1, 0), now.Add(2*time.Second)))
	require.Equal(t, "a:up self:up", states(b, now.Add(2*time.Second)), "it was not dead")
}

func TestSince(t *testing.T) {
	b := withSelf(t, BoardConfig{}, serving)
	own := func(now time.Duration) time.Duration {
		s := b.Snapshot("www", at(now))
		return s.Hosts[s.Self].Since
	}
	require.Equal(t, time.Duration(1), own(0))
	require.Equal(t, time.Minute, own(time.Minute))
	b.SetHealthy("www", false)
	require.Zero(t, own(time.Minute))
	b.SetHealthy("www", true)
	b.Tick(at(2 * time.Minute))
	require.Equal(t, time.Minute, own(3*time.Minute), "since it recovered")
	require.NoError(t, b.SetSelf(serving))
	require.Equal(t, 2*time.Minute, own(4*time.Minute), "a new description is no new start")

	peer := func(now time.Duration) time.Duration { return b.Snapshot("www", at(now)).Hosts[0].Since }
	r := says("a", 1, 1, 1, 0)
	hear := func(d time.Duration) {
		r.Seq++
		require.NoError(t, b.Receive(r, at(d)))
	}
	hear(0)
	hear(500 * time.Millisecond)
	hear(time.Second)
	require.Zero(t, peer(time.Second), "it does not say")
	r.Services[0].Since = time.Hour
	r.Seq++
	require.NoError(t, b.Receive(r, at(time.Second)))
	require.Equal(t, time.Hour+time.Second, peer(2*time.Second), "by its own word")
	hear(time.Minute)
	hear(time.Minute + 500*time.Millisecond)
	hear(time.Minute + time.Second)
	require.Equal(t, time.Second, peer(time.Minute+time.Second), "out of sight, it starts anew")
}

// TestSorted has hosts come, be forgotten and give way to others, in any order, and
// this host change its name: members and snapshots stay in the order of IDs.
func TestSorted(t *testing.T) {
	b := NewBoard(BoardConfig{Blackout: NoBlackout, ForgetAfter: 20 * time.Second, MaxHosts: 40})
	rng := rand.New(rand.NewPCG(1, 2))
	seen := map[int]bool{}
	for i := range 3000 {
		now := at(time.Duration(i) * 300 * time.Millisecond)
		r := says(fmt.Sprint("h", rng.IntN(60)), uint64(i+1), 1, rng.IntN(200), 0)
		_ = b.Receive(r, now) // some are refused
		if rng.IntN(100) == 0 {
			self := Self{ID: fmt.Sprint("h", rng.IntN(60)), Services: []OwnService{{Name: "www"}}}
			require.NoError(t, b.SetSelf(self))
		}
		b.Tick(now)
		var names []string
		for _, m := range b.Members(now) {
			names = append(names, m.ID)
		}
		want := slices.Sorted(maps.Keys(b.hosts))
		if b.self.set {
			want = slices.Sorted(slices.Values(append(want, b.self.ID)))
		}
		require.Equal(t, want, names)
		s := b.Snapshot("www", now)
		require.True(t, slices.IsSortedFunc(s.Hosts, func(a, b lb.Host) int { return strings.Compare(a.ID, b.ID) }))
		if b.self.set {
			require.Equal(t, b.self.ID, s.Hosts[s.Self].ID)
		}
		seen[len(names)] = true
	}
	require.Greater(t, len(seen), 10, "boards of many sizes")
}
