package dprtest_test

import (
	"bytes"
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr/dprtest"
)

// replaced returns a copy of a packet in which the bytes from an offset on are
// others.
func replaced(b []byte, offset int, by ...byte) []byte {
	return append(append(bytes.Clone(b[:offset]), by...), b[offset+len(by):]...)
}

func TestCheckFindsFaults(t *testing.T) {
	tcp4 := dprtest.TCP(client4, vip4, dprtest.Options{Payload: []byte("data")})
	tcp6 := dprtest.TCP(client6, vip6, dprtest.Options{Payload: []byte("data")})
	udp4 := dprtest.UDP(client4, vip4, dprtest.Options{Payload: []byte("data")})
	udp6 := dprtest.UDP(client6, vip6, dprtest.Options{Payload: []byte("data")})
	frag := dprtest.Fragment(dprtest.UDP(client6, vip6, dprtest.Options{Payload: make([]byte, 200)}), 128)[0]
	tunnelled := dprtest.IP(client4.Addr(), vip4.Addr(), 4, dprtest.Options{Payload: replaced(tcp4, 40, 'D')})
	atomic := dprtest.TCP(client6, vip6, dprtest.Options{
		Checksum: dprtest.Wrong, Extensions: []dprtest.Extension{dprtest.AtomicFragment(1)}})
	quote := dprtest.ICMP(router4, client4.Addr(), 3, 4, 1400, dprtest.Options{Payload: replaced(tcp4, 8, 9)})
	for name, tt := range map[string]struct {
		pkt  []byte
		want string
	}{
		"nothing":               {nil, "no IP packet in 0 bytes"},
		"another version":       {replaced(tcp4, 0, 0x55), "no IP packet"},
		"padding":               {append(bytes.Clone(tcp4), 0), "IPv4 total length is 44 of 45 bytes"},
		"cut":                   {tcp4[:43], "IPv4 total length is 44 of 43 bytes"},
		"padding, v6":           {append(bytes.Clone(tcp6), 0), "64 of 65 bytes"},
		"total length 0":        {replaced(tcp4, 2, 0, 0), "IPv4 total length is 0"},
		"header length":         {replaced(tcp4, 0, 0x44), "IPv4 header length is 16 of 44 bytes"},
		"header checksum":       {replaced(tcp4, 8, 63), "IPv4 header checksum"},
		"ttl 0":                 {replaced(tcp4, 8, 0), "TTL is 0"},
		"hop limit 0":           {replaced(tcp6, 7, 0), "hop limit is 0"},
		"address":               {replaced(tcp6, 39, 2), "TCP checksum is wrong by 0x0001"},
		"payload":               {replaced(udp4, 28, 'D'), "UDP checksum is wrong"},
		"data offset":           {replaced(tcp6, 52, 0x40), "TCP header length is 16 of 24 bytes"},
		"data offset, beyond":   {replaced(tcp6, 52, 0x70), "TCP header length is 28 of 24 bytes"},
		"tcp cut":               {dprtest.IP(client4.Addr(), vip4.Addr(), 6, dprtest.Options{Payload: make([]byte, 19)}), "TCP header has 19 bytes"},
		"udp cut":               {dprtest.IP(client4.Addr(), vip4.Addr(), 17, dprtest.Options{Payload: make([]byte, 7)}), "UDP length is 0 of 7 bytes"},
		"icmp cut":              {dprtest.IP(client4.Addr(), vip4.Addr(), 1, dprtest.Options{Payload: make([]byte, 7)}), "ICMP"},
		"icmpv6 cut":            {dprtest.IP(client6.Addr(), vip6.Addr(), 58, dprtest.Options{Payload: make([]byte, 3)}), "ICMPv6"},
		"extension cut":         {dprtest.IP(client6.Addr(), vip6.Addr(), 60, dprtest.Options{Payload: []byte{6, 9, 0, 0, 0, 0, 0, 0}}), "at byte 40"},
		"hop-by-hop cut":        {dprtest.IP(client6.Addr(), vip6.Addr(), 0, dprtest.Options{Payload: []byte{6, 9, 0, 0, 0, 0, 0, 0}}), "at byte 40"},
		"inner packet cut":      {dprtest.IP(client4.Addr(), vip4.Addr(), 4, dprtest.Options{Payload: tcp4[:43]}), "total length is 44 of 43"},
		"udp length, less":      {replaced(udp4, 24, 0, 11), "UDP length is 11 of 12 bytes"},
		"udp length, more":      {replaced(udp4, 24, 0, 13), "UDP length is 13 of 12 bytes"},
		"udp6 without checksum": {replaced(udp6, 46, 0, 0), "UDP checksum is missing"},
		"in a tunnel":           {tunnelled, "in the tunnel: TCP checksum"},
		"behind an atomic":      {atomic, "TCP checksum is wrong"},
		"quoted header":         {quote, "header checksum of the quoted packet"},
		"no quote":              {dprtest.ICMP(router4, client4.Addr(), 3, 4, 0, dprtest.Options{}), "quotes 0 bytes"},
		"fragment length":       {replaced(frag[:127], 5, 87), "no multiple of eight"},
		"empty fragment":        {replaced(frag[:48], 5, 8), "fragment is empty"},
		"fragment too far":      {replaced(frag, 42, 0xff, 0xf9), "fragment ends at byte 65608"},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorContains(t, dprtest.Check(tt.pkt), tt.want)
		})
	}
}

// A packet from elsewhere (zeek's test traffic, BSD-3-Clause): its checksum covers
// the last stop of a routing header.
func TestCheckForeignPacket(t *testing.T) {
	pkt := captured(t)
	require.NoError(t, dprtest.Check(pkt))
	require.ErrorContains(t, dprtest.Check(replaced(pkt, 79, pkt[79]+1)), "TCP checksum", "the last stop counts")
	require.NoError(t, dprtest.Check(replaced(pkt, 39, pkt[39]+1)), "the next stop does not")
}

// IPv6, routing header with a segment left, SYN.
const routed = "60000000003c2b40200104f80004000702e081fffe52ffff200104f80004000702e081fffe529a6b" +
	"06040002000000002001007800010032000000000000000120010078000100320000000000000002" +
	"75300050000000000000000050022000517e0000"

func captured(t *testing.T) []byte {
	pkt, err := hex.DecodeString(routed)
	require.NoError(t, err)
	return pkt
}

func TestDescribe(t *testing.T) {
	whole := dprtest.UDP(client4, vip4, dprtest.Options{Payload: make([]byte, 100), ID: 7})
	whole6 := dprtest.UDP(client6, vip6, dprtest.Options{Payload: make([]byte, 100)})
	for want, pkt := range map[string][]byte{
		"192.0.2.10 > 198.51.100.1 ttl 64 id 0x1, TCP 40000 > 80 SA seq 1 ack 2 win 65535 payload 0, 40 bytes": dprtest.TCP(client4, vip4, dprtest.Options{Flags: dprtest.SYN | dprtest.ACK, Seq: 1, Ack: 2, ID: 1}),
		"2001:db8:c::10 > 2001:db8:f::1 hops 64, UDP 40000 > 80 payload 100, 148 bytes":                        whole6,
		"192.0.2.10 > 198.51.100.1 ttl 64 id 0x7 fragment at 48 more true, 68 bytes":                           dprtest.Fragment(whole, 68)[1],
		"192.0.2.254 > 192.0.2.10 ttl 64 id 0x0, ICMP DestinationUnreachable(Port), 56 bytes":                  dprtest.PortUnreachable(router4, whole, 8),
		"no IP packet, 3 bytes": []byte("abc"),
	} {
		require.Equal(t, want, dprtest.Describe(pkt))
	}
	require.Contains(t, dprtest.Describe(dprtest.Fragment(whole6, 96)[1]), "fragment at 48 more true id 0x")
	require.Contains(t, dprtest.Describe(dprtest.TooBig(router6, whole6, 1400, 8)), "ICMPv6 PacketTooBig")
}

func TestDiff(t *testing.T) {
	o := dprtest.Options{Seq: 1000, Payload: []byte("data")}
	a := dprtest.TCP(client4, vip4, o)
	require.Empty(t, dprtest.Diff(a, bytes.Clone(a)))
	o.Seq = 1001
	diff := dprtest.Diff(a, dprtest.TCP(client4, vip4, o))
	require.Contains(t, diff, "seq 1000")
	require.Contains(t, diff, "seq 1001")
	require.Contains(t, diff, "bytes 27 to 27: want e8, got e9\n")
	require.NotContains(t, diff, "IPv4\t", "equal layers are left out")
	require.Contains(t, dprtest.Diff(a, a[:40]), "length: want 44, got 40 bytes")
}

// Neither the checker nor the words it finds may fail on foreign bytes; and what a
// builder cuts stays right.
func FuzzCheck(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(dprtest.TCP(client4, vip4, dprtest.Options{MSS: 1460}))
	f.Add(dprtest.UDP(client6, vip6, dprtest.Options{Extensions: []dprtest.Extension{
		dprtest.HopByHop(), dprtest.Routing(1, router6), dprtest.AtomicFragment(1), dprtest.Auth(1, 1)}}))
	f.Add(dprtest.PortUnreachable(router4, dprtest.UDP(client4, vip4, dprtest.Options{}), 8))
	f.Fuzz(func(t *testing.T, b []byte) {
		err := dprtest.Check(b)
		require.NotEmpty(t, dprtest.Describe(b))
		require.NotEmpty(t, dprtest.Diff(b, append(bytes.Clone(b), 0)))
		if err == nil {
			require.ErrorContains(t, dprtest.Check(append(bytes.Clone(b), 0)), "bytes", "padding")
		}
	})
}
