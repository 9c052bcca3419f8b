package node_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// withChild makes a cluster of two in which a's node, a process of its own, sends
// all connections to b. Both servers are in this process and outlive a's node.
func withChild(t *testing.T) (w *world, a, b *host, process *os.Process) {
	t.Helper()
	w = newWorld(t, false, "a", "b")
	a, b = w.hosts["a"], w.hosts["b"]
	a.serve(t, port)
	b.serve(t, port)
	b.open(t, b.role("").config())
	process = a.start(t, a.role("b"))
	return w, a, b, process
}

// kill ends a process as nothing can be caught.
func kill(t *testing.T, p *os.Process) {
	t.Helper()
	require.NoError(t, p.Kill())
	_, err := p.Wait()
	require.NoError(t, err)
}

// A host whose router was killed serves at once, resets what was redirected through
// it, and takes part again when the router is started again.
func TestKilledRouter(t *testing.T) {
	w, a, b, process := withChild(t)
	redirected := servedBy(t, w.client, a.at(port), "b")
	require.NoError(t, redirected.echo())
	beforeKill := dump(t, b.Host)
	kill(t, process)

	began := time.Now()
	fresh := mustDial(t, w.client, a.at(port))
	t.Logf("killed: a new connection was served after %v", time.Since(began))
	require.Equal(t, "a", fresh.served)
	requireReset(t, redirected)

	a.start(t, a.role("b"))
	again := servedBy(t, w.client, a.at(port), "b")
	require.NoError(t, again.echo())
	require.NoError(t, fresh.echo(), "what the host served meanwhile goes on")
	requireSame(t, beforeKill, dump(t, b.Host), "the peer did not have to change")
}

// requireReset requires that a connection ends with a reset as soon as its client
// says something.
func requireReset(t *testing.T, c *conn) {
	t.Helper()
	began := time.Now()
	err := c.echo()
	t.Logf("the redirected connection failed after %v: %v", time.Since(began), err)
	require.True(t, errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE), "%v", err)
}

// Nothing of a killed router is left once its successor has ended.
func TestStartAfterKill(t *testing.T) {
	w := newWorld(t, false, "a", "b")
	a, b := w.hosts["a"], w.hosts["b"]
	a.serve(t, port)
	b.serve(t, port)
	before := dump(t, a.Host)
	b.open(t, b.role("").config())
	for range 2 {
		kill(t, a.start(t, a.role("b")))
		require.NotEqual(t, before, dump(t, a.Host), "it had no time to undo anything")
	}
	a.start(t, a.role("b"))
	servedBy(t, w.client, a.at(port), "b")
	a.stop()
	requireSame(t, before, dump(t, a.Host))
}

// A router that hangs lets its host serve; when it goes on it takes part again.
func TestStoppedRouter(t *testing.T) {
	w, a, _, process := withChild(t)
	require.NoError(t, process.Signal(unix.SIGSTOP))
	for _, when := range []string{"at once", "after that"} {
		began := time.Now()
		c := servedBy(t, w.client, a.at(port), "a")
		t.Logf("stopped: a new connection, dialled %s, was served after %v", when, time.Since(began))
		require.NoError(t, c.echo())
		defer func() { require.NoError(t, c.echo(), "it goes on when the router does") }()
	}
	require.NoError(t, process.Signal(unix.SIGCONT))
	redirected := servedBy(t, w.client, a.at(port), "b")
	require.NoError(t, redirected.echo())
}

// When the router of a serving host is killed, what it served for a peer is reset
// as soon as the peer has noticed.
func TestKilledServingRouter(t *testing.T) {
	w := newWorld(t, false, "a", "b")
	a, b := w.hosts["a"], w.hosts["b"]
	a.serve(t, port)
	b.serve(t, port)
	b.open(t, b.role("a").config())
	process := a.start(t, a.role(""))
	redirected := servedBy(t, w.client, b.at(port), "a")
	kill(t, process)
	require.Equal(t, "b", servedBy(t, w.client, b.at(port), "b").served)
	requireReset(t, redirected)
}
