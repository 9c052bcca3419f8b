package loadinfo

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/lb"
)

// start is when the tests of the board begin; they say what time it is.
var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(d time.Duration) time.Time { return start.Add(d) }

func node(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(n)}), 6080)
}

// says makes a report of a host that serves www.
func says(id string, boot, seq uint64, at int, conns uint32) Report {
	return Report{
		ID: id, Boot: boot, Seq: seq, Weight: 100, Node: node(at), Resources: Unknown,
		Services: []ServiceReport{{ID: HashService("www"), Conns: conns, Weight: 100, Healthy: true}},
	}
}

func ids(s *lb.Snapshot) string {
	var list []string
	for _, h := range s.Hosts {
		list = append(list, h.ID)
	}
	return strings.Join(list, " ")
}

// states lists "id:state" of all members.
func states(b *Board, now time.Time) string {
	var list []string
	for _, m := range b.Members(now) {
		list = append(list, m.ID+":"+m.State.String())
	}
	return strings.Join(list, " ")
}

func withSelf(t *testing.T, cfg BoardConfig, s Self) *Board {
	t.Helper()
	b := NewBoard(cfg)
	require.NoError(t, b.SetSelf(s))
	return b
}

func TestSnapshot(t *testing.T) {
	mine := new(atomic.Int32)
	b := withSelf(t, BoardConfig{Blackout: NoBlackout}, Self{
		ID: "b", Boot: 5, Node: node(2), Weight: 30,
		Services: []OwnService{{Name: "www", Conns: mine}, {Name: "mail", Weight: 7}},
	})
	c := says("c", 1, 1, 3, 44)
	c.Resources = lb.Resources{CPU: 0.25, Memory: -1, Disk: -1, Network: 1}
	require.NoError(t, b.Receive(c, at(0)))
	require.NoError(t, b.Receive(says("a", 1, 1, 1, 11), at(time.Second)))
	mine.Store(9)

	s := b.Snapshot("www", at(time.Second))
	require.Equal(t, []lb.Host{
		{ID: "a", Weight: 100, Conns: 11, Load: Unknown},
		{ID: "b", Weight: 30, Load: Unknown, Live: mine, Since: 1, Flags: lb.Local},
		{ID: "c", Weight: 100, Conns: 44, Load: c.Resources, Age: time.Second},
	}, s.Hosts)
	require.Equal(t, 1, s.Self)
	require.Equal(t, lb.HashMembers(s.Hosts), s.Members)
	require.Equal(t, int64(9), s.Hosts[1].Estimate())

	mail := b.Snapshot("mail", at(0))
	require.Equal(t, "b", ids(mail), "who does not serve it is absent")
	require.Equal(t, uint16(7), mail.Hosts[0].Weight)
	none := b.Snapshot("nothing", at(0))
	require.Empty(t, none.Hosts)
	require.Equal(t, -1, none.Self)
}

func TestSnapshotOfRouter(t *testing.T) {
	for name, b := range map[string]*Board{
		"without SetSelf":  NewBoard(BoardConfig{Blackout: NoBlackout}),
		"without services": withSelf(t, BoardConfig{Blackout: NoBlackout}, Self{ID: "r", Node: node(9)}),
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, b.Receive(says("a", 1, 1, 1, 11), at(0)))
			s := b.Snapshot("www", at(0))
			require.Equal(t, "a", ids(s))
			require.Equal(t, -1, s.Self)
		})
	}
}

func TestHostsAgreeOnIndexes(t *testing.T) {
	var want *lb.Snapshot
	for _, self := range []string{"a", "b", "c"} {
		b := withSelf(t, BoardConfig{Blackout: NoBlackout}, Self{ID: self, Services: []OwnService{{Name: "www"}}})
		for i, id := range []string{"c", "a", "b"} {
			if id != self {
				require.NoError(t, b.Receive(says(id, 1, 1, 10+i, 0), at(0)))
			}
		}
		s := b.Snapshot("www", at(0))
		require.Equal(t, "a b c", ids(s))
		require.Equal(t, self, s.Hosts[s.Self].ID)
		if want == nil {
			want = s
		}
		require.Equal(t, want.Members, s.Members)
	}
}

func TestSilence(t *testing.T) {
	b := withSelf(t, BoardConfig{Blackout: NoBlackout}, Self{ID: "self", Services: []OwnService{{Name: "www"}}})
	require.NoError(t, b.Receive(says("a", 1, 1, 1, 3), at(0)))
	for _, tt := range []struct {
		after time.Duration
		state string
		flags lb.Flags
	}{
		{0, "a:up self:up", 0},
		{1499 * time.Millisecond, "a:up self:up", 0},
		{1500 * time.Millisecond, "a:stale self:up", lb.Stale},
		{4999 * time.Millisecond, "a:stale self:up", lb.Stale},
	} {
		require.Equal(t, tt.state, states(b, at(tt.after)))
		require.Equal(t, tt.flags, b.Snapshot("www", at(tt.after)).Hosts[0].Flags)
	}
	require.Equal(t, "a:down self:up", states(b, at(5*time.Second)))
	require.Equal(t, "self", ids(b.Snapshot("www", at(5*time.Second))))

	b.Tick(at(time.Hour - 1))
	require.Equal(t, "a:down self:up", states(b, at(time.Hour-1)))
	require.NoError(t, b.Receive(says("a", 1, 2, 1, 3), at(time.Hour-1)), "one report and it is back, without a blackout")
	require.Equal(t, "a:up self:up", states(b, at(time.Hour-1)))
	b.Tick(at(2*time.Hour - 1))
	require.Equal(t, "self:up", states(b, at(2*time.Hour-1)), "forgotten")
}

func TestStatesInSnapshot(t *testing.T) {
	for _, tt := range []struct {
		state   State
		healthy bool
		want    lb.Flags
	}{
		{Up, true, 0},
		{Up, false, lb.Unhealthy},
		{Joining, true, lb.Unhealthy},
		{Draining, true, lb.Draining},
		{Draining, false, lb.Draining | lb.Unhealthy},
	} {
		t.Run(fmt.Sprint(tt.state, tt.healthy), func(t *testing.T) {
			r := says("p", 1, 1, 1, 0)
			r.State, r.Services[0].Healthy = tt.state, tt.healthy
			b := withSelf(t, BoardConfig{Blackout: NoBlackout}, Self{
				ID: "q", State: tt.state, Services: []OwnService{{Name: "www", Unhealthy: !tt.healthy}},
			})
			require.NoError(t, b.Receive(r, at(0)))
			s := b.Snapshot("www", at(0))
			require.Equal(t, tt.want, s.Hosts[0].Flags, "peer")
			require.Equal(t, tt.want|lb.Local, s.Hosts[1].Flags, "self")
		})
	}
}

// What may follow a report of life 5, number 10, that came at time 0.
func TestOrder(t *testing.T) {
	const live, dead = time.Second, 5 * time.Second
	for _, tt := range []struct {
		name      string
		boot, seq uint64
		node      int
		after     time.Duration
		want      error
	}{
		{"the next", 5, 11, 1, live, nil},
		{"a gap", 5, 99, 1, live, nil},
		{"the same again", 5, 10, 1, live, ErrReplayed},
		{"one before", 5, 9, 1, live, ErrReplayed},
		{"a recorded one, the host being down (A67)", 5, 10, 1, dead, ErrReplayed},
		{"healed after a cut (A65)", 5, 11, 1, dead, nil},
		{"restart", 6, 1, 1, live, nil},
		{"restart at another address (A63)", 6, 1, 2, live, nil},
		{"moved without a restart", 5, 11, 2, live, nil},
		{"from the former life", 4, 11, 1, live, ErrReplayed},
		{"its clock went back, too early", 4, 1, 1, dead - 1, ErrReplayed},
		{"its clock went back", 4, 1, 1, dead, nil},
		{"a second live host of the name (A63)", 4, 1, 2, live, ErrConflict},
		{"its address is free once it is down", 4, 1, 2, dead, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := NewBoard(BoardConfig{Blackout: NoBlackout})
			require.NoError(t, b.Receive(says("h2", 5, 10, 1, 7), at(0)))
			err := b.Receive(says("h2", tt.boot, tt.seq, tt.node, 8), at(tt.after))
			m := b.Members(at(tt.after))
			require.Len(t, m, 1)
			if tt.want != nil {
				require.ErrorIs(t, err, tt.want)
				require.Equal(t, node(1), m[0].Node)
				require.Equal(t, uint32(7), m[0].Services[0].Conns)
				require.Equal(t, tt.after, m[0].Age, "a refused report is no sign of life")
				return
			}
			require.NoError(t, err)
			require.Equal(t, node(tt.node), m[0].Node)
			require.Equal(t, uint32(8), m[0].Services[0].Conns)
			require.Zero(t, m[0].Age)
		})
	}
}

// A70: a host crashes, its clock goes back, and it is heard again under its lower boot.
// Others still tell of its former life then, and of what this board had not heard of it.
func TestA70FormerLifeByADetour(t *testing.T) {
	b := withSelf(t, BoardConfig{Blackout: NoBlackout}, Self{ID: "a", Services: []OwnService{{Name: "www"}}})
	require.NoError(t, b.Receive(says("b", 5, 1, 1, 0), at(0)))
	require.NoError(t, b.Receive(says("b", 1, 1, 1, 0), at(6*time.Second)), "its former life is down")
	require.ErrorIs(t, b.Receive(says("b", 5, 2, 1, 0), at(time.Second)), ErrReplayed)
	require.ErrorIs(t, b.Receive(says("b", 4, 9, 1, 0), at(time.Second)), ErrReplayed)
	require.Equal(t, "a:up b:up", states(b, at(6*time.Second)))
	require.NoError(t, b.Receive(says("b", 6, 1, 1, 0), at(7*time.Second)), "a later one that was made later")
}

func TestA64SameAddressNewName(t *testing.T) {
	b := NewBoard(BoardConfig{Blackout: NoBlackout})
	require.NoError(t, b.Receive(says("h2", 5, 1, 2, 100), at(0)))
	require.NoError(t, b.Receive(says("h9", 6, 1, 2, 3), at(time.Second)))
	s := b.Snapshot("www", at(time.Second))
	require.Equal(t, "h9", ids(s), "one record, and the load counts once")

	require.ErrorIs(t, b.Receive(says("h2", 5, 2, 2, 100), at(time.Second)), ErrConflict)
	require.ErrorIs(t, b.Receive(says("h0", 6, 1, 2, 100), at(time.Second)), ErrConflict, "neither is later")
	require.Equal(t, "h9", ids(b.Snapshot("www", at(time.Second))), "deterministic: the later boot wins")
	require.NoError(t, b.Receive(says("h2", 5, 3, 2, 100), at(6*time.Second)), "once h9 is down")
	require.Equal(t, "h2:up", states(b, at(6*time.Second)))
}

func TestAddressIsFreeAfterMove(t *testing.T) {
	b := NewBoard(BoardConfig{Blackout: NoBlackout})
	require.NoError(t, b.Receive(says("a", 9, 1, 1, 0), at(0)))
	require.NoError(t, b.Receive(says("a", 9, 2, 2, 0), at(1)))
	require.NoError(t, b.Receive(says("b", 1, 1, 1, 0), at(2)), "a has left it")
	require.Equal(t, "a:up b:up", states(b, at(2)))
}

func TestOwnName(t *testing.T) {
	b := withSelf(t, BoardConfig{Blackout: NoBlackout}, Self{ID: "h1", Boot: 5, Node: node(1)})
	require.ErrorIs(t, b.Receive(says("h1", 5, 1, 1, 0), at(0)), ErrOwn)
	require.ErrorIs(t, b.Receive(says("h1", 4, 1, 1, 0), at(0)), ErrReplayed)
	require.ErrorIs(t, b.Receive(says("h1", 6, 1, 2, 0), at(0)), ErrConflict)
	require.ErrorIs(t, b.Receive(says("h3", 6, 1, 1, 0), at(0)), ErrConflict, "our address")
	require.Equal(t, "h1:up", states(b, at(0)))
}

func TestSelfReplacesItsFormerLife(t *testing.T) {
	b := NewBoard(BoardConfig{Blackout: NoBlackout})
	require.NoError(t, b.Receive(says("h1", 1, 1, 1, 50), at(0)), "heard from a relay before SetSelf")
	require.NoError(t, b.SetSelf(Self{ID: "h1", Boot: 2, Services: []OwnService{{Name: "www"}}}))
	require.Equal(t, "h1", ids(b.Snapshot("www", at(0))))
}

func TestLive(t *testing.T) {
	counters, asked := map[string]*atomic.Int32{}, 0
	b := NewBoard(BoardConfig{Blackout: NoBlackout, Live: func(host, service string) *atomic.Int32 {
		asked++
		key := host + "/" + service
		if host == "n" {
			return nil
		}
		if counters[key] == nil {
			counters[key] = new(atomic.Int32)
		}
		return counters[key]
	}})
	require.NoError(t, b.Receive(says("a", 1, 1, 1, 10), at(0)))
	require.Zero(t, asked, "the name of the service is not known yet")
	s := b.Snapshot("www", at(0))
	live := counters["a/www"]
	require.Same(t, live, s.Hosts[0].Live)

	live.Store(4)
	require.Equal(t, int64(14), s.Hosts[0].Estimate(), "four handed over since the report")
	require.NoError(t, b.Receive(says("a", 1, 2, 1, 13), at(1)))
	s = b.Snapshot("www", at(1))
	require.Equal(t, int32(4), s.Hosts[0].LiveThen)
	require.Equal(t, int64(13), s.Hosts[0].Estimate(), "the report has them")
	live.Store(1)
	require.Equal(t, int64(10), s.Hosts[0].Estimate(), "three ended")
	require.Equal(t, 1, asked, "a host's counter is asked for once")

	require.NoError(t, b.Receive(says("n", 1, 1, 2, 5), at(1)))
	n := b.Snapshot("www", at(1)).Hosts[1]
	require.Nil(t, n.Live)
	require.Equal(t, int64(5), n.Estimate())
}

func TestFull(t *testing.T) { // A69
	b := NewBoard(BoardConfig{Blackout: NoBlackout, MaxHosts: 3})
	for i := range 3 {
		require.NoError(t, b.Receive(says(fmt.Sprint(i), 1, 1, i, 0), at(time.Duration(i))))
	}
	require.ErrorIs(t, b.Receive(says("x", 1, 1, 9, 0), at(3)), ErrFull)
	require.NoError(t, b.Receive(says("0", 1, 2, 0, 0), at(3)), "who is known is heard")
	require.NoError(t, b.Receive(says("y", 1, 1, 9, 0), at(5*time.Second+2)), "1 and 2 are down, 1 the longest")
	require.Equal(t, "0:stale 2:down y:up", states(b, at(5*time.Second+2)))
}

func TestA69JoinsAndLeavesAreBounded(t *testing.T) {
	b := NewBoard(BoardConfig{Blackout: NoBlackout, MaxHosts: 100})
	for i := range 20_000 {
		_ = b.Receive(says(fmt.Sprint("u", i), 1, 1, i%256, 0), at(time.Duration(i)*time.Second))
		require.LessOrEqual(t, len(b.hosts), 100)
		require.LessOrEqual(t, len(b.nodes), 100)
	}
	b.Tick(at(20_000*time.Second + time.Hour))
	require.Empty(t, b.hosts)
	require.Empty(t, b.nodes)
}

func TestA70ClockSteps(t *testing.T) {
	for name, step := range map[string]time.Duration{
		"an hour back": -time.Hour, "an hour on": time.Hour, "25 days on": 25 * 24 * time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			b := NewBoard(BoardConfig{Blackout: NoBlackout})
			require.NoError(t, b.Receive(says("a", 1, 1, 1, 0), at(0)))
			b.Tick(at(step))
			if step < 0 {
				require.Equal(t, "a:up", states(b, at(step)), "a step back expires nobody")
				require.Zero(t, b.Snapshot("www", at(step)).Hosts[0].Age, "nor is an age negative")
			}
			require.NoError(t, b.Receive(says("a", 1, 2, 1, 0), at(step)))
			require.Equal(t, "a:up", states(b, at(step+time.Second)))
			require.Equal(t, "a:stale", states(b, at(step+2*time.Second)))
			require.ErrorIs(t, b.Receive(says("a", 1, 2, 1, 0), at(step)), ErrReplayed)
		})
	}
}

func TestSubscribe(t *testing.T) {
	b := withSelf(t, BoardConfig{Blackout: NoBlackout}, Self{ID: "s", Services: []OwnService{{Name: "www"}}})
	changes, cancel := b.Subscribe()
	told := func() bool {
		select {
		case <-changes:
			return true
		default:
			return false
		}
	}
	require.False(t, told())
	require.NoError(t, b.Receive(says("a", 1, 1, 1, 0), at(0)))
	require.NoError(t, b.Receive(says("a", 1, 2, 1, 0), at(0)))
	require.True(t, told())
	require.False(t, told(), "two changes that were not fetched are one")
	require.Error(t, b.Receive(says("a", 1, 2, 1, 0), at(0)))
	require.False(t, told(), "a refused report is no change")
	for _, step := range []struct {
		what string
		at   time.Duration
		want bool
	}{
		{"still up", time.Second, false},
		{"stale", 2 * time.Second, true},
		{"still stale", 3 * time.Second, false},
		{"down", 5 * time.Second, true},
		{"still down", 6 * time.Second, false},
		{"forgotten", time.Hour, true},
		{"still forgotten", 2 * time.Hour, false},
	} {
		b.Tick(at(step.at))
		require.Equal(t, step.want, told(), step.what)
	}
	b.SetState(Draining)
	require.True(t, told())
	cancel()
	b.SetState(Up)
	require.False(t, told())
	require.Empty(t, b.watchers)
}

func TestBoardIsConcurrent(t *testing.T) {
	live := new(atomic.Int32)
	b := withSelf(t, BoardConfig{Blackout: NoBlackout, Live: func(string, string) *atomic.Int32 { return live }},
		Self{ID: "s", Services: []OwnService{{Name: "www"}}})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 200 {
				now := at(time.Duration(i) * 100 * time.Millisecond)
				_ = b.Receive(says(fmt.Sprint(g), 1, uint64(i), g, 1), now)
				live.Add(1)
				s := b.Snapshot("www", now)
				lb.HomeOrOther{}.Build(s).Pick(lb.Flow{Conn: uint64(i)}, 0)
				b.Members(now)
				b.Tick(now)
				b.SetHealthy("www", i%2 == 0)
				_, cancel := b.Subscribe()
				cancel()
				b.Report(at(0))
			}
		})
	}
	wg.Wait()
	require.True(t, slices.IsSortedFunc(b.Members(at(0)), func(a, b Member) int { return strings.Compare(a.ID, b.ID) }))
}

func BenchmarkSnapshot(b *testing.B) {
	for _, n := range []int{10, 1000} {
		board := NewBoard(BoardConfig{Blackout: NoBlackout})
		for i := range n {
			r := says(fmt.Sprintf("host-%04d", i), 1, 1, 0, 5)
			r.Node = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 6080)
			require.NoError(b, board.Receive(r, at(0)))
		}
		b.Run(fmt.Sprint("n=", n), func(b *testing.B) {
			for b.Loop() {
				board.Snapshot("www", at(0))
			}
		})
	}
}

// A report that nobody could have sent leaves no trace.
func TestReceiveValidates(t *testing.T) {
	now := time.Now()
	b := NewBoard(BoardConfig{})
	for want, r := range map[string]Report{
		"ID":    {},
		"State": {ID: "a", State: 99},
		"down":  {ID: "a", State: Down},
		"twice": {ID: "a", Services: []ServiceReport{{ID: 1}, {ID: 1}}},
	} {
		require.ErrorContains(t, b.Receive(r, now), want)
	}
	require.Empty(t, b.Members(now))
}
