package node_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/internal/lab"
)

// A host whose interface is deleted and made again hands over what it is dialled for as
// before, and serves what it is handed.
func TestInterfaceMadeAgain(t *testing.T) {
	eachFamily(t, func(t *testing.T, v6 bool) {
		w := newWorld(t, v6, "a", "b")
		a, b := w.hosts["a"], w.hosts["b"]
		for _, h := range []*host{a, b} {
			h.serve(t, port)
			h.open(t, h.role("b").config()) // everything is b's
		}
		w.await(t)
		for _, h := range []*host{a, b} {
			plug, err := w.lab.Unplug(h.Host, 0, lab.Port{Addrs: []netip.Prefix{
				netip.PrefixFrom(h.Addr4(), 24), netip.PrefixFrom(h.Addr6(), 64),
			}})
			require.NoError(t, err)
			missing := func() []string { return h.node.Status().Capture.Missing }
			eventually(t, "the interface is missed", func() bool { return len(missing()) == 1 })
			require.NoError(t, plug())
			eventually(t, "the interface is back", func() bool { return len(missing()) == 0 })
			servedBy(t, w.client, a.at(port), "b").download(t, mebibyte)
		}
	})
}
