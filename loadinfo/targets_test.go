package loadinfo

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSetTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		to := func(i int) []netip.AddrPort { return []netip.AddrPort{netip.AddrPortFrom(node(i).Addr(), DefaultPort)} }
		a := run(t, n, 1, func(c *BroadcasterConfig) { c.To = to(2) })
		b := run(t, n, 2, func(c *BroadcasterConfig) { c.To = to(1) })
		c := run(t, n, 3, func(c *BroadcasterConfig) { c.To = to(1) })
		pass(3 * time.Second)
		require.Equal(t, "h1:up h2:up", b.states())
		require.Equal(t, "h3:up", c.states(), "nobody tells it")

		require.ErrorContains(t, a.cast.SetTargets(nil), "To is empty")
		require.ErrorContains(t, a.cast.SetTargets([]netip.AddrPort{{}}), "not an address and port")
		require.NoError(t, a.cast.SetTargets(append(to(2), to(3)...)))
		pass(3 * time.Second)
		require.Equal(t, "h1:up h2:up", b.states())
		require.Equal(t, "h1:up h3:up", c.states())

		require.NoError(t, a.cast.SetTargets(to(3)))
		pass(time.Minute)
		require.Equal(t, "h1:down h2:up", b.states())
		require.Equal(t, "h1:up h3:up", c.states())
		for _, h := range []*station{a, b, c} {
			h.stop()
		}
	})
}
