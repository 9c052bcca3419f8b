package loadinfo_test

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/internal/lab"
	"github.com/carom-dpr/carom/loadinfo"
)

// Three real hosts on one Ethernet hear each other by each way of sending.
func TestOnEthernet(t *testing.T) {
	lab.Require(t)
	for _, tt := range []struct {
		name string
		to   string
		open func(to netip.AddrPort) (*net.UDPConn, error)
	}{
		{"broadcast", "10.7.0.255:6082", listenAll},
		{"limited broadcast", "255.255.255.255:6082", listenAll},
		{"IPv4 group", "239.255.6.82:6082", listenGroup},
		{"IPv6 group", "[ff05::6082]:6082", listenGroup},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, err := lab.New(lab.Config{})
			require.NoError(t, err)
			defer l.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var running, heard sync.WaitGroup
			for _, end := range []string{"1", "2", "3"} {
				h, err := l.AddHost("h"+end, netip.MustParsePrefix("10.7.0."+end+"/24"),
					netip.MustParsePrefix("fd00:7::"+end+"/64"))
				require.NoError(t, err)
				require.NoError(t, h.AddRoute(netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr("10.7.0.254")))
				board := loadinfo.NewBoard(loadinfo.BoardConfig{})
				require.NoError(t, board.SetSelf(loadinfo.Self{ID: h.Name()}))
				to, conn := netip.MustParseAddrPort(tt.to), (*net.UDPConn)(nil)
				require.NoError(t, h.Do(func() (err error) { conn, err = tt.open(to); return err }))
				cast, err := loadinfo.NewBroadcaster(loadinfo.BroadcasterConfig{
					Board: board, Conn: conn, To: []netip.AddrPort{to}, Period: 100 * time.Millisecond,
				})
				require.NoError(t, err)
				running.Go(func() { _ = cast.Run(ctx) })
				heard.Go(func() { waitFor(ctx, board, 3) })
			}
			heard.Wait()
			require.NoError(t, ctx.Err(), "not all hosts were heard")
			cancel()
			running.Wait()
		})
	}
}

func listenAll(to netip.AddrPort) (*net.UDPConn, error) {
	return loadinfo.Listen(netip.AddrPortFrom(netip.IPv4Unspecified(), to.Port()))
}

func listenGroup(to netip.AddrPort) (*net.UDPConn, error) {
	return loadinfo.ListenGroup(to, "eth0")
}

// waitFor waits until the board knows n hosts.
func waitFor(ctx context.Context, b *loadinfo.Board, n int) {
	changes, cancel := b.Subscribe()
	defer cancel()
	for len(b.Members(time.Now())) < n {
		select {
		case <-changes:
		case <-ctx.Done():
			return
		}
	}
}
