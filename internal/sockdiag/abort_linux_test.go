package sockdiag

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/internal/lab"
)

// The connections of an address end with a reset, and no others; the listener is not
// one of them, and goes on.
func TestAbort(t *testing.T) {
	lab.Require(t)
	l, err := lab.New(lab.Config{})
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	v4, v6 := netip.MustParsePrefix("10.1.0.1/24"), netip.MustParsePrefix("fd01::1/64")
	second := netip.MustParsePrefix("10.1.0.3/24")
	host, err := l.AddHost("host", v4, second, v6)
	require.NoError(t, err)
	client, err := l.AddHost("client", netip.MustParsePrefix("10.1.0.2/24"), netip.MustParsePrefix("fd01::2/64"))
	require.NoError(t, err)
	clientAddr4, clientAddr6 := client.Addr4(), client.Addr6()
	var s *Socket
	require.NoError(t, host.Do(func() error { s, err = Open(); return err }))
	defer s.Close()
	for name, tt := range map[string]struct {
		listen         string
		aborted, other netip.Addr
	}{
		"IPv4":                        {"0.0.0.0:0", v4.Addr(), second.Addr()},
		"IPv6":                        {"[::]:0", v6.Addr(), v4.Addr()},
		"IPv4 of a listener for both": {"[::]:0", v4.Addr(), v6.Addr()},
	} {
		t.Run(name, func(t *testing.T) {
			ln, err := host.Listen("tcp", tt.listen)
			require.NoError(t, err)
			defer ln.Close()
			dial := func(from *lab.Host, to netip.Addr) (client, server net.Conn) {
				at := netip.AddrPortFrom(to, uint16(ln.Addr().(*net.TCPAddr).Port))
				client, err := from.DialContext(context.Background(), "tcp", at.String())
				require.NoError(t, err)
				server, err = ln.Accept()
				require.NoError(t, err)
				t.Cleanup(func() { client.Close(); server.Close() })
				return client, server
			}
			clients, servers := make([]net.Conn, 2*batch+3), make([]net.Conn, 2*batch+3)
			for i := range clients {
				clients[i], servers[i] = dial(client, tt.aborted)
			}
			survivor, _ := dial(client, tt.other)

			n, err := s.Abort(func(p Pair) bool {
				require.Equal(t, uint16(ln.Addr().(*net.TCPAddr).Port), p.Local.Port())
				require.Contains(t, []netip.Addr{clientAddr4, clientAddr6}, p.Remote.Addr())
				return p.Local.Addr() == tt.aborted
			})
			require.NoError(t, err)
			require.Equal(t, len(clients), n)
			for i := range clients {
				_, err := clients[i].Read(make([]byte, 1))
				require.ErrorIs(t, err, unix.ECONNRESET)
				_, err = servers[i].Read(make([]byte, 1))
				require.ErrorIs(t, err, unix.ECONNABORTED)
			}
			_, err = survivor.Write([]byte("x"))
			require.NoError(t, err)
			dial(client, tt.aborted)
			n, err = s.Abort(func(Pair) bool { return false })
			require.NoError(t, err)
			require.Zero(t, n)
		})
	}
}

// A kernel that cannot end connections says so, and so does one that lets nobody.
func TestAbortSaysWhatTheKernelSays(t *testing.T) {
	for _, errno := range []unix.Errno{unix.EPERM, unix.EOPNOTSUPP} {
		body := binary.NativeEndian.AppendUint32(nil, uint32(-int32(errno)))
		require.ErrorIs(t, parseError(body), errno)
	}
	require.NoError(t, parseError(make([]byte, 4)))
	require.Error(t, parseError(nil))
}
