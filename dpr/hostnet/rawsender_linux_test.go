package hostnet

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/internal/checksum"
	"github.com/carom-dpr/carom/internal/header"
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

// What the kernel's stack would hand to a network card leaves as that sends it: in
// segments, with whole checksums, in fragments where it may.
func TestRawSenderFinishesPackets(t *testing.T) {
	w := newWorld(t)
	s := openRawSender(t, w)
	long := bytes.Repeat([]byte("0123456789"), 250)
	for i, client := range addrs(w.client) {
		src := []netip.Addr{netip.MustParseAddr("10.1.0.99"), netip.MustParseAddr("fd01::99")}[i]
		server := listenUDP(t, w, client)
		build := func(data []byte) dpr.Packet {
			b := packet(t, src, client, layers.IPProtocolUDP, &layers.UDP{SrcPort: 7, DstPort: 5000}, payload(data))
			return dpr.Packet{Buf: append(make([]byte, dpr.Headroom), b...), Off: dpr.Headroom, Len: len(b)}
		}
		short, super := partial(build(long[:1000])), partial(build(long))
		super.GSO.Type, super.GSO.Size = dpr.GSOUDP, 1000
		requireSent(t, s, short, super)
		for _, want := range [][]byte{long[:1000], long[:1000], long[1000:2000], long[2000:]} {
			require.Equal(t, want, receive(t, server))
		}
		if client.Is4() { // with an identification of 0, and DF clear
			requireSent(t, s, build(long))
			require.Equal(t, long, receive(t, server))
		}
	}
	require.Zero(t, s.Dropped())
}

// What is too long for its way and must stay whole is told to who asked for it, who may
// answer by the same sender.
func TestRawSenderTellsWhatIsTooBig(t *testing.T) {
	w := newWorld(t)
	s := openRawSender(t, w)
	for i, client := range addrs(w.client) {
		src := []netip.Addr{netip.MustParseAddr("10.1.0.99"), netip.MustParseAddr("fd01::99")}[i]
		server := listenUDP(t, w, client)
		build := func(length int) dpr.Packet {
			b := packet(t, src, client, layers.IPProtocolUDP, &layers.UDP{SrcPort: 7, DstPort: 5000}, payload(make([]byte, length)))
			if ip := header.IPv4(b); src.Is4() {
				ip.SetFragment(true, false, 0)
				ip.ComputeChecksum()
			}
			return dpr.Packet{Buf: b, Len: len(b)}
		}
		super := partial(build(4000))
		super.GSO.Type, super.GSO.Size = dpr.GSOUDP, 1600
		told := map[int]int{} // MTUs, by lengths
		s.TooBig = func(p *dpr.Packet, mtu int) {
			told[p.Len] = mtu
			requireSent(t, s, build(len(told)))
		}
		long := build(1600)
		n, err := s.Write([]dpr.Packet{long, super, build(10)})
		require.NoError(t, err)
		require.Equal(t, 2, n, "the last segment of the super-frame is short")
		require.Equal(t, map[int]int{long.Len: 1500, super.Len: 1500}, told)
		lengths := map[int]int{}
		for range 4 {
			lengths[len(receive(t, server))]++
		}
		require.Equal(t, map[int]int{1: 1, 2: 1, 10: 1, 800: 1}, lengths)
	}
}

func openRawSender(t *testing.T, w *world) (s *RawSender) {
	t.Helper()
	require.NoError(t, w.a.Do(func() (err error) {
		s, err = NewRawSender()
		return err
	}))
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func listenUDP(t *testing.T, w *world, client netip.Addr) net.PacketConn {
	t.Helper()
	server, err := w.client.ListenPacket("udp", netip.AddrPortFrom(client, 5000).String())
	require.NoError(t, err)
	t.Cleanup(func() { server.Close() })
	require.NoError(t, server.SetDeadline(time.Now().Add(limit)))
	return server
}

func receive(t *testing.T, from net.PacketConn) []byte {
	t.Helper()
	got := make([]byte, 1<<16)
	n, _, err := from.ReadFrom(got)
	require.NoError(t, err)
	return got[:n]
}

func requireSent(t *testing.T, s *RawSender, pkts ...dpr.Packet) {
	t.Helper()
	n, err := s.Write(pkts)
	require.NoError(t, err)
	require.Equal(t, len(pkts), n)
}

// partial leaves the checksum of a datagram to whoever sends it.
func partial(p dpr.Packet) dpr.Packet {
	var h header.Packet
	h.Parse(p.Bytes())
	l4 := p.Bytes()[h.L4:]
	binary.BigEndian.PutUint16(l4[6:], checksum.Fold(checksum.Pseudo(h.Src[:], h.Dst[:], h.Proto, uint32(len(l4)))))
	p.GSO = dpr.GSO{NeedsCsum: true, CsumStart: h.L4, CsumOffset: 6}
	return p
}
