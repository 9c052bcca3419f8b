package node_test

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/loadinfo"
)

// unplug takes a host off the network, as a power cut does.
func (h *host) unplug(t *testing.T) {
	t.Helper()
	link, err := h.Netlink().LinkByName("eth0")
	require.NoError(t, err)
	require.NoError(t, h.Netlink().LinkSetDown(link))
}

func isReset(err error) bool { return errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) }

// A host is cut off in the middle of transfers: the clients of what it served are reset
// by their next packet once its silence is noticed, and nobody else notices anything.
func TestDeadHost(t *testing.T) {
	eachFamily(t, func(t *testing.T, v6 bool) {
		t.Parallel() // most of it is waiting
		w := newWorld(t, v6, "a", "b", "c")
		a, b := w.hosts["a"], w.hosts["b"]
		for name, to := range map[string]string{"a": "b", "b": "", "c": "a"} {
			h := w.hosts[name]
			h.serve(t, port)
			h.open(t, h.role(to).config())
		}
		w.await(t)
		served := servedBy(t, w.client, a.at(port), "b")
		idle := servedBy(t, w.client, a.at(port), "b")
		require.NoError(t, idle.echo())
		others := []*conn{
			servedBy(t, w.client, w.hosts["c"].at(port), "a"), // neither enters nor is served there
			servedBy(t, w.client, w.hosts["c"].at(port), "a"),
		}

		upload := make(chan error, 1)
		require.NoError(t, served.ask(opUpload, 1<<40))
		go func() {
			_, err := io.Copy(served, stream(1<<40))
			upload <- err
		}()
		eventually(t, "the upload is under way", func() bool { return served.info(t).Bytes_acked > 1<<20 })
		b.unplug(t)
		for _, c := range others {
			require.NoError(t, c.echo())
		}
		eventually(t, "b is down", func() bool { return member(a.node, "b").State == loadinfo.Down })
		began := time.Now()
		require.True(t, isReset(idle.echo()))
		t.Logf("reset after %v", time.Since(began))
		require.True(t, isReset(<-upload), "by its next repetition")
		require.NotZero(t, a.node.Status().Engine.Resets)
		for _, c := range others {
			require.NoError(t, c.echo())
		}
	})
}

// A router is killed through which connections came that others serve: they are reset,
// and what the peers serve otherwise goes on.
func TestDeadEntryHost(t *testing.T) {
	w := newWorld(t, false, "a", "b", "c")
	a, b, c := w.hosts["a"], w.hosts["b"], w.hosts["c"]
	for _, h := range w.hosts {
		h.serve(t, port)
	}
	b.open(t, b.role("").config())
	c.open(t, c.role("b").config())
	process := a.start(t, a.role("b"))
	entered := servedBy(t, w.client, a.at(port), "b")
	other := servedBy(t, w.client, c.at(port), "b")
	require.NoError(t, entered.echo())
	kill(t, process)
	requireReset(t, entered)
	require.NoError(t, other.echo())
}
