package loadinfo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/internal/beat"
)

func TestBroadcast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		var hosts []*station
		for i := range 3 {
			hosts = append(hosts, run(t, n, i, nil))
		}
		hosts[2].board.Counter("www").Store(42)
		pass(600 * time.Millisecond)
		require.Equal(t, "h0:joining h1:joining h2:up", hosts[2].states(), "not heard for long enough")
		pass(3 * time.Second)
		for _, h := range hosts {
			require.Equal(t, "h0:up h1:up h2:up", h.states())
			s := h.board.Snapshot("www", time.Now())
			require.Equal(t, int64(42), s.Hosts[2].Estimate())
		}
		st := hosts[0].cast.Stats()
		require.Positive(t, st.Own)
		require.Equal(t, st.Received, st.Own+st.Accepted)
		require.Equal(t, st.Sent, st.Own)

		hosts[1].stop()
		synctest.Wait()
		require.Equal(t, "h0:up h1:draining h2:up", hosts[0].states(), "it says goodbye")
		pass(3 * time.Second)
		require.Equal(t, "h0:up h1:stale h2:up", hosts[0].states())
		pass(4 * time.Second)
		require.Equal(t, "h0:up h1:down h2:up", hosts[0].states())

		hosts[1] = run(t, n, 1, nil) // a new life, its numbers start over
		synctest.Wait()
		require.Equal(t, "h0:up h1:joining h2:up", hosts[0].states(), "heard with its first report")
		pass(3 * time.Second)
		require.Equal(t, "h0:up h1:up h2:up", hosts[0].states())
		for _, h := range hosts {
			h.stop()
		}
	})
}

// sent records when reports go out.
func sent(n *network) func() []time.Time {
	var mu sync.Mutex
	var times []time.Time
	n.heard = func(netip.AddrPort, []byte) {
		mu.Lock()
		defer mu.Unlock()
		times = append(times, time.Now())
	}
	return func() []time.Time {
		mu.Lock()
		defer mu.Unlock()
		return times
	}
}

func TestPeriodIsKeptWithinATenth(t *testing.T) {
	for _, period := range []time.Duration{100 * time.Millisecond, 400 * time.Millisecond, DefaultPeriod, 3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork()
			times := sent(n)
			h := run(t, n, 1, func(c *BroadcasterConfig) { c.Period = period })
			pass(10 * time.Minute)
			list := times()
			for i := 1; i < len(list); i++ {
				require.InDelta(t, period, list[i].Sub(list[i-1]), float64(period/10))
			}
			require.InEpsilon(t, 10*time.Minute/period, len(list), 0.12)
			h.stop()
		})
	}
}

// Each time that a process wakes costs: an idle host's reports are sent when it wakes
// anyway.
func TestIdleHostWakesAtBeatsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		board := withSelf(t, BoardConfig{}, Self{ID: "h1", Node: node(1), Services: []OwnService{{Name: "www"}}})
		ctx, cancel := context.WithCancel(t.Context())
		var woke, sent []time.Time
		var wg sync.WaitGroup
		wg.Go(func() {
			pace := func() (time.Duration, time.Duration) {
				woke = append(woke, time.Now())
				return DefaultPeriod, DefaultMinInterval
			}
			board.Announce(ctx, pace, func(*Report) { sent = append(sent, time.Now()) })
		})
		pass(time.Minute)
		cancel()
		wg.Wait()
		quiet := sent[0].Add(5 * time.Second)
		early := func(at time.Time) bool { return at.Before(quiet) }
		woke, sent = slices.DeleteFunc(woke, early), slices.DeleteFunc(sent[:len(sent)-1], early) // the last is the farewell
		for _, at := range woke {
			require.Zero(t, at.Sub(woke[0])%beat.Period)
		}
		for i, at := range sent[1:] {
			require.Equal(t, DefaultPeriod, at.Sub(sent[i]))
		}
		require.Greater(t, len(sent), 100)
	})
}

func TestLargeChangeIsSentEarly(t *testing.T) {
	for _, tt := range []struct {
		name         string
		was, becomes int32
		early        bool
	}{
		{"7 more", 0, 7, false},
		{"8 more", 0, 8, true},
		{"8 fewer", 20, 12, true},
		{"24 of 100", 100, 124, false},
		{"25 of 100", 100, 125, true},
		{"25 of 100 fewer", 100, 75, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				times := sent(n)
				h := run(t, n, 1, nil)
				h.board.Counter("www").Store(tt.was)
				pass(3 * time.Second)
				for was := len(times()); was == len(times()); {
					pass(time.Millisecond) // up to the next regular one
				}
				was := len(times())
				h.board.Counter("www").Store(tt.becomes)
				pass(DefaultPeriod / 2)
				require.Equal(t, tt.early, len(times()) > was)
				h.stop()
			})
		})
	}
}

func TestOwnStateIsSentEarly(t *testing.T) {
	for name, change := range map[string]func(b *Board){
		"drain":     func(b *Board) { b.SetState(Draining) },
		"unhealthy": func(b *Board) { b.SetHealthy("www", false) },
		"weight":    func(b *Board) { b.SetWeight("www", 0) },
		"services":  func(b *Board) { _ = b.SetSelf(Self{ID: "h1", Boot: 1 << 62, Node: node(1)}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				a, b := run(t, n, 1, nil), run(t, n, 2, nil)
				pass(3 * time.Second)
				eligible := func() bool {
					s := b.board.Snapshot("www", time.Now())
					return s.Hosts[0].ID == "h1" && s.Hosts[0].Eligible()
				}
				require.True(t, eligible())
				change(a.board)
				pass(DefaultPeriod / 2)
				require.False(t, eligible())
				a.stop()
				b.stop()
			})
		})
	}
}

func TestManyChangesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		times := sent(n)
		h := run(t, n, 1, nil)
		for range 1000 {
			h.board.Counter("www").Add(100)
			pass(time.Millisecond)
		}
		list := times()
		require.LessOrEqual(t, len(list), 21)
		for i := 1; i < len(list); i++ {
			require.GreaterOrEqual(t, list[i].Sub(list[i-1]), DefaultMinInterval)
		}
		h.stop()
	})
}

// Reports to many peers become rarer under the bound, and say so.
func TestMaxRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		const peers, rate = 200, 8 << 10
		h := run(t, n, 1, func(c *BroadcasterConfig) {
			c.MaxRate, c.To = rate, nil
			for i := range peers {
				c.To = append(c.To, netip.AddrPortFrom(node(i).Addr(), DefaultPort))
			}
		})
		far := run(t, n, 2, nil)
		pass(5 * time.Second)
		before := h.cast.Stats()
		for range 600 {
			h.board.Counter("www").Add(100)
			pass(100 * time.Millisecond)
			require.NotContains(t, far.states(), "h1:down")
		}
		require.Contains(t, far.states(), "h1:up")
		after := h.cast.Stats()
		datagrams := (after.Sent + after.SendErrors - before.Sent - before.SendErrors)
		perDatagram := after.SentBytes/after.Sent + udpOverhead
		require.InDelta(t, rate*60, datagrams*perDatagram, rate*60/10)
		h.stop()
		far.stop()
	})
}

func TestA65PartitionHeals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		var hosts []*station
		for i := range 5 {
			hosts = append(hosts, run(t, n, i, nil))
		}
		pass(3 * time.Second)
		left := func(a netip.AddrPort) bool { return a.Addr().As4()[3] < 2 }
		n.mu.Lock()
		n.drop = func(from, to netip.AddrPort) bool { return left(from) != left(to) }
		n.mu.Unlock()
		pass(61 * time.Minute) // longer than every timeout
		require.Equal(t, "h0:up h1:up", hosts[0].states())
		require.Equal(t, "h2:up h3:up h4:up", hosts[4].states())
		n.mu.Lock()
		n.drop = nil
		n.mu.Unlock()
		pass(3 * time.Second)
		for _, h := range hosts {
			require.Equal(t, "h0:up h1:up h2:up h3:up h4:up", h.states())
		}
		for _, h := range hosts {
			h.stop()
		}
	})
}

func TestA71OneWayLossDoesNotFlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		n.drop = func(from, to netip.AddrPort) bool { return from.Addr() == node(3).Addr() && from != to }
		a, deaf := run(t, n, 1, nil), run(t, n, 3, nil)
		for range 600 {
			pass(100 * time.Millisecond)
			require.Equal(t, "h1:up", a.states(), "who was never heard is not there")
		}
		require.Equal(t, "h1:up h3:up", deaf.states())
		a.stop()
		deaf.stop()
	})
}

func TestPeersOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		to := func(list ...int) func(*BroadcasterConfig) {
			return func(c *BroadcasterConfig) {
				c.To = nil
				for _, i := range list {
					c.To = append(c.To, netip.AddrPortFrom(node(i).Addr(), DefaultPort))
				}
			}
		}
		a, b := run(t, n, 1, to(2, 9)), run(t, n, 2, to(1))
		pass(3 * time.Second)
		require.Equal(t, "h1:up h2:up", a.states())
		require.Equal(t, "h1:up h2:up", b.states())
		st := a.cast.Stats()
		require.Positive(t, st.SendErrors, "peer 9 is not there")
		require.Positive(t, st.Sent, "peer 2 is told all the same")
		require.Zero(t, st.Own)
		a.stop()
		b.stop()
	})
}

// The log says what to do about a tag that is wrong, and whose it is as others write it.
func TestWrongTagInTheLog(t *testing.T) {
	from := netip.MustParseAddrPort("[::ffff:203.0.113.3]:6082")
	for name, tt := range map[string]struct {
		ours *Keyring
		want bool // that keys are blamed
	}{"with keys": {ring(t, 1), true}, "without": {nil, false}} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			b := &Broadcaster{cfg: BroadcasterConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))}}
			b.SetKeys(tt.ours)
			msg := encode(t, small(), tt.ours)
			msg[len(msg)-1] ^= 1 // of the tag
			b.take(msg, from, time.Now())
			require.Contains(t, log.String(), "from=203.0.113.3:6082 ")
			require.Contains(t, log.String(), "wrong tag")
			require.Equal(t, tt.want, strings.Contains(log.String(), "differ: give all hosts the same"), &log)
		})
	}
}

func TestRotation(t *testing.T) { // A67
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		var log bytes.Buffer
		old := func(c *BroadcasterConfig) { c.Keys = ring(t, 1) }
		a, b := run(t, n, 1, func(c *BroadcasterConfig) {
			c.Keys, c.Logger = ring(t, 1), slog.New(slog.NewTextHandler(&log, nil))
		}), run(t, n, 2, old)
		pass(3 * time.Second)
		for _, step := range [][]uint8{{1, 2}, {2, 1}, {2}} {
			for _, h := range []*station{a, b} {
				h.cast.SetKeys(ring(t, step...))
				pass(3 * time.Second)
				require.Equal(t, "h1:up h2:up", a.states())
				require.Equal(t, "h1:up h2:up", b.states())
			}
		}
		require.Zero(t, a.cast.Stats().UnknownKey)
		require.Empty(t, log.String())

		late := run(t, n, 3, old) // it was off meanwhile
		pass(3 * time.Minute)
		require.Equal(t, "h1:up h2:up", a.states())
		require.Equal(t, "h3:up", late.states())
		require.Greater(t, a.cast.Stats().UnknownKey, uint64(300))
		require.Equal(t, 3, strings.Count(log.String(), "from=203.0.113.3:6082"), "once a minute: %s", &log)
		require.Equal(t, 3, strings.Count(log.String(), "unknown key: the sender uses key 1"))
		for _, h := range []*station{a, b, late} {
			h.stop()
		}
	})
}

// recorded datagrams of all kinds, each counted under its reason, none believed.
func TestForeignDatagrams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		var recorded []byte
		n.heard = func(from netip.AddrPort, msg []byte) {
			if recorded == nil && from.Addr() == node(2).Addr() {
				recorded = bytes.Clone(msg)
			}
		}
		key := func(c *BroadcasterConfig) { c.Keys = ring(t, 7) }
		a, b := run(t, n, 1, key), run(t, n, 2, key)
		pass(3 * time.Second)
		before, view := a.cast.Stats(), a.states()
		require.Equal(t, "h1:up h2:up", view)

		flipped := bytes.Clone(recorded)
		flipped[20] ^= 4
		twin := says("h1", 1<<63, 1, 4, 0)
		foul := bytes.Clone(header)
		foul[2] = 7
		foul = append(foul, 200, 9)
		foul[5] = byte(len(foul) + tagLen)
		from := n.listen(9)
		for _, msg := range [][]byte{
			recorded, flipped, recorded[:len(recorded)-1], nil, make([]byte, 1400), []byte("GET / HTTP/1.1\r\n\r\n"),
			encode(t, small(), nil), encode(t, twin, ring(t, 7)), ring(t, 7).appendTag(foul, 7, foul),
			bytes.Repeat(recorded, 20),
		} {
			_, err := from.WriteToUDPAddrPort(msg, netip.AddrPortFrom(node(1).Addr(), DefaultPort))
			require.NoError(t, err)
		}
		synctest.Wait()
		after := a.cast.Stats()
		got := Stats{
			Received: after.Received - before.Received, Accepted: after.Accepted - before.Accepted,
			Replayed: after.Replayed, BadTag: after.BadTag, Truncated: after.Truncated, BadVersion: after.BadVersion,
			UnknownKey: after.UnknownKey, Conflicts: after.Conflicts, Malformed: after.Malformed, Full: after.Full,
		}
		require.Equal(t, Stats{
			Received: 10, Replayed: 1, BadTag: 1, Truncated: 3, BadVersion: 2, UnknownKey: 1, Conflicts: 1, Malformed: 1,
		}, got)
		require.Equal(t, view, a.states())
		a.stop()
		b.stop()
	})
}

func TestReadErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		a, b := run(t, n, 1, nil), run(t, n, 2, nil)
		s := n.socks[netip.AddrPortFrom(node(1).Addr(), DefaultPort)]
		for round := range uint64(3) {
			for range maxReadErrors {
				s.fail <- errors.New("connection refused")
			}
			pass(3 * time.Second)
			require.Equal(t, "h1:up h2:up", a.states(), "single failures are nothing")
			require.Equal(t, maxReadErrors*(round+1), a.cast.Stats().ReadErrors)
		}
		a.stop()
		b.stop()
	})
}

func TestBrokenSocketEndsRun(t *testing.T) {
	for name, breakIt := range map[string]func(s *sock){
		"closed by another": func(s *sock) { s.Close() },
		"reads fail": func(s *sock) {
			for range maxReadErrors + 1 {
				s.fail <- errors.New("interface gone")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newNetwork().listen(1)
				cast, err := NewBroadcaster(BroadcasterConfig{Board: NewBoard(BoardConfig{}), Conn: s, To: []netip.AddrPort{all}})
				require.NoError(t, err)
				breakIt(s)
				require.ErrorIs(t, cast.Run(t.Context()), errSocket)
				<-s.closed
			})
		})
	}
}

// Who stops a broadcaster may close its socket at the same moment.
func TestSocketThatGoesAtTheStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newNetwork().listen(1)
		cast, err := NewBroadcaster(BroadcasterConfig{Board: NewBoard(BoardConfig{}), Conn: s, To: []netip.AddrPort{all}})
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		late := &lateContext{ctx, make(chan struct{})}
		result := make(chan error)
		go func() { result <- cast.Run(late) }()
		synctest.Wait()
		stop()
		for range maxReadErrors + 1 {
			s.fail <- errors.New("interface gone")
		}
		synctest.Wait()
		close(late.done)
		require.NoError(t, <-result)
	})
}

// A lateContext is done before those that wait for it learn of it.
type lateContext struct {
	context.Context
	done chan struct{}
}

func (c *lateContext) Done() <-chan struct{} { return c.done }

func TestBroadcasterConfigErrors(t *testing.T) {
	good := func() BroadcasterConfig {
		return BroadcasterConfig{Board: NewBoard(BoardConfig{}), Conn: newNetwork().listen(1), To: []netip.AddrPort{all}}
	}
	_, err := NewBroadcaster(good())
	require.NoError(t, err)
	for want, change := range map[string]func(c *BroadcasterConfig){
		"BroadcasterConfig.Board":                          func(c *BroadcasterConfig) { c.Board = nil },
		"BroadcasterConfig.Conn":                           func(c *BroadcasterConfig) { c.Conn = nil },
		"BroadcasterConfig.To is empty":                    func(c *BroadcasterConfig) { c.To = nil },
		`BroadcasterConfig.To: "203.0.113.1:0" is not`:     func(c *BroadcasterConfig) { c.To[0] = netip.AddrPortFrom(node(1).Addr(), 0) },
		`BroadcasterConfig.To: "0.0.0.0:1" is not`:         func(c *BroadcasterConfig) { c.To[0] = netip.MustParseAddrPort("0.0.0.0:1") },
		"BroadcasterConfig.MinInterval 1s is above Period": func(c *BroadcasterConfig) { c.MinInterval = time.Second },
	} {
		cfg := good()
		change(&cfg)
		_, err := NewBroadcaster(cfg)
		require.ErrorContains(t, err, want)
	}
}

// The socket of a Broadcaster is that of one Run.
func TestBroadcasterRunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := NewBroadcaster(BroadcasterConfig{Board: NewBoard(BoardConfig{}), Conn: newNetwork().listen(1), To: []netip.AddrPort{all}})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- b.Run(ctx) }()
		synctest.Wait()
		require.ErrorContains(t, b.Run(ctx), "Run was called already")
		require.Empty(t, done, "the first goes on")
		cancel()
		require.NoError(t, <-done)
		require.ErrorContains(t, b.Run(context.Background()), "Run was called already")
	})
}

// Two hosts over real sockets on the loopback interface.
func TestUDP(t *testing.T) {
	var conns []*net.UDPConn
	for range 2 {
		c, err := Listen(netip.MustParseAddrPort("127.0.0.1:0"))
		require.NoError(t, err)
		conns = append(conns, c)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var running sync.WaitGroup
	var heard []<-chan struct{}
	for i, c := range conns {
		b := withSelf(t, BoardConfig{}, Self{ID: fmt.Sprint("h", i), Services: []OwnService{{Name: "www"}}})
		changes, _ := b.Subscribe()
		heard = append(heard, changes)
		peer := conns[1-i].LocalAddr().(*net.UDPAddr).AddrPort()
		cast, err := NewBroadcaster(BroadcasterConfig{Board: b, Conn: c, To: []netip.AddrPort{peer}, Keys: ring(t, 1)})
		require.NoError(t, err)
		running.Go(func() { _ = cast.Run(ctx) })
	}
	for _, changes := range heard {
		<-changes // bounded by the test's own deadline
	}
	cancel()
	running.Wait()
}

func TestListenErrors(t *testing.T) {
	_, err := Listen(netip.MustParseAddrPort("192.0.2.1:1"))
	require.ErrorContains(t, err, "listen for reports on 192.0.2.1:1")
	_, err = ListenGroup(node(1), "lo")
	require.ErrorContains(t, err, "203.0.113.1:6080 is not a multicast group")
	_, err = ListenGroup(netip.MustParseAddrPort("239.1.2.3:6082"), "no such interface")
	require.ErrorContains(t, err, `interface "no such interface"`)
}
