package node_test

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/node"
)

// abort resets the server's connections, as a server does that is killed.
func (s *server) abort(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		require.NoError(t, c.(*net.TCPConn).SetLinger(0))
		require.NoError(t, c.Close())
	}
}

// redirecting is a cluster in which a hands everything to b, with b's server.
func redirecting(t *testing.T, v6 bool, change func(*node.Config)) (w *world, a *host, served *server) {
	t.Helper()
	w = newWorld(t, v6, "a", "b")
	a, b := w.hosts["a"], w.hosts["b"]
	a.serve(t, port)
	served = b.serve(t, port)
	for h, to := range map[*host]string{a: "b", b: ""} {
		cfg := h.role(to).config()
		change(&cfg)
		h.open(t, cfg)
	}
	w.await(t)
	return w, a, served
}

func (h *host) flows(state dpr.State) int { return h.node.Status().Engine.Flows[state] }

// A connection is known to be there soon after its handshake, and known to be gone
// soon after its server ended it with a reset, which passes the entry host by (A22).
func TestConnectionsAreConfirmed(t *testing.T) {
	eachFamily(t, func(t *testing.T, v6 bool) {
		t.Parallel() // most of it is waiting
		_, a, served := redirecting(t, v6, func(*node.Config) {})
		w := a.w
		const conns = 50
		for range conns {
			servedBy(t, w.client, a.at(port), "b")
		}
		require.GreaterOrEqual(t, a.node.Status().Engine.Open["b"][service], conns)
		eventually(t, "all are confirmed", func() bool {
			return a.flows(dpr.Established) == conns && a.flows(dpr.Unconfirmed) == 0
		})
		require.Equal(t, conns, a.node.Status().Engine.Open["b"][service])
		served.abort(t)
		eventually(t, "all are known to be gone", func() bool { return a.node.Status().Engine.Open["b"][service] == 0 })
		status := a.node.Status()
		require.GreaterOrEqual(t, status.Confirm.Gone, uint64(conns))
		require.NotZero(t, status.Tunnel.ControlsSent)
		require.NotZero(t, status.Tunnel.ControlsReceived)
		require.Zero(t, status.Confirm.Dropped)
		require.Zero(t, status.Tunnel.Dropped["replayed"])
		require.Zero(t, status.Tunnel.Dropped["control"])
	})
}

// Questions to peers that receive by IP in IP, which has no ports, go to the port that
// all hosts of the cluster have for GUE, and to others' own.
func TestConnectionsAreConfirmedAtAnotherPort(t *testing.T) {
	for _, method := range []node.Method{node.GUE, node.IPIP} {
		t.Run(method.String(), func(t *testing.T) {
			_, a, _ := redirecting(t, false, func(c *node.Config) {
				c.Method, c.TunnelPort, c.Keys = method, 7080, nil
				if method == node.GUE && c.ID == "b" {
					c.TunnelPort = 7090
				}
			})
			servedBy(t, a.w.client, a.at(port), "b")
			eventually(t, "it is confirmed", func() bool { return a.flows(dpr.Established) > 0 && a.flows(dpr.Unconfirmed) == 0 })
			require.NotZero(t, a.node.Status().Confirm.Told)
		})
	}
}

// Where answers are rewritten the server's sockets have another address, and whoever is
// not found may still be there.
func TestRewrittenConnectionsAreConfirmed(t *testing.T) {
	_, a, _ := redirecting(t, false, func(c *node.Config) { c.Services[0].Reply = dpr.ReplyRewritten })
	c := servedBy(t, a.w.client, a.at(port), "b")
	eventually(t, "it is confirmed", func() bool { return a.flows(dpr.Established) == 1 && a.flows(dpr.Unconfirmed) == 0 })
	require.NoError(t, c.echo())
}
