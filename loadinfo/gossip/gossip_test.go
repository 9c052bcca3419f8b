package gossip

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/lb"
)

func TestCluster(t *testing.T) {
	for name, h := range map[string]host{"plain": {}, "encrypted": {keys: ring(t, 1)}, "labelled": {change: func(c *Config) { c.Cluster = "blue" }}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				var hosts []*station
				for i := 1; i <= 5; i++ {
					hosts = append(hosts, run(t, n, i, h))
				}
				pass(4 * time.Second)
				hosts[2].board.Counter("www").Store(42)
				for _, h := range hosts {
					require.Equal(t, allUp(1, 5), h.states())
					seen := func() *lb.Host { return &h.board.Snapshot("www", time.Now()).Hosts[2] }
					within(t, 5*time.Second, func() bool { return seen().Estimate() == 42 })
					require.Less(t, seen().Age, 5*time.Second)
					require.Empty(t, h.log.String())
				}
				hosts[1].stop()
				synctest.Wait()
				require.Equal(t, "h1:up h2:down h3:up h4:up h5:up", hosts[4].states(), "it took leave")
				stopAll(append(hosts[2:], hosts[0])...)
			})
		})
	}
}

// five starts hosts 1 to 5 and waits until all are up everywhere.
func five(t *testing.T, n *network, h host) (hosts []*station) {
	t.Helper()
	for i := 1; i <= 5; i++ {
		hosts = append(hosts, run(t, n, i, h))
	}
	within(t, 5*time.Second, func() bool { return agree(hosts, allUp(1, 5)) })
	return hosts
}

func agree(hosts []*station, states string) bool {
	for _, h := range hosts {
		if h.states() != states {
			return false
		}
	}
	return true
}

func TestA63SameNameNewAddress(t *testing.T) {
	for name, end := range map[string]func(s *station){"leaves": func(s *station) { s.stop() }, "crashes": (*station).kill} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				hosts := five(t, n, host{})
				end(hosts[1])
				pass(time.Second)
				again := run(t, n, 2, host{addr: 9})
				rest := []*station{hosts[0], hosts[2], hosts[3], hosts[4], again}
				took := within(t, 5*time.Second, func() bool { return agree(rest, allUp(1, 5)) })
				t.Log("up at its new address after", took)
				for _, h := range rest {
					require.Equal(t, addrOf(9).Addr(), h.board.Members(time.Now())[1].Node.Addr())
				}
				pass(2 * time.Minute) // its former life dies meanwhile, for SWIM
				require.True(t, agree(rest, allUp(1, 5)))
				if name == "crashes" {
					rest = append(rest, hosts[1])
				}
				stopAll(rest...)
			})
		})
	}
}

// Two live hosts of one name: the one that booted last is heard, everywhere alike,
// and the other is told of.
func TestA63LiveConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		hosts := five(t, n, host{})
		pass(time.Second)
		twin := run(t, n, 6, host{id: "h2"})
		pass(10 * time.Second)
		for range 100 {
			pass(100 * time.Millisecond)
			for _, i := range []int{0, 2, 3, 4} {
				require.Equal(t, allUp(1, 5), hosts[i].states())
				require.Equal(t, addrOf(6).Addr(), hosts[i].board.Members(time.Now())[1].Node.Addr())
			}
		}
		require.Positive(t, hosts[1].g.Stats().Conflicts)
		require.Contains(t, hosts[1].log.String(), "two hosts claim one ID")
		stopAll(append(hosts, twin)...)
	})
}

func TestA64SameAddressNewName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		hosts := five(t, n, host{})
		hosts[1].kill()
		pass(time.Second)
		renamed := run(t, n, 2, host{id: "h9"})
		rest := []*station{hosts[0], hosts[2], hosts[3], hosts[4], renamed}
		const want = "h1:up h3:up h4:up h5:up h9:up"
		took := within(t, 5*time.Second, func() bool { return agree(rest, want) })
		t.Log("one record after", took)
		for range 600 {
			pass(100 * time.Millisecond)
			require.True(t, agree(rest, want), "and one only")
		}
		stopAll(append(rest, hosts[1])...)
	})
}

func TestA65PartitionHeals(t *testing.T) {
	left := func(a, b byte) map[byte]bool { return map[byte]bool{a: true, b: true} }
	for name, side := range map[string]map[byte]bool{
		"1|4, the seed alone": left(1, 1), "1|4": left(5, 5), "2|3": left(1, 2), "2|3, the seed with three": left(4, 5),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				hosts := five(t, n, host{})
				n.setCut(func(_ bool, from, to netip.AddrPort) bool {
					return side[from.Addr().As4()[3]] != side[to.Addr().As4()[3]]
				})
				pass(10 * time.Minute)
				require.Contains(t, hosts[0].states(), "down")
				n.setCut(nil)
				took := within(t, time.Minute, func() bool { return agree(hosts, allUp(1, 5)) })
				t.Log("one view again after", took)
				stopAll(hosts...)
			})
		})
	}
}

// Without any seed left, those who knew each other look for each other.
func TestA65PartitionHealsWithoutSeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		seed := host{change: func(c *Config) { c.Seeds = []string{addrOf(6).String()} }}
		hosts, sixth := []*station(nil), run(t, n, 6, seed)
		for i := 1; i <= 5; i++ {
			hosts = append(hosts, run(t, n, i, seed))
		}
		within(t, 5*time.Second, func() bool { return agree(hosts, allUp(1, 6)) })
		sixth.kill()
		pass(time.Minute)
		n.setCut(func(_ bool, from, to netip.AddrPort) bool {
			return (from.Addr().As4()[3] < 3) != (to.Addr().As4()[3] < 3)
		})
		pass(10 * time.Minute)
		require.Equal(t, "h1:down h2:down h3:up h4:up h5:up h6:down", hosts[4].states())
		n.setCut(nil)
		took := within(t, time.Minute, func() bool { return agree(hosts, allUp(1, 5)+" h6:down") })
		t.Log("one view again after", took)
		stopAll(append(hosts, sixth)...)
	})
}

// Who takes leave is not looked for.
func TestLeaveIsNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		hosts := five(t, n, host{})
		pass(time.Minute) // five goes by reports; by then all know each other as members too
		hosts[1].stop()
		hosts[2].kill()
		pass(time.Minute)
		for _, i := range []int{0, 3, 4} {
			require.False(t, hosts[i].g.lost.has(addrOf(2)))
			require.True(t, hosts[i].g.lost.has(addrOf(3)))
		}
		stopAll(append(hosts[2:], hosts[0])...)
	})
}

// A cut one way: SWIM goes on by TCP, the board goes by reports. No verdict flaps.
func TestA71OneWayLossOfDatagrams(t *testing.T) {
	for name, lost := range map[string]func(from, to byte) bool{
		"h3 to all": func(from, _ byte) bool { return from == 3 },
		"all to h3": func(_, to byte) bool { return to == 3 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				hosts := five(t, n, host{})
				n.setCut(func(udp bool, from, to netip.AddrPort) bool {
					return udp && lost(from.Addr().As4()[3], to.Addr().As4()[3])
				})
				pass(30 * time.Second)
				was, changes := map[string]string{}, map[string]int{}
				for range 1800 { // three minutes
					pass(100 * time.Millisecond)
					for i, h := range hosts {
						for _, verdict := range strings.Fields(h.states()) {
							id, state, _ := strings.Cut(verdict, ":")
							if about := fmt.Sprintf("h%d about %s", i+1, id); state != was[about] {
								was[about] = state
								changes[about]++
							}
						}
					}
				}
				// Streams bring three reports within seconds by chance, in one of twenty
				// such tests: up, and down again.
				for about, n := range changes {
					require.LessOrEqual(t, n-1, 6, "%s: more than twice a minute", about)
				}
				stopAll(hosts...)
			})
		})
	}
}

func TestA67Rotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		old := host{keys: ring(t, 1)}
		hosts := five(t, n, old)
		var recorded []byte
		n.mu.Lock()
		n.heard = func(from, _ netip.AddrPort, b []byte) {
			if from == addrOf(4) && recorded == nil && len(b) > 200 {
				recorded = bytes.Clone(b)
			}
		}
		n.mu.Unlock()
		hosts[2].stop() // it is off meanwhile
		rest := []*station{hosts[0], hosts[1], hosts[3], hosts[4]}
		for _, step := range [][]uint8{{1, 2}, {2, 1}, {2}} {
			for _, h := range rest {
				h.g.SetKeys(ring(t, step...))
				pass(3 * time.Second)
				require.True(t, agree(rest, "h1:up h2:up h3:down h4:up h5:up"), h.states())
			}
		}
		for _, h := range rest {
			require.Zero(t, h.g.Stats().UnknownKey)
			require.Empty(t, h.log.String())
		}
		late := run(t, n, 3, old)
		pass(2 * time.Minute)
		require.True(t, agree(rest, "h1:up h2:up h3:down h4:up h5:up"))
		require.Equal(t, "h3:up", late.states())
		require.Positive(t, hosts[0].g.Stats().UnknownKey)
		require.Contains(t, hosts[0].log.String(), "undecryptable", "not silently")
		require.Contains(t, hosts[0].log.String(), "from=10.0.0.3")
		require.LessOrEqual(t, strings.Count(hosts[0].log.String(), "undecryptable"), 2, "once a minute")
		require.Contains(t, late.log.String(), "a seed does not answer", "nor does it think that all is well")

		view := hosts[0].states()
		require.NotNil(t, recorded)
		for range 20 { // under a key that is gone
			hosts[0].sock.queue <- datagram{addrOf(4), bytes.Clone(recorded)}
		}
		pass(time.Second)
		require.Equal(t, view, hosts[0].states())
		late.g.SetKeys(ring(t, 2))
		within(t, time.Minute, func() bool { return agree(append(rest, late), allUp(1, 5)) })
		stopAll(append(rest, late)...)
	})
}

// A datagram that is recorded and sent again, under a key that is in use.
func TestA67Replay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		var recorded [][]byte
		n.heard = func(_, to netip.AddrPort, b []byte) {
			if to == addrOf(1) && len(recorded) < 1000 {
				recorded = append(recorded, bytes.Clone(b))
			}
		}
		hosts := five(t, n, host{keys: ring(t, 1)})
		hosts[4].stop()
		pass(30 * time.Second)
		before := hosts[0].g.Stats().Accepted
		require.Equal(t, "h1:up h2:up h3:up h4:up h5:down", hosts[0].states())
		for _, b := range recorded {
			hosts[0].sock.queue <- datagram{addrOf(5), bytes.Clone(b)}
		}
		synctest.Wait()
		require.Equal(t, "h1:up h2:up h3:up h4:up h5:down", hosts[0].states())
		require.Equal(t, before, hosts[0].g.Stats().Accepted)
		stopAll(hosts[:4]...)
	})
}

func TestTurnOnEncryption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		hosts := five(t, n, host{})
		for _, h := range hosts {
			h.g.SetKeys(ring(t, 1))
		}
		within(t, time.Minute, func() bool { return agree(hosts, allUp(1, 5)) })
		hosts[0].g.SetKeys(nil)
		require.Contains(t, hosts[0].log.String(), "turned off by a restart")
		pass(10 * time.Second)
		require.True(t, agree(hosts, allUp(1, 5)))
		stopAll(hosts...)
	})
}
