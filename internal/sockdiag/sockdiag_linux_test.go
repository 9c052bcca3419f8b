package sockdiag

import (
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func addrPort(a net.Addr) netip.AddrPort {
	t := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(t.Addr().Unmap(), t.Port())
}

// connect returns both ends of a connection over loopback to a listener.
func connect(t *testing.T, listen, dial string) (client, server *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", listen)
	require.NoError(t, err)
	defer ln.Close()
	_, port, err := net.SplitHostPort(ln.Addr().String())
	require.NoError(t, err)
	c, err := net.Dial("tcp", net.JoinHostPort(dial, port))
	require.NoError(t, err)
	s, err := ln.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { c.Close(); s.Close() })
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

func TestStates(t *testing.T) {
	for name, ends := range map[string][2]string{
		"IPv4":                        {"127.0.0.1:0", "127.0.0.1"},
		"IPv6":                        {"[::1]:0", "::1"},
		"IPv4 of a listener for both": {":0", "127.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := connect(t, ends[0], ends[1])
			s, err := Open()
			require.NoError(t, err)
			defer s.Close()
			pair := Pair{addrPort(server.LocalAddr()), addrPort(server.RemoteAddr())}
			other := Pair{pair.Local, netip.AddrPortFrom(pair.Remote.Addr(), 1)}
			state := func() State {
				var states [2]State
				require.NoError(t, s.States([]Pair{pair, other}, states[:]))
				require.Equal(t, None, states[1])
				return states[0]
			}
			require.Equal(t, Established, state())
			require.NoError(t, client.CloseWrite())
			_, err = server.Read(make([]byte, 1)) // the end
			require.Error(t, err)
			require.Equal(t, CloseWait, state())
			require.NoError(t, server.SetLinger(0))
			require.NoError(t, server.Close()) // a reset
			require.Equal(t, None, state())
		})
	}
}

// A listener is no connection, whoever asks.
func TestListenerIsNone(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	s, err := Open()
	require.NoError(t, err)
	defer s.Close()
	pairs := make([]Pair, 3*batch+1) // more than are asked at once
	for i := range pairs {
		pairs[i] = Pair{addrPort(ln.Addr()), netip.AddrPortFrom(netip.MustParseAddr("127.0.0.9"), uint16(i+1))}
	}
	states := make([]State, len(pairs))
	for i := range states {
		states[i] = TimeWait
	}
	require.NoError(t, s.States(pairs, states))
	require.Equal(t, make([]State, len(pairs)), states)
}

func FuzzParse(f *testing.F) {
	f.Add(appendRequest(nil, 7, &Pair{netip.MustParseAddrPort("127.0.0.1:1"), netip.MustParseAddrPort("127.0.0.1:2")}), uint32(7))
	f.Fuzz(func(t *testing.T, b []byte, first uint32) {
		var states [batch]State
		n, _ := parse(b, first, batch, func(i int, kind uint16, body []byte) (err error) {
			states[i], err = parseState(kind, body)
			return err
		})
		require.LessOrEqual(t, n, len(b)/16)
	})
}

func BenchmarkStates(b *testing.B) {
	s, err := Open()
	require.NoError(b, err)
	defer s.Close()
	pairs := make([]Pair, 200)
	for i := range pairs {
		pairs[i] = Pair{netip.MustParseAddrPort("127.0.0.1:9"), netip.AddrPortFrom(netip.MustParseAddr("127.0.0.9"), uint16(i+1))}
	}
	states := make([]State, len(pairs))
	for b.Loop() {
		require.NoError(b, s.States(pairs, states))
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(pairs)), "ns/socket")
}

// What is closed twice may be another file the second time.
func TestCloseTwice(t *testing.T) {
	s, err := Open()
	require.NoError(t, err)
	fd := s.fd
	require.NoError(t, s.Close())
	other, err := Open() // gets the lowest descriptor that is free
	require.NoError(t, err)
	defer other.Close()
	require.Equal(t, fd, other.fd)
	require.NoError(t, s.Close())
	require.Error(t, s.States(make([]Pair, 1), make([]State, 1)))
	require.NoError(t, other.States([]Pair{{netip.MustParseAddrPort("127.0.0.1:1"), netip.MustParseAddrPort("127.0.0.1:2")}}, make([]State, 1)))
}
