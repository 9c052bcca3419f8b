package header_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/internal/header"
)

func TestIPv4View(t *testing.T) {
	h := header.IPv4(ip4(header.IPv4Fields{Protocol: 17, TOS: 0x12, ID: 0xabcd, FragOffset: 1480, More: true}, make([]byte, 8)))
	require.Equal(t, []any{20, uint8(0x12), 28, uint16(0xabcd), false, true, 1480, uint8(64), uint8(17), true},
		[]any{h.HeaderLen(), h.TOS(), h.TotalLen(), h.ID(), h.DF(), h.More(), h.FragOffset(), h.TTL(), h.Protocol(), h.ChecksumOK()})
	require.Equal(t, client4, header.V4(h.Src()))
	require.Equal(t, vip4, header.V4(h.Dst()))
	require.Len(t, h.Payload(), 8)

	h.SetTOS(1)
	h.SetID(2)
	h.SetTTL(3)
	h.SetTotalLen(27)
	h.SetFragment(true, false, 0)
	require.False(t, h.ChecksumOK())
	h.ComputeChecksum()
	require.True(t, h.ChecksumOK())
	require.Equal(t, []any{uint8(1), uint16(2), uint8(3), 27, true, false, 0},
		[]any{h.TOS(), h.ID(), h.TTL(), h.TotalLen(), h.DF(), h.More(), h.FragOffset()})
}

func TestDecrementTTL(t *testing.T) {
	for id := range 1 << 16 {
		h := header.IPv4(ip4(header.IPv4Fields{Protocol: 6, ID: uint16(id)}, nil))
		h.DecrementTTL()
		require.Equal(t, uint8(63), h.TTL())
		got := h.Checksum()
		h.ComputeChecksum()
		require.Equal(t, h.Checksum(), got, "ID %#04x", id)
	}
}

// Some identification makes the right checksum of the header 0x0000, and that is
// what must be stored: UDP's rule is not for the IPv4 header (A03).
func TestIPv4ChecksumMayBeZero(t *testing.T) {
	zeros := 0
	for id := range 1 << 16 {
		h := header.IPv4(ip4(header.IPv4Fields{Protocol: 6, ID: uint16(id)}, nil))
		require.NotEqual(t, uint16(0xffff), h.Checksum())
		if h.Checksum() == 0 {
			zeros++
		}
	}
	require.Positive(t, zeros)
}

func TestIPv6View(t *testing.T) {
	h := header.IPv6(udp6())
	h.SetTOS(0xba)
	h.SetHopLimit(7)
	require.Equal(t, []any{uint8(0xba), uint32(0), 13, uint8(17), uint8(7)},
		[]any{h.TOS(), h.FlowLabel(), h.PayloadLen(), h.NextHeader(), h.HopLimit()})
	require.Equal(t, client6[:], h.Src())
	require.Equal(t, vip6[:], h.Dst())
	require.Len(t, h.Payload(), 13)
	require.Equal(t, uint8(6), header.Version(h))

	h.SetNextHeader(59)
	h.SetPayloadLen(4)
	require.Equal(t, []any{uint8(59), 4}, []any{h.NextHeader(), len(h.Payload())})
}

func TestPutIPv6Fragment(t *testing.T) {
	var p header.Packet
	pkt := ip6(44, make([]byte, 8), make([]byte, 16))
	header.PutIPv6Fragment(pkt[header.IPv6Len:], 17, 1432, true, 0xdeadbeef)
	require.Equal(t, header.OK, p.Parse(pkt))
	require.Equal(t, []any{uint8(17), uint16(1432), true, true, uint32(0xdeadbeef)},
		[]any{p.Proto, p.FragOffset, p.More, p.Fragment, p.FragID})
}

func TestTransportViews(t *testing.T) {
	tcp := header.TCP(syn4())
	tcp.SetSrcPort(1)
	tcp.SetDstPort(2)
	tcp.SetSeq(3)
	tcp.SetFlags(header.FIN | header.ACK)
	require.Equal(t, []any{uint16(1), uint16(2), uint32(3), uint32(0), uint8(0x11), uint16(65535), uint16(0), 40},
		[]any{tcp.SrcPort(), tcp.DstPort(), tcp.Seq(), tcp.Ack(), tcp.Flags(), tcp.Window(), tcp.Urgent(), tcp.HeaderLen()})
	require.Equal(t, synOptions, tcp.Options())

	udp := header.UDP(datagram(client4, vip4, 5000, 53, "x"))
	udp.SetSrcPort(1)
	udp.SetDstPort(2)
	udp.SetLength(8)
	require.Equal(t, []any{uint16(1), uint16(2), 8}, []any{udp.SrcPort(), udp.DstPort(), udp.Length()})

	icmp := make(header.ICMP, 12)
	header.PutICMP(icmp, &header.ICMPFields{Type: 3, Code: 4, Rest: 1480})
	header.PutChecksum(icmp, header.ProtoICMP, nil, nil)
	require.Equal(t, []any{uint8(3), uint8(4), uint32(1480), uint16(1480), 4},
		[]any{icmp.Type(), icmp.Code(), icmp.Rest(), icmp.NextHopMTU(), len(icmp.Body())})
	require.True(t, header.ChecksumOK(icmp, header.ProtoICMP, nil, nil))
}

func TestChecksums(t *testing.T) {
	for name, tt := range map[string]struct {
		pkt  []byte
		want bool
	}{
		"tcp4": {tcp4(), true}, "tcp6": {tcp6(), true}, "udp4": {udp4(), true}, "udp6": {udp6(), true},
		"damaged":                {with(tcp6(), 77, 'x'), false},
		"one too much":           {crafted()["wrong checksum"].pkt, false},
		"icmp":                   {crafted()["8 bytes quoted"].pkt, true},
		"icmpv6":                 {crafted()["incomplete chain"].pkt, true},
		"udp without a checksum": {with(udp4(), 26, 0, 0), false},
		"esp":                    {ip6(50, make([]byte, 20)), false},
	} {
		t.Run(name, func(t *testing.T) {
			var p header.Packet
			require.Equal(t, header.OK, p.Parse(tt.pkt))
			require.Equal(t, tt.want, header.ChecksumOK(tt.pkt[p.L4:p.Len], p.Proto, &p.Src, &p.Dst))
		})
	}
}

// The checksum behind a routing header is that of the way's end (A53).
func TestChecksumBehindRoutingHeader(t *testing.T) {
	var p header.Packet
	pkt := crafted()["routing, one stop to go"].pkt
	require.NoError(t, dprtest.Check(pkt), "an independent opinion")
	require.Equal(t, header.OK, p.Parse(pkt))
	require.True(t, p.RouteDst)
	l4, end := pkt[p.L4:p.Len], header.Addr(pkt[p.L4-16:p.L4])
	require.False(t, header.ChecksumOK(l4, p.Proto, &p.Src, &p.Dst))
	require.True(t, header.ChecksumOK(l4, p.Proto, &p.Src, &end))
}

// A computed UDP checksum of zero is sent as 0xFFFF (A02); TCP's stays zero.
func TestComputedZero(t *testing.T) {
	udp := datagram(client6, vip6, 5000, 53, "\x00\x00")
	copy(udp[8:], udp[6:8]) // the payload that takes the sum to 0xFFFF
	header.PutChecksum(udp, header.ProtoUDP, &client6, &vip6)
	require.Equal(t, uint16(0xffff), header.UDP(udp).Checksum())
	require.True(t, header.ChecksumOK(udp, header.ProtoUDP, &client6, &vip6))

	tcp := segment(client6, vip6, header.TCPFields{}, "\x00\x00")
	copy(tcp[20:], tcp[16:18])
	header.PutChecksum(tcp, header.ProtoTCP, &client6, &vip6)
	require.Equal(t, uint16(0), header.TCP(tcp).Checksum())
	require.True(t, header.ChecksumOK(tcp, header.ProtoTCP, &client6, &vip6))

	other := []byte{1, 2, 3, 4}
	header.PutChecksum(other, header.ProtoESP, &client6, &vip6)
	require.Equal(t, []byte{1, 2, 3, 4}, other)
}

// Real checksums, as other people's stacks computed them.
func TestChecksumsOfCaptures(t *testing.T) {
	paths := captures(t)
	if paths == nil {
		t.Skip("CAROM_CAPTURES is not set")
	}
	want := map[string]bool{
		"cksum_ip4_tcp_bad": false, "tcp_urgent_1byte": true, "icmp4_frag_needed_8byte_quote": true,
		"icmp6_incomplete_header_chain": true, "cksum_ip6_route0_tcp_good": true,
	}
	for _, path := range paths {
		right, known := want[captureName(path)]
		if !known {
			continue
		}
		var p header.Packet
		pkt := capture(t, path)[0]
		require.Equal(t, header.OK, p.Parse(pkt), path)
		if p.RouteDst {
			p.Dst = header.Addr(pkt[p.L4-16 : p.L4]) // the way's end
		}
		require.Equal(t, right, header.ChecksumOK(pkt[p.L4:p.Len], p.Proto, &p.Src, &p.Dst), path)
	}
}
