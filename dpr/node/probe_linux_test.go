package node_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr/node"
)

// awaitPath waits until the host knows that its path to a peer is so, and why.
func (h *host) awaitPath(t *testing.T, peer string, ok bool, why string) {
	t.Helper()
	var paths []node.Path
	eventually(t, "the path is as it should be", func() bool {
		paths = h.node.Status().Paths[peer]
		return len(paths) == 1 && paths[0].OK == ok && strings.Contains(paths[0].Why, why)
	})
	require.Equal(t, service, paths[0].Service)
	require.Equal(t, h.at(port), paths[0].Dialled)
}

// A peer whose server listens, and which answers those who dial it, but not those who
// dialled this host, gets no connections from here, and the reason is told (A40).
func TestPathCheck(t *testing.T) {
	eachFamily(t, func(t *testing.T, v6 bool) {
		t.Parallel() // most of it is waiting
		t.Run("no alias", func(t *testing.T) { pathWithoutAlias(t, v6) })
		t.Run("no listener", func(t *testing.T) { pathWithoutListener(t, v6) })
	})
}

func pathWithoutAlias(t *testing.T, v6 bool) {
	w := newWorld(t, v6, "a", "b")
	a, b := w.hosts["a"], w.hosts["b"]
	a.serve(t, port)
	b.serve(t, port)
	cfg := b.role("").config()
	cfg.AliasPrefixes = []netip.Prefix{netip.PrefixFrom(b.addr, b.addr.BitLen())}
	b.open(t, cfg)
	a.open(t, a.role("b").config())
	w.await(t)
	a.requireBroken(t, b, "no answer comes from the dialled address")

	cfg.AliasPrefixes = nil
	require.NoError(t, b.Do(func() error { return b.node.Reconfigure(cfg) }))
	a.requireWorking(t, b)
}

func pathWithoutListener(t *testing.T, v6 bool) {
	w := newWorld(t, v6, "a", "b")
	a, b := w.hosts["a"], w.hosts["b"]
	a.serve(t, port)
	bound := b.serveAt(t, b.at(port))
	b.open(t, b.role("").config())
	a.open(t, a.role("b").config())
	w.await(t)
	a.requireBroken(t, b, "no server of its listens there")

	bound.close()
	b.serve(t, port)
	a.requireWorking(t, b)
}

// requireBroken requires that the peer is well but for the path to it.
func (h *host) requireBroken(t *testing.T, peer *host, why string) {
	t.Helper()
	h.awaitPath(t, peer.Name(), false, why)
	require.Equal(t, peer.Name(), mustDial(t, h.w.client, peer.at(port)).served, "it answers those who dial it")
	eventually(t, "it says that all is well", func() bool { return allUp(h.node, 2) })
	require.Equal(t, h.Name(), mustDial(t, h.w.client, h.at(port)).served, "it gets nothing")
}

// requireWorking requires that the peer gets connections, and that probes are none.
func (h *host) requireWorking(t *testing.T, peer *host) {
	t.Helper()
	h.awaitPath(t, peer.Name(), true, "")
	require.NoError(t, servedBy(t, h.w.client, h.at(port), peer.Name()).echo())
	before := peer.node.Status()
	const probes = 4 * 2 // a SYN and a reset each, though an ACK of the connection may be among them
	eventually(t, "probes come", func() bool { return peer.node.Status().Tunnel.Received >= before.Tunnel.Received+probes })
	require.Equal(t, before.Engine.Services[service].RedirectedIn, peer.node.Status().Engine.Services[service].RedirectedIn,
		"a probe is no connection")
}
