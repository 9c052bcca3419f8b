package hostnet

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/internal/lab"
)

// An interface that is deleted takes the capture program and all settings with it. Made
// again under its name it is captured on as before.
func TestInterfaceMadeAgain(t *testing.T) {
	for name, cfg := range map[string]Config{"tcx": {}, "clsact": {noTCX: true}, "routing": {ByRouting: true}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			var log bytes.Buffer
			cfg.Services, cfg.Log = services(w.a), slog.New(slog.NewTextHandler(&log, nil))
			e := startEngine(t, w.a, cfg, nil)
			require.NoError(t, e.net.SetAliases(addrs(w.b)))
			e.net.Beat()
			to := netip.AddrPortFrom(w.a.Addr4(), port)
			serveEcho(t, w.a, to.String())
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- e.net.Run(ctx) }()

			plug, err := w.lab.Unplug(w.a, 0, lab.Port{Addrs: []netip.Prefix{
				netip.PrefixFrom(w.a.Addr4(), 24), netip.PrefixFrom(w.a.Addr6(), 64),
			}})
			require.NoError(t, err)
			require.Eventually(t, func() bool { return slices.Equal(e.missing(t), []string{"eth0"}) }, limit, time.Millisecond)
			require.NoError(t, e.net.SetAliases(addrs(w.client)[:1]), "aliases do not depend on it")
			require.NoError(t, e.net.SetAliases(addrs(w.b)))
			require.NoError(t, plug())
			require.Eventually(t, func() bool { return e.missing(t) == nil }, limit, time.Millisecond)

			c := dial(t, w.client, to)
			echo(t, c, 1000)
			require.Equal(t, "S", tcpFlags(t, e.take())[0])
			replies, err := e.net.routes(families[0].id, e.net.cfg.Table+1)
			require.NoError(t, err)
			require.NotEmpty(t, replies)
			cancel()
			require.NoError(t, <-done)
			require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("interface is gone")), log.String())
			require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("interface is there again")), log.String())
		})
	}
}

// missing returns the interfaces that are gone.
func (e *engine) missing(t *testing.T) []string {
	t.Helper()
	stats, err := e.net.Stats()
	require.NoError(t, err)
	return stats.Missing
}
