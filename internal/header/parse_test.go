package header_test

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/internal/header"
)

// with returns a copy of a packet in which the bytes from an offset on are
// replaced.
func with(b []byte, offset int, replacement ...byte) []byte {
	return append(append(slices.Clone(b[:offset]), replacement...), b[offset+len(replacement):]...)
}

func TestParseFillsEveryField(t *testing.T) {
	mapped := func(s string) header.Addr { return netip.MustParseAddr(s).As16() }
	for name, tt := range map[string]struct {
		pkt  []byte
		want header.Packet
	}{
		"tcp over ipv4": {tcp4(), header.Packet{
			Version: 4, Proto: 6, FragProto: 6, L4: 20, Len: 60, DF: true, FragID: 7, HopLimit: 64,
			Src: mapped("192.0.2.10"), Dst: mapped("198.51.100.1"), SrcPort: 40000, DstPort: 80,
			TCPFlags: header.SYN, Seq: 1000,
		}},
		"tcp over ipv6": {tcp6(), header.Packet{
			Version: 6, Proto: 6, L4: 40, Len: 78, DF: true, HopLimit: 64,
			Src: client6, Dst: vip6, SrcPort: 40000, DstPort: 80,
			TCPFlags: header.ACK | header.PSH, Seq: 1001, Ack: 7, PayloadLen: 18,
		}},
		"udp over ipv4": {udp4(), header.Packet{
			Version: 4, Proto: 17, FragProto: 17, L4: 20, Len: 33, FragID: 8, HopLimit: 64,
			Src: client4, Dst: vip4, SrcPort: 5000, DstPort: 53, PayloadLen: 5,
		}},
		"padding is not part of the packet": {append(udp4(), make([]byte, 13)...), header.Packet{
			Version: 4, Proto: 17, FragProto: 17, L4: 20, Len: 33, FragID: 8, HopLimit: 64,
			Src: client4, Dst: vip4, SrcPort: 5000, DstPort: 53, PayloadLen: 5,
		}},
		"traffic class": {with(udp6(), 0, 0x6b, 0xa0), header.Packet{
			Version: 6, Proto: 17, L4: 40, Len: 53, DF: true, HopLimit: 64, TOS: 0xba,
			Src: client6, Dst: vip6, SrcPort: 5000, DstPort: 53, PayloadLen: 5,
		}},
		"icmp": {ip4(header.IPv4Fields{Protocol: 1, TOS: 0xb8}, unhex("0304 0000 0000 05d4 45")), header.Packet{
			Version: 4, Proto: 1, FragProto: 1, L4: 20, Len: 29, HopLimit: 64, TOS: 0xb8,
			Src: client4, Dst: vip4, ICMPType: 3, ICMPCode: 4, PayloadLen: 1,
		}},
		"icmpv6": {ip6(58, unhex("0200 0000 00000514")), header.Packet{
			Version: 6, Proto: 58, L4: 40, Len: 48, DF: true, HopLimit: 64,
			Src: client6, Dst: vip6, ICMPType: 2,
		}},
		"another protocol has no ports": {ip4(header.IPv4Fields{Protocol: 132}, make([]byte, 12)), header.Packet{
			Version: 4, Proto: 132, FragProto: 132, L4: 20, Len: 32, HopLimit: 64,
			Src: client4, Dst: vip4, PayloadLen: 12,
		}},
		"icmpv6 in ipv4 is another protocol": {ip4(header.IPv4Fields{Protocol: 58}, []byte{1, 2}), header.Packet{
			Version: 4, Proto: 58, FragProto: 58, L4: 20, Len: 22, HopLimit: 64,
			Src: client4, Dst: vip4, PayloadLen: 2,
		}},
		"options": {ip4Options(6, "01 01 94040000 00 00", syn4()), header.Packet{
			Version: 4, Proto: 6, FragProto: 6, L4: 28, Len: 68, HopLimit: 64,
			Src: client4, Dst: vip4, SrcPort: 40000, DstPort: 80, TCPFlags: header.SYN, Seq: 1000,
		}},
		"first fragment": {ip4(header.IPv4Fields{Protocol: 17, ID: 0x1234, More: true}, with(datagram(client4, vip4, 5000, 53, "12345678"), 4, 1, 0)), header.Packet{
			Version: 4, Proto: 17, FragProto: 17, L4: 20, Len: 36, HopLimit: 64, FragID: 0x1234, Fragment: true, More: true,
			Src: client4, Dst: vip4, SrcPort: 5000, DstPort: 53, PayloadLen: 8,
		}},
		"later fragment": {ip4(header.IPv4Fields{Protocol: 17, ID: 0x1234, FragOffset: 1480}, []byte("rest")), header.Packet{
			Version: 4, Proto: 17, FragProto: 17, L4: 20, Len: 24, HopLimit: 64, FragID: 0x1234, Fragment: true, FragOffset: 1480,
			Src: client4, Dst: vip4, PayloadLen: 4,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := header.Packet{Ack: 99, ICMPType: 99, RouteDst: true} // left over from another packet
			require.Equal(t, header.OK, p.Parse(tt.pkt))
			require.Equal(t, tt.want, p)
		})
	}
}

// Headers of the fragment and routing kinds, as hex without the next header.
const (
	fragFirst  = "00 0001 0000beef"
	fragLater  = "00 0010 0000beef"
	fragAtomic = "00 0000 0000beef"
	padOptions = "00 0104 00000000"
)

func TestParseIPv6Extensions(t *testing.T) {
	type fields struct {
		proto, fragProto         uint8
		l4                       uint16
		port                     uint16
		fragment, more, route, a bool
		id                       uint32
	}
	ext := func(next string, rest string) []byte { return unhex(next + rest) }
	rest16 := bytes.Repeat([]byte("x"), 16)
	for name, tt := range map[string]struct {
		pkt  []byte
		want fields
	}{
		"hop-by-hop and destination options": {
			ip6(0, ext("3c", padOptions), ext("06", padOptions), data6()), fields{proto: 6, l4: 56, port: 80}},
		"atomic fragment": {
			ip6(44, ext("06", fragAtomic), data6()), fields{proto: 6, l4: 48, port: 80, id: 0xbeef}},
		"first fragment": {
			ip6(44, ext("06", fragFirst), data6()[:32]), fields{proto: 6, l4: 48, port: 80, fragment: true, more: true, id: 0xbeef}},
		"first fragment with destination options": {
			ip6(44, ext("3c", fragFirst), ext("06", padOptions), data6()[:32]),
			fields{proto: 6, l4: 56, port: 80, fragment: true, more: true, id: 0xbeef}},
		"later fragment of it names the options": {
			ip6(44, ext("3c", fragLater), rest16), fields{proto: 60, l4: 48, fragment: true, id: 0xbeef}},
		"later fragment behind hop-by-hop options": {
			ip6(0, ext("2c", padOptions), ext("11", fragLater), rest16), fields{proto: 17, l4: 56, fragment: true, id: 0xbeef}},
		"routing header with segments left": {
			ip6(43, ext("06", "02 00 01 00000000"), vip6[:], data6()), fields{proto: 6, l4: 64, port: 80, route: true}},
		"routing header that is done": {
			ip6(43, ext("06", "02 00 00 00000000"), vip6[:], data6()), fields{proto: 6, l4: 64, port: 80}},
		"authentication header": {
			ip6(51, ext("06", "04 0000 00000001 00000001"), make([]byte, 12), data6()), fields{proto: 6, l4: 64, port: 80, a: true}},
		"no next header": {ip6(59), fields{proto: 59, l4: 40}},
		"no next header behind options, at the packet's end": {
			ip6(60, ext("3b", padOptions)), fields{proto: 59, l4: 48}},
		"esp": {ip6(50, make([]byte, 20)), fields{proto: 50, l4: 40}},
	} {
		t.Run(name, func(t *testing.T) {
			var p header.Packet
			require.Equal(t, header.OK, p.Parse(tt.pkt))
			require.Equal(t, tt.want, fields{p.Proto, p.FragProto, p.L4, p.DstPort, p.Fragment, p.More, p.RouteDst, p.AH, p.FragID})
			require.Equal(t, len(tt.pkt), p.Len)
		})
	}
}

func TestParseRefuses(t *testing.T) {
	tcp := func(src, dst header.Addr) []byte {
		return segment(src, dst, header.TCPFields{SrcPort: 1, DstPort: 80, Flags: header.ACK}, "data")
	}
	frag4 := func(proto uint8, offset int, more bool, payload []byte) []byte {
		return ip4(header.IPv4Fields{Protocol: proto, FragOffset: offset, More: more}, payload)
	}
	frag6 := func(next, rest string, payload []byte) []byte { return ip6(44, unhex(next+rest), payload) }
	options := func(n int) []byte { // a destination options header of 8n+8 bytes, next: another
		return append([]byte{60, byte(n), 1, byte(8*n + 4)}, make([]byte, 8*n+4)...)
	}
	for _, tt := range []struct {
		name string
		pkt  []byte
		want header.Reason
	}{
		{"empty", nil, header.Short},
		{"version 5", with(tcp4(), 0, 0x55), header.BadVersion},
		{"ipv4 header of 16 bytes", with(tcp4(), 0, 0x44), header.BadHeaderLen},
		{"ipv4 header beyond the frame", with(ip4(header.IPv4Fields{Protocol: 132}, []byte("four")), 0, 0x4f), header.BadTotalLen},
		{"total length 0", with(tcp4(), 2, 0, 0), header.BadTotalLen},
		{"total length less than the header", with(tcp4(), 2, 0, 19), header.BadTotalLen},
		{"total length beyond the frame", with(tcp4(), 2, 0, 61), header.Short},
		{"payload length beyond the frame", with(tcp6(), 4, 0, 39), header.Short},
		{"option of length 0", ip4Options(6, "07 00 00 00", syn4()), header.BadOption},
		{"option of length 1", ip4Options(6, "07 01 00 00", syn4()), header.BadOption},
		{"option beyond the header", ip4Options(6, "01 07 04 00", syn4()), header.BadOption},
		{"option without a length", ip4Options(6, "01 01 01 07", syn4()), header.BadOption},
		{"loose source route", ip4Options(6, "83 07 04 0a000001 00", syn4()), header.SourceRoute},
		{"strict source route", ip4Options(6, "01 89 07 04 0a000001", syn4()), header.SourceRoute},
		{"hop-by-hop options that are not first", ip6(60, unhex("00"+padOptions), unhex("06"+padOptions), data6()), header.BadExtension},
		{"fragment in a fragment", ip6(44, unhex("2c"+fragFirst), unhex("06"+fragFirst), data6()[:32]), header.BadExtension},
		{"nine extension headers", ip6(60, bytes.Repeat(options(0), 9), make([]byte, 8)), header.ExtLimit},
		{"264 bytes of extension headers", ip6(60, options(15), options(15), options(0), make([]byte, 8)), header.ExtLimit},
		{"one long extension header", ip6(60, options(200)), header.ExtLimit},
		{"extension header beyond the packet", ip6(60, []byte{6, 2, 0, 0, 0, 0, 0, 0}), header.Short},
		{"extension header cut in its first bytes", ip6(60, []byte{6, 0, 0}), header.Short},
		{"chain cut in a first fragment", frag6("3c", fragFirst, []byte{6, 2, 0, 0, 0, 0, 0, 0}), header.FirstFragmentShort},
		{"tcp header cut", ip4(header.IPv4Fields{Protocol: 6}, tcp(client4, vip4)[:19]), header.Short},
		{"udp header cut", ip4(header.IPv4Fields{Protocol: 17}, make([]byte, 7)), header.Short},
		{"icmp header cut", ip4(header.IPv4Fields{Protocol: 1}, make([]byte, 7)), header.Short},
		{"icmpv6 header cut", ip6(58, make([]byte, 7)), header.Short},
		{"tcp data offset of 16", with(tcp4(), 32, 0x40), header.BadTCPOffset},
		{"tcp data offset beyond the packet", with(tcp4(), 32, 0xf0), header.BadTCPOffset},
		{"udp length below its header", with(udp4(), 24, 0, 7), header.BadUDPLen},
		{"udp length beyond the packet", with(udp4(), 24, 0, 14), header.BadUDPLen},
		{"udp jumbogram", with(udp6(), 44, 0, 0), header.BadUDPLen},
		{"tiny first fragment of tcp (RFC 1858)", frag4(6, 0, true, tcp(client4, vip4)[:16]), header.FirstFragmentShort},
		{"first fragment that cuts the tcp options", frag4(6, 0, true, with(syn4(), 12, 0xa0)[:32]), header.FirstFragmentShort},
		{"first ipv6 fragment of eight bytes", frag6("06", fragFirst, data6()[:8]), header.FirstFragmentShort},
		{"fragment over the tcp header", frag4(6, 8, false, make([]byte, 32)), header.BadFragment},
		{"fragment over the end of the tcp header", frag4(6, 16, true, make([]byte, 32)), header.BadFragment},
		{"ipv6 fragment over the tcp header", frag6("06", "00 0008 00000001", make([]byte, 32)), header.BadFragment},
		{"empty fragment", frag4(17, 64, false, nil), header.BadFragment},
		{"inner fragment of 12 bytes", frag4(17, 64, true, make([]byte, 12)), header.BadFragment},
		{"fragment beyond 65535 bytes", frag4(17, 65528, false, make([]byte, 8)), header.BadFragment},
		{"ipv6 fragment beyond 65535 bytes", frag6("11", "00 fff8 00000001", make([]byte, 8)), header.BadFragment},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var p header.Packet
			require.Equal(t, tt.want.String(), p.Parse(tt.pkt).String())
		})
	}
}

// The largest fragments that still fit are those one byte shorter than the ones
// that are refused above.
func TestLastBytesOfTheLargestPacket(t *testing.T) {
	var p header.Packet
	require.Equal(t, header.OK, p.Parse(ip4(header.IPv4Fields{Protocol: 17, FragOffset: 65504}, make([]byte, 11))))
	require.Equal(t, header.OK, p.Parse(ip6(44, unhex("11 00 fff8 00000001"), make([]byte, 7))))
}

// Every proper prefix of a packet is refused, and no byte behind it is looked at
// (A51).
func TestParsePrefixes(t *testing.T) {
	for name, pkt := range map[string][]byte{
		"tcp4": tcp4(), "tcp6": tcp6(), "udp4": udp4(), "udp6": udp6(), "hopbyhop": hopByHop(),
		"ipip": ip4(header.IPv4Fields{Protocol: header.ProtoIPIP}, tcp4()),
	} {
		t.Run(name, func(t *testing.T) {
			var p header.Packet
			for n := range pkt {
				require.Equal(t, header.Short, p.Parse(pkt[:n:n]), "%d bytes", n)
			}
			require.Equal(t, header.OK, p.Parse(pkt[:len(pkt):len(pkt)]))
		})
	}
}

func TestParseFrameTakesLengthFromFrame(t *testing.T) {
	pkt := with(dprtest.TCP(from4, to4, dprtest.Options{Flags: dprtest.ACK, Payload: make([]byte, 3000)}), 2, 0, 0)
	var p header.Packet
	require.Equal(t, header.BadTotalLen, p.Parse(pkt))
	require.Equal(t, header.OK, p.ParseFrame(pkt))
	require.Equal(t, len(pkt), p.Len)
	require.Equal(t, len(pkt)-int(p.L4)-header.TCP(pkt[p.L4:]).HeaderLen(), p.PayloadLen)

	require.Equal(t, header.Short, p.Parse(with(tcp6(), 4, 0, 0)))
	require.Equal(t, header.OK, p.ParseFrame(with(tcp6(), 4, 0, 0)))
	require.Equal(t, len(tcp6()), p.Len)

	require.Equal(t, header.OK, p.ParseFrame(append(tcp4(), 0)), "a length that is there counts")
	require.Equal(t, len(tcp4()), p.Len)
}

func TestLongestPackets(t *testing.T) {
	var p header.Packet
	long := ip4(header.IPv4Fields{Protocol: 6}, segment(client4, vip4, header.TCPFields{}, string(make([]byte, 65535-40))))
	require.Equal(t, header.OK, p.Parse(long))
	require.Equal(t, 65535, p.Len)
	long = ip6(6, segment(client6, vip6, header.TCPFields{}, string(make([]byte, 65535-20))))
	require.Equal(t, header.OK, p.Parse(long))
	require.Equal(t, 65575, p.Len)
	require.Equal(t, 65515, p.PayloadLen)
}

func TestParseQuote(t *testing.T) {
	type fields struct {
		src, dst      string
		seq, ack      uint32
		flags         uint8
		payload, size int
	}
	v4, v6 := "192.0.2.10:", "[2001:db8:c::10]:"
	for name, tt := range map[string]struct {
		quote []byte
		want  fields
	}{
		"whole":                      {tcp6(), fields{v6 + "40000", "[2001:db8:f::1]:80", 1001, 7, 0x18, 18, 78}},
		"eight transport bytes":      {tcp4()[:28], fields{v4 + "40000", "198.51.100.1:80", 1000, 0, 0, 0, 28}},
		"only the ports (A10)":       {tcp4()[:24], fields{v4 + "40000", "198.51.100.1:80", 0, 0, 0, 0, 24}},
		"up to the flags":            {tcp4()[:34], fields{v4 + "40000", "198.51.100.1:80", 1000, 0, 2, 0, 34}},
		"in the tcp options":         {tcp4()[:42], fields{v4 + "40000", "198.51.100.1:80", 1000, 0, 2, 0, 42}},
		"udp ports":                  {udp4()[:24], fields{v4 + "5000", "198.51.100.1:53", 0, 0, 0, 0, 24}},
		"udp header":                 {udp6()[:48], fields{v6 + "5000", "[2001:db8:f::1]:53", 0, 0, 0, 0, 48}},
		"behind an extension header": {hopByHop()[:56], fields{v6 + "40000", "[2001:db8:f::1]:80", 1001, 0, 0, 0, 56}},
		"later fragment": {ip4(header.IPv4Fields{Protocol: 17, FragOffset: 1480, More: true}, make([]byte, 1480))[:28],
			fields{v4 + "0", "198.51.100.1:0", 0, 0, 0, 8, 28}},
		"echo request, two bytes": {ip4(header.IPv4Fields{Protocol: 1}, make([]byte, 64))[:22],
			fields{v4 + "0", "198.51.100.1:0", 0, 0, 0, 0, 22}},
	} {
		t.Run(name, func(t *testing.T) {
			var p header.Packet
			require.Equal(t, header.OK, p.ParseQuote(slices.Clip(tt.quote)))
			require.Equal(t, tt.want, fields{
				p.Source().String(), p.Destination().String(), p.Seq, p.Ack, p.TCPFlags, p.PayloadLen, p.Len})
		})
	}
}

func TestParseQuoteRefuses(t *testing.T) {
	var p header.Packet
	for name, quote := range map[string][]byte{
		"nothing": nil, "no ports": tcp4()[:23], "half an ip header": tcp6()[:39],
		"half of the options": ip4Options(6, "01010101 01010101", syn4())[:24], "no icmp type": ip4(header.IPv4Fields{Protocol: 1}, make([]byte, 8))[:21],
	} {
		require.Equal(t, header.Short, p.ParseQuote(slices.Clip(quote)), name)
	}
}

// An error goes to the sender of what it quotes.
func TestQuotesOfErrors(t *testing.T) {
	for name, want := range map[string]string{
		"8 bytes quoted": "198.51.100.1:80", "udp quoted": "192.0.2.10:5000", "too big, ipv6": "[2001:db8:f::1]:80",
		"incomplete chain": "[2001:db8:c::10]:40000",
	} {
		requireQuote(t, name, crafted()[name].pkt, want)
	}
	for _, path := range captures(t) {
		want := map[string]string{
			"icmp4_frag_needed_8byte_quote": "192.0.2.4:1470",
			"icmp4_unreach_udp":             "192.168.1.1:53",
			"icmp6_too_big":                 "[fe80::beef]:30000",
		}[captureName(path)]
		if want != "" {
			requireQuote(t, path, capture(t, path)[0], want)
		}
	}
}

func requireQuote(t *testing.T, name string, pkt []byte, source string) {
	t.Helper()
	var p, q header.Packet
	require.Equal(t, header.OK, p.Parse(pkt), name)
	require.True(t, p.IsICMPError(), name)
	require.Equal(t, header.OK, q.ParseQuote(header.ICMP(pkt[p.L4:p.Len]).Body()), name)
	require.Equal(t, source, q.Source().String(), name)
	require.Equal(t, p.Dst, q.Src, name)
}

func TestIsICMPError(t *testing.T) {
	icmp4 := func(kind byte) []byte {
		return ip4(header.IPv4Fields{Protocol: 1}, []byte{kind, 0, 0, 0, 0, 0, 0, 0})
	}
	for name, tt := range map[string]struct {
		pkt  []byte
		want bool
	}{
		"unreachable": {icmp4(3), true}, "redirect": {icmp4(5), true}, "time exceeded": {icmp4(11), true},
		"echo": {icmp4(8), false}, "echo reply": {icmp4(0), false}, "tcp": {tcp4(), false},
		"too big":            {ip6(58, []byte{2, 0, 0, 0, 0, 0, 5, 0}), true},
		"echo v6":            {ip6(58, []byte{128, 0, 0, 0, 0, 0, 5, 0}), false},
		"udp v6":             {udp6(), false},
		"icmp in ipv6":       {ip6(1, []byte{3, 0, 0, 0, 0, 0, 5, 0}), false},
		"later fragment":     {ip4(header.IPv4Fields{Protocol: 1, FragOffset: 8}, make([]byte, 8)), false},
		"no quote at all":    {crafted()["nothing quoted"].pkt, true},
		"parameter problem6": {crafted()["incomplete chain"].pkt, true},
	} {
		var p header.Packet
		require.Equal(t, header.OK, p.Parse(tt.pkt), name)
		require.Equal(t, tt.want, p.IsICMPError(), name)
	}
}

// What the parser says of the whole of each capture: how many packets it refuses
// for which reason.
func TestCaptures(t *testing.T) {
	paths := captures(t)
	if paths == nil {
		t.Skip("CAROM_CAPTURES is not set")
	}
	refused := map[string]map[header.Reason]int{
		"ext6_many_fragment_headers": {header.ExtLimit: 1},
		"frag4_mixed_1":              {header.BadFragment: 1},
		"frag4_tcp_syn_tiny":         {header.FirstFragmentShort: 1, header.BadFragment: 2},
		"ipopt_rr_lsrr_ssrr_ts_sec":  {header.SourceRoute: 2},
		"mal_ipv4_hdr_len":           {header.BadHeaderLen: 1},
		"mal_ipv6_39_bytes":          {header.Short: 1},
		"mal_tcp_header":             {header.Short: 1},
		"mal_udp_length":             {header.Short: 1},
		"tcp_fast_retransmit_sack":   {header.Short: 21},
		"tcp_truncated_header":       {header.Short: 12},
		"tso_ipv4_total_length_zero": {header.BadTotalLen: 1},
	}
	for _, path := range paths {
		var p header.Packet
		name, got := captureName(path), map[header.Reason]int{}
		for _, pkt := range capture(t, path) {
			if r := p.Parse(pkt); r != header.OK {
				got[r]++
			}
		}
		want := refused[name]
		if want == nil {
			want = map[header.Reason]int{}
		}
		require.Equal(t, want, got, name)
	}
}

func TestReasonsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for r := range header.NumReasons {
		require.NotEmpty(t, r.String())
		require.False(t, seen[r.String()], r.String())
		seen[r.String()] = true
	}
	require.Equal(t, "reason 99", header.Reason(99).String())
}

func TestParseDoesNotAllocate(t *testing.T) {
	pkts := [][]byte{tcp4(), tcp6(), udp4(), hopByHop(), nil}
	var p header.Packet
	require.Zero(t, testing.AllocsPerRun(100, func() {
		for _, pkt := range pkts {
			p.Parse(pkt)
			p.ParseQuote(pkt)
		}
	}))
}
