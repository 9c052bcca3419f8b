package hostnet

import (
	"os"
	"testing"
	"time"

	"net/netip"

	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
)

func TestRawSender(t *testing.T) {
	w := newWorld(t)
	var s *RawSender
	require.NoError(t, w.a.Do(func() (err error) {
		s, err = NewRawSender()
		return err
	}))
	defer s.Close()
	for i, client := range addrs(w.client) {
		server, err := w.client.ListenPacket("udp", netip.AddrPortFrom(client, 5000).String())
		require.NoError(t, err)
		defer server.Close()
		require.NoError(t, server.SetDeadline(time.Now().Add(limit)))
		// The source is not this host's: an answer may come from an alias.
		src := []string{"10.1.0.99", "fd01::99"}[i]
		b := packet(t, netip.MustParseAddr(src), client, layers.IPProtocolUDP, &layers.UDP{SrcPort: 7, DstPort: 5000}, payload([]byte("hello")))
		pkt := dpr.Packet{Buf: append(make([]byte, 9), b...), Off: 9, Len: len(b)}
		short := dpr.Packet{Buf: b[:10], Len: 10}
		empty := dpr.Packet{}
		n, err := s.Write([]dpr.Packet{short, pkt, empty})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, uint64(2*(i+1)), s.Dropped())
		got := make([]byte, 100)
		n, from, err := server.ReadFrom(got)
		require.NoError(t, err)
		require.Equal(t, "hello", string(got[:n]))
		require.Equal(t, netip.AddrPortFrom(netip.MustParseAddr(src), 7).String(), from.String())
	}
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	_, err := s.Write(nil)
	require.ErrorIs(t, err, os.ErrClosed)
}
