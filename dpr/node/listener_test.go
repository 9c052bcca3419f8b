package node_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/node"
)

// nowhere is a device and a socket to which nothing ever comes.
type nowhere struct{ closed chan struct{} }

func (n nowhere) Read([]dpr.Packet) (int, error)       { <-n.closed; return 0, os.ErrClosed }
func (n nowhere) Write(pkts []dpr.Packet) (int, error) { return len(pkts), nil }

func (n nowhere) ReadFromUDPAddrPort([]byte) (int, netip.AddrPort, error) {
	<-n.closed
	return 0, netip.AddrPort{}, net.ErrClosed
}
func (n nowhere) WriteToUDPAddrPort(b []byte, _ netip.AddrPort) (int, error) { return len(b), nil }

func (n nowhere) Close() error {
	select {
	case <-n.closed:
	default:
		close(n.closed)
	}
	return nil
}

// shortPeriod is how often a node reports to nobody.
const shortPeriod = 50 * time.Millisecond

// alone is what a node without peers is made of.
func alone() (node.Config, node.Host) {
	return node.Config{
			ID:       "a",
			Addr:     netip.MustParseAddr("198.18.0.1"),
			Services: []node.Service{{Name: "web", Port: 80}},
			Report:   []netip.AddrPort{netip.MustParseAddrPort("198.18.0.2:6082")},
			Period:   shortPeriod,
		}, node.Host{
			Devices:    []dpr.Device{nowhere{make(chan struct{})}},
			Reports:    nowhere{make(chan struct{})},
			SetPeers:   func([]node.Peer) error { return nil },
			SetAliases: func([]netip.Addr) error { return nil },
		}
}

// lonely is a node whose host counts sockets as given.
func lonely(t *testing.T, sockets func(string) dpr.Sockets) *node.Node {
	t.Helper()
	cfg, host := alone()
	host.Sockets = sockets
	n, err := node.New(cfg, host)
	require.NoError(t, err)
	t.Cleanup(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		require.NoError(t, n.Run(ended))
	})
	return n
}

func TestWrapCountsWhereTheKernelDoesNot(t *testing.T) {
	tests := map[string]struct {
		sockets func(string) dpr.Sockets
		wraps   bool
	}{
		"no kernel":     {nil, true},
		"kernel polled": {func(string) dpr.Sockets { return dpr.Sockets{Live: new(atomic.Int32)} }, true},
		"kernel counts": {func(string) dpr.Sockets {
			return dpr.Sockets{Live: new(atomic.Int32), Opened: new(atomic.Uint32)}
		}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			n := lonely(t, tt.sockets)
			for range 2 { // both listeners of a service count
				plain, err := net.Listen("tcp", "127.0.0.1:0")
				require.NoError(t, err)
				ln := n.Wrap("web", plain)
				require.Equal(t, tt.wraps, ln != plain)
				c, client := accept(t, ln)
				n.Engine().Tick(time.Now())
				require.Equal(t, tt.wraps, n.Status().Services["web"].Conns == 1)
				require.NoError(t, client.Close())
				require.NoError(t, c.Close())
				require.ErrorIs(t, c.Close(), net.ErrClosed, "counted once")
				n.Engine().Tick(time.Now())
				require.Zero(t, n.Status().Services["web"].Conns)
				require.NoError(t, ln.Close())
			}
			require.Nil(t, n.Wrap("other", nil), "a service that is not this host's")
		})
	}
}

// A name that is mistyped is told: its connections would be missed by all peers.
func TestWrapSaysWhatIsNotCounted(t *testing.T) {
	var log bytes.Buffer
	cfg, host := alone()
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	n, err := node.New(cfg, host)
	require.NoError(t, err)
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.True(t, plain == n.Wrap("wbe", plain))
	require.Contains(t, log.String(), "service=wbe")
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(t, errors.Join(n.Run(ended), plain.Close()))
}

// What servers do with a *net.TCPConn they can do with a connection that is counted.
func TestWrappedConnection(t *testing.T) {
	n := lonely(t, nil)
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ln := n.Wrap("web", plain)
	c, client := accept(t, ln)
	file, err := os.Open("listener_test.go")
	require.NoError(t, err)
	size, err := c.(io.ReaderFrom).ReadFrom(file)
	require.NoError(t, err)
	require.NoError(t, c.(interface{ CloseWrite() error }).CloseWrite())
	got, err := io.ReadAll(client)
	require.NoError(t, err)
	require.Len(t, got, int(size))
	require.NoError(t, errors.Join(file.Close(), c.Close(), client.Close(), ln.Close()))
}

// accept dials the listener and returns both ends.
func accept(t *testing.T, ln net.Listener) (c, client net.Conn) {
	t.Helper()
	client, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	c, err = ln.Accept()
	require.NoError(t, err)
	return c, client
}

func TestDrainedWaitsForConnections(t *testing.T) {
	n := lonely(t, nil)
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ln := n.Wrap("web", plain)
	c, client := accept(t, ln)
	n.Engine().Tick(time.Now())
	n.Drain()

	ctx, cancel := context.WithTimeout(t.Context(), 5*shortPeriod)
	defer cancel()
	require.ErrorIs(t, n.Drained(ctx), context.DeadlineExceeded)
	require.NoError(t, errors.Join(c.Close(), client.Close(), ln.Close()))
	n.Engine().Tick(time.Now())
	require.NoError(t, n.Drained(t.Context()))
}
