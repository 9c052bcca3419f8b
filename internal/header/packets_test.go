package header_test

import (
	"encoding/hex"
	"strings"

	"github.com/carom-dpr/carom/internal/header"
)

var (
	client4 = header.V4([]byte{192, 0, 2, 10})
	vip4    = header.V4([]byte{198, 51, 100, 1})
	client6 = header.Addr{0x20, 0x01, 0x0d, 0xb8, 0x00, 0x0c, 15: 0x10}
	vip6    = header.Addr{0x20, 0x01, 0x0d, 0xb8, 0x00, 0x0f, 15: 0x01}
)

// unhex turns readable bytes into bytes; spaces separate fields.
func unhex(s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		panic(err)
	}
	return b
}

// synOptions is what Linux puts into a SYN: MSS 1460, SACK permitted, timestamps,
// NOP, window scale.
var synOptions = unhex("020405b4 0402 080a00000001 00000000 01 030307")

// segment returns a TCP segment with its header at the front, checksum included.
func segment(src, dst header.Addr, f header.TCPFields, payload string) []byte {
	b := make([]byte, header.TCPLen+40+len(payload))
	n := header.PutTCP(b, &f)
	n += copy(b[n:], payload)
	header.PutChecksum(b[:n], header.ProtoTCP, &src, &dst)
	return b[:n]
}

func datagram(src, dst header.Addr, sport, dport uint16, payload string) []byte {
	b := make([]byte, header.UDPLen, header.UDPLen+len(payload))
	header.PutUDP(b, &header.UDPFields{SrcPort: sport, DstPort: dport, Length: header.UDPLen + len(payload)})
	b = append(b, payload...)
	header.PutChecksum(b, header.ProtoUDP, &src, &dst)
	return b
}

// ip4 puts an IPv4 header before a payload; f's lengths and addresses are filled in.
func ip4(f header.IPv4Fields, payload []byte) []byte {
	b := make([]byte, header.IPv4Len, header.IPv4Len+len(payload))
	f.TotalLen, f.TTL = header.IPv4Len+len(payload), 64
	f.Src, f.Dst = client4, vip4
	header.PutIPv4(b, &f)
	return append(b, payload...)
}

// ip4Options is ip4 with options, a multiple of four bytes long.
func ip4Options(proto uint8, options string, payload []byte) []byte {
	opts := unhex(options)
	b := ip4(header.IPv4Fields{Protocol: proto}, append(opts, payload...))
	b[0] += uint8(len(opts) / 4)
	header.IPv4(b).ComputeChecksum()
	return b
}

// ip6 puts an IPv6 header before a payload.
func ip6(next uint8, payload ...[]byte) []byte {
	b := make([]byte, header.IPv6Len)
	for _, part := range payload {
		b = append(b, part...)
	}
	header.PutIPv6(b, &header.IPv6Fields{
		NextHeader: next, PayloadLen: len(b) - header.IPv6Len, HopLimit: 64, Src: client6, Dst: vip6,
	})
	return b
}

func syn4() []byte {
	return segment(client4, vip4, header.TCPFields{
		SrcPort: 40000, DstPort: 80, Seq: 1000, Flags: header.SYN, Window: 65535, Options: synOptions,
	}, "")
}

func data6() []byte {
	return segment(client6, vip6, header.TCPFields{
		SrcPort: 40000, DstPort: 80, Seq: 1001, Ack: 7, Flags: header.ACK | header.PSH, Window: 65535,
	}, "GET / HTTP/1.1\r\n\r\n")
}

func tcp4() []byte { return ip4(header.IPv4Fields{Protocol: header.ProtoTCP, DF: true, ID: 7}, syn4()) }
func tcp6() []byte { return ip6(header.ProtoTCP, data6()) }
func udp4() []byte {
	return ip4(header.IPv4Fields{Protocol: header.ProtoUDP, ID: 8}, datagram(client4, vip4, 5000, 53, "query"))
}
func udp6() []byte { return ip6(header.ProtoUDP, datagram(client6, vip6, 5000, 53, "query")) }

// hopByHop is an IPv6 TCP segment behind hop-by-hop options of padding.
func hopByHop() []byte {
	return ip6(header.ProtoHopByHop, unhex("06 00 0104 00000000"), data6())
}
