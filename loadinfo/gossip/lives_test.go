package gossip

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/loadinfo"
)

// booted has a host say that it booted at another time than its clock says.
func booted(boot uint64, id string, addr int) func(c *Config) {
	return func(c *Config) {
		_ = c.Board.SetSelf(loadinfo.Self{
			ID: id, Boot: boot, Node: netip.AddrPortFrom(addrOf(addr).Addr(), 6080), Services: []loadinfo.OwnService{{Name: "www"}},
		})
	}
}

// A70: a host crashes, and its clock has gone back when it is there again. What others
// still tell of its former life does not end the new one.
func TestA70RestartWithAnEarlierClock(t *testing.T) {
	for name, addr := range map[string]int{"same address": 2, "new address": 9} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				hosts := five(t, n, host{})
				hosts[1].kill()
				pass(time.Second)
				again := run(t, n, 2, host{addr: addr, change: booted(1, "h2", addr)})
				rest := []*station{hosts[0], hosts[2], hosts[3], hosts[4], again}
				took := within(t, 30*time.Second, func() bool {
					return agree(rest, allUp(1, 5)) && !slices.ContainsFunc(rest, func(h *station) bool {
						return h.board.Members(time.Now())[1].Boot != 1
					})
				})
				t.Log("up again after", took)
				began := time.Now()
				for range 1200 {
					pass(100 * time.Millisecond)
					for _, h := range rest {
						require.Equal(t, allUp(1, 5), h.states(), "host %d, %v later", h.i, time.Since(began))
					}
				}
				stopAll(append(rest, hosts[1])...)
			})
		})
	}
}

// A host that restarts again and again, before anybody has noticed, is there in the end,
// and its former lives are looked for by nobody.
func TestRestartsInARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		hosts := five(t, n, host{})
		var killed []*station
		for i := range 10 {
			if i%2 == 0 {
				hosts[1].kill()
				killed = append(killed, hosts[1])
			} else {
				hosts[1].stop()
			}
			hosts[1] = run(t, n, 2, host{addr: 20 + i})
			pass(time.Duration(i) * 100 * time.Millisecond)
		}
		took := within(t, 30*time.Second, func() bool { return agree(hosts, allUp(1, 5)) })
		t.Log("up after", took)
		for range 1200 {
			pass(100 * time.Millisecond)
			require.True(t, agree(hosts, allUp(1, 5)))
		}
		stopAll(append(hosts, killed...)...)
	})
}
