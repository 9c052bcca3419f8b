package header_test

import (
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/internal/header"
)

// decode is an independent opinion on a packet. gopacket does not look behind
// fragment headers, so ok is false for fragments, and for what it cannot decode.
func decode(pkt []byte) (want header.Packet, ok bool) {
	first := layers.LayerTypeIPv4
	if header.Version(pkt) == 6 {
		first = layers.LayerTypeIPv6
	}
	decoded := gopacket.NewPacket(pkt, first, gopacket.Default)
	if decoded.ErrorLayer() != nil || decoded.NetworkLayer() == nil || decoded.Layer(gopacket.LayerTypeFragment) != nil {
		return want, false
	}
	src, dst := decoded.NetworkLayer().NetworkFlow().Endpoints()
	from, _ := netip.AddrFromSlice(src.Raw())
	to, _ := netip.AddrFromSlice(dst.Raw())
	want.Src, want.Dst = from.As16(), to.As16()
	switch ip := decoded.NetworkLayer().(type) {
	case *layers.IPv4:
		want.Version, want.TOS, want.HopLimit, want.FragID = 4, ip.TOS, ip.TTL, uint32(ip.Id)
		want.DF = ip.Flags&layers.IPv4DontFragment != 0
		want.Len = int(ip.Length)
		want.FragProto = uint8(ip.Protocol)
	case *layers.IPv6:
		want.Version, want.TOS, want.HopLimit, want.DF = 6, ip.TrafficClass, ip.HopLimit, true
		want.Len = header.IPv6Len + int(ip.Length)
	}
	for _, layer := range decoded.Layers()[1:] {
		switch l := layer.(type) {
		case *layers.IPv4, *layers.IPv6: // gopacket looks into tunnels, the parser does not
			return want, false
		case *layers.IPSecAH:
			want.AH = true
		case *layers.IPv6Routing:
			want.RouteDst = l.SegmentsLeft > 0
		case *layers.TCP:
			want.Proto, want.SrcPort, want.DstPort = 6, uint16(l.SrcPort), uint16(l.DstPort)
			want.Seq, want.Ack, want.TCPFlags = l.Seq, l.Ack, l.Contents[13]
			want.PayloadLen = len(l.Payload)
		case *layers.UDP:
			want.Proto, want.SrcPort, want.DstPort = 17, uint16(l.SrcPort), uint16(l.DstPort)
			want.PayloadLen = int(l.Length) - 8
		case *layers.ICMPv4:
			want.Proto, want.ICMPType, want.ICMPCode = 1, l.TypeCode.Type(), l.TypeCode.Code()
			want.PayloadLen = len(l.Payload)
		case *layers.ICMPv6: // whose header gopacket takes for four bytes long
			want.Proto, want.ICMPType, want.ICMPCode = 58, l.TypeCode.Type(), l.TypeCode.Code()
			want.PayloadLen = len(l.Payload) - 4
		default:
			continue
		}
		break
	}
	return want, want.Proto != 0
}

func TestParseAgainstGopacket(t *testing.T) {
	pkts := map[string][][]byte{
		"ip options": {ip4Options(6, "01 01 94040000 00 00", syn4())},
	}
	for name, s := range crafted() {
		pkts[name] = [][]byte{s.pkt}
	}
	least := 20 // of the crafted packets
	for _, path := range captures(t) {
		pkts[path] = capture(t, path)
		least = 800
	}
	compared := 0
	for name, pkts := range pkts {
		for i, pkt := range pkts {
			var p header.Packet
			if p.Parse(pkt) != header.OK {
				continue
			}
			want, ok := decode(pkt)
			if !ok {
				continue
			}
			compared++
			want.L4 = p.L4 // gopacket keeps no offsets; the ports prove it
			require.Equal(t, want, p, "%s, packet %d", name, i)
		}
	}
	require.Greater(t, compared, least, "the oracle must have an opinion on most packets")
}

// What the writers write, gopacket reads.
func TestWritersAgainstGopacket(t *testing.T) {
	b := make([]byte, header.IPv4Len+header.TCPLen+8)
	header.PutIPv4(b, &header.IPv4Fields{
		TOS: 0xba, TotalLen: len(b), ID: 0xbeef, DF: true, FragOffset: 0, TTL: 3, Protocol: 6, Src: client4, Dst: vip4,
	})
	n := header.PutTCP(b[header.IPv4Len:], &header.TCPFields{
		SrcPort: 1, DstPort: 2, Seq: 3, Ack: 4, Flags: header.SYN | header.ECE, Window: 5, Options: unhex("020405b4 01"),
	})
	require.Equal(t, 28, n)
	header.PutChecksum(b[header.IPv4Len:], header.ProtoTCP, &client4, &vip4)

	decoded := gopacket.NewPacket(b, layers.LayerTypeIPv4, gopacket.Default)
	ip := decoded.NetworkLayer().(*layers.IPv4)
	require.Equal(t, []any{uint8(5), uint8(0xba), uint16(48), uint16(0xbeef), layers.IPv4DontFragment, uint16(0), uint8(3), layers.IPProtocolTCP},
		[]any{ip.IHL, ip.TOS, ip.Length, ip.Id, ip.Flags, ip.FragOffset, ip.TTL, ip.Protocol})
	require.Equal(t, []string{"192.0.2.10", "198.51.100.1"}, []string{ip.SrcIP.String(), ip.DstIP.String()})
	tcp := decoded.TransportLayer().(*layers.TCP)
	require.Equal(t, []any{layers.TCPPort(1), layers.TCPPort(2), uint32(3), uint32(4), uint8(7), uint16(5), true, true, false},
		[]any{tcp.SrcPort, tcp.DstPort, tcp.Seq, tcp.Ack, tcp.DataOffset, tcp.Window, tcp.SYN, tcp.ECE, tcp.ACK})
	require.Equal(t, []layers.TCPOptionKind{layers.TCPOptionKindMSS, layers.TCPOptionKindNop, layers.TCPOptionKindEndList},
		[]layers.TCPOptionKind{tcp.Options[0].OptionType, tcp.Options[1].OptionType, tcp.Options[2].OptionType})
	requireReserialized(t, b, ip, tcp)
}

func TestIPv6WritersAgainstGopacket(t *testing.T) {
	u := datagram(client6, vip6, 5000, 53, "question")
	b := make([]byte, header.IPv6Len)
	header.PutIPv6(b, &header.IPv6Fields{
		TOS: 0xba, FlowLabel: 0x12345, PayloadLen: len(u), NextHeader: 17, HopLimit: 9, Src: client6, Dst: vip6,
	})
	b = append(b, u...)
	decoded := gopacket.NewPacket(b, layers.LayerTypeIPv6, gopacket.Default)
	ip := decoded.NetworkLayer().(*layers.IPv6)
	require.Equal(t, []any{uint8(0xba), uint32(0x12345), uint16(16), layers.IPProtocolUDP, uint8(9)},
		[]any{ip.TrafficClass, ip.FlowLabel, ip.Length, ip.NextHeader, ip.HopLimit})
	requireReserialized(t, b, ip, decoded.TransportLayer().(*layers.UDP))
	require.Equal(t, uint32(0x12345), header.IPv6(b).FlowLabel())
}

// requireReserialized lets gopacket write the packet anew, lengths and checksums
// computed, and expects the same bytes.
func requireReserialized(t *testing.T, b []byte, ip gopacket.NetworkLayer, l4 interface {
	gopacket.SerializableLayer
	SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
	LayerPayload() []byte
}) {
	require.NoError(t, l4.SetNetworkLayerForChecksum(ip))
	buf := gopacket.NewSerializeBuffer()
	require.NoError(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		ip.(gopacket.SerializableLayer), l4, gopacket.Payload(l4.LayerPayload())))
	require.Equal(t, b, buf.Bytes())
}
