package dprtest_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/ip4defrag"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr/dprtest"
)

var (
	client4 = netip.MustParseAddrPort("192.0.2.10:40000")
	vip4    = netip.MustParseAddrPort("198.51.100.1:80")
	client6 = netip.MustParseAddrPort("[2001:db8:c::10]:40000")
	vip6    = netip.MustParseAddrPort("[2001:db8:f::1]:80")
	router4 = netip.MustParseAddr("192.0.2.254")
	router6 = netip.MustParseAddr("2001:db8:c::ff")
)

// A SYN, byte by byte, as tcpdump would print it.
func TestTCPBytes(t *testing.T) {
	got := dprtest.TCP(client4, vip4, dprtest.Options{
		Flags: dprtest.SYN, Seq: 1000, MSS: 1460, ID: 0x1234, DF: true, TTL: 63, TOS: 0x10, Window: 0x7210,
	})
	want := "4510002c 12344000 3f063d49 c000020a c6336401" +
		"9c400050 000003e8 00000000 60027210 995e0000 020405b4"
	require.Equal(t, strings.ReplaceAll(want, " ", ""), hex.EncodeToString(got))
}

func TestBuiltPacketsAreRight(t *testing.T) {
	payload := []byte("an odd number of bytes.")
	stop := netip.MustParseAddr("2001:db8:f::99")
	for name, pkt := range map[string][]byte{
		"tcp4":         dprtest.TCP(client4, vip4, dprtest.Options{Flags: dprtest.ACK, Payload: payload}),
		"tcp6":         dprtest.TCP(client6, vip6, dprtest.Options{Flags: dprtest.SYN, MSS: 1440, TCPOptions: []byte{4, 2, 1}}),
		"udp4":         dprtest.UDP(client4, vip4, dprtest.Options{Payload: payload, IPOptions: []byte{1, 1, 148, 4, 0, 0}}),
		"udp6":         dprtest.UDP(client6, vip6, dprtest.Options{Payload: payload, TOS: 0xba}),
		"udp4 without": dprtest.UDP(client4, vip4, dprtest.Options{Payload: payload, Checksum: dprtest.None}),
		"echo4":        dprtest.ICMP(client4.Addr(), vip4.Addr(), 8, 0, 7<<16|1, dprtest.Options{Payload: payload}),
		"echo6":        dprtest.ICMP(client6.Addr(), vip6.Addr(), 128, 0, 7<<16|1, dprtest.Options{Payload: payload}),
		"mapped":       dprtest.ICMP(netip.AddrFrom16(client4.Addr().As16()), vip4.Addr(), 8, 0, 0, dprtest.Options{}),
		"ipip": dprtest.IP(client4.Addr(), vip4.Addr(), 4, dprtest.Options{
			Payload: dprtest.TCP(client4, vip4, dprtest.Options{})}),
		"sctp":         dprtest.IP(client4.Addr(), vip4.Addr(), 132, dprtest.Options{Payload: payload}),
		"experimental": dprtest.IP(client6.Addr(), vip6.Addr(), 253, dprtest.Options{Payload: payload}),
		"extensions": dprtest.TCP(client6, vip6, dprtest.Options{Payload: payload, Extensions: []dprtest.Extension{
			dprtest.HopByHop(), dprtest.DestOpts(24), dprtest.Routing(0, stop), dprtest.Auth(1, 2)}}),
		"routing, not there yet": dprtest.TCP(client6, vip6, dprtest.Options{Payload: payload, Extensions: []dprtest.Extension{
			dprtest.Routing(1, router6, stop)}}),
		"atomic fragment": dprtest.UDP(client6, vip6, dprtest.Options{Payload: payload, Extensions: []dprtest.Extension{
			dprtest.AtomicFragment(7), dprtest.DestOpts(8)}}),
		"long": dprtest.UDP(client6, vip6, dprtest.Options{Payload: make([]byte, 65527)}),
	} {
		require.NoError(t, dprtest.Check(pkt), "%s: %s", name, dprtest.Describe(pkt))
	}
}

func TestChecksumsOnRequest(t *testing.T) {
	ports := map[string]func(o dprtest.Options) []byte{
		"tcp4": func(o dprtest.Options) []byte { return dprtest.TCP(client4, vip4, o) },
		"tcp6": func(o dprtest.Options) []byte { return dprtest.TCP(client6, vip6, o) },
		"udp6": func(o dprtest.Options) []byte { return dprtest.UDP(client6, vip6, o) },
		"icmp": func(o dprtest.Options) []byte { return dprtest.ICMP(client4.Addr(), vip4.Addr(), 8, 0, 0, o) },
	}
	for name, build := range ports {
		for _, c := range []dprtest.Checksum{dprtest.Wrong, dprtest.Partial, dprtest.None} {
			pkt := build(dprtest.Options{Payload: []byte("data"), Checksum: c})
			require.ErrorContains(t, dprtest.Check(pkt), "checksum", "%s with checksum %d", name, c)
		}
	}
	require.ErrorContains(t, dprtest.Check(ports["tcp4"](dprtest.Options{Checksum: dprtest.Wrong})), "wrong by 0x0001")
}

// A partial checksum is what a device needs: the sum over the segment, the field
// included, gives the right one.
func TestPartialChecksumCanBeFinished(t *testing.T) {
	o := dprtest.Options{Flags: dprtest.ACK, Payload: []byte("segment")}
	right := dprtest.TCP(client6, vip6, o)
	o.Checksum = dprtest.Partial
	partial := dprtest.TCP(client6, vip6, o)
	var sum uint32
	for i, c := range partial[40:] {
		sum += uint32(c) << (8 * (1 - i%2))
	}
	sum = sum>>16 + sum&0xffff
	require.Equal(t, binary.BigEndian.Uint16(right[56:]), ^uint16(sum>>16+sum))
}

func TestICMPErrors(t *testing.T) {
	syn4 := dprtest.TCP(vip4, client4, dprtest.Options{Flags: dprtest.SYN | dprtest.ACK, Payload: make([]byte, 1000)})
	syn6 := dprtest.TCP(vip6, client6, dprtest.Options{Payload: make([]byte, 2000)})
	for name, tt := range map[string]struct {
		pkt    []byte
		size   int
		quoted []byte
		first  []byte
	}{
		"too big, eight bytes":    {dprtest.TooBig(router4, syn4, 1400, dprtest.ShortQuote), 56, syn4[:28], []byte{3, 4}},
		"too big, long":           {dprtest.TooBig(router4, syn4, 1400, dprtest.LongQuote), 576, syn4[:548], []byte{3, 4}},
		"too big, v6":             {dprtest.TooBig(router6, syn6, 1400, dprtest.LongQuote), 1280, syn6[:1232], []byte{2, 0}},
		"unreachable, v6, 8":      {dprtest.PortUnreachable(router6, syn6, dprtest.ShortQuote), 96, syn6[:48], []byte{1, 4}},
		"unreachable, whole":      {dprtest.PortUnreachable(router4, syn4[:1040], 1<<10), 576, syn4[:548], []byte{3, 3}},
		"any other, of a fitting": {dprtest.ICMPError(router4, dprtest.UDP(vip4, client4, dprtest.Options{}), 11, 0, 0, dprtest.LongQuote), 56, nil, []byte{11, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, dprtest.Check(tt.pkt))
			require.Len(t, tt.pkt, tt.size)
			l4 := 20
			if tt.pkt[0]>>4 == 6 {
				l4 = 40
				require.Equal(t, vip6.Addr().AsSlice(), tt.pkt[24:40], "to the sender of what it quotes")
			}
			require.Equal(t, tt.first, tt.pkt[l4:l4+2])
			if tt.quoted != nil {
				require.Equal(t, tt.quoted, tt.pkt[l4+8:])
			}
		})
	}
	mtu := dprtest.TooBig(router4, syn4, 1400, dprtest.ShortQuote)
	require.Equal(t, uint16(1400), binary.BigEndian.Uint16(mtu[26:]))
}

func TestFragmentIPv4(t *testing.T) {
	whole := dprtest.UDP(client4, vip4, dprtest.Options{Payload: pattern(3000), ID: 0x1234, DF: true})
	defrag := ip4defrag.NewIPv4Defragmenter()
	frags := dprtest.Fragment(whole, 1300)
	require.Len(t, frags, 3)
	for i, f := range frags {
		require.NoError(t, dprtest.Check(f))
		require.LessOrEqual(t, len(f), 1300)
		ip := gopacket.NewPacket(f, layers.LayerTypeIPv4, gopacket.Default).NetworkLayer().(*layers.IPv4)
		out, err := defrag.DefragIPv4(ip)
		require.NoError(t, err)
		require.Equal(t, i == 2, out != nil)
		if out != nil {
			require.Equal(t, whole[20:], out.Payload)
		}
	}
}

func TestFragmentsKeepOptions(t *testing.T) {
	frags := dprtest.Fragment(dprtest.UDP(client4, vip4, dprtest.Options{Payload: pattern(40), IPOptions: []byte{148, 4, 0, 0}}), 68)
	require.Len(t, frags, 2)
	for _, f := range frags {
		require.Equal(t, []byte{148, 4, 0, 0}, f[20:24])
	}
}

func TestFragmentIPv6(t *testing.T) {
	for name, tt := range map[string]struct {
		extensions     []dprtest.Extension
		unfragmentable int
		first          byte
	}{
		"plain":                  {nil, 40, 17},
		"hop-by-hop stays":       {[]dprtest.Extension{dprtest.HopByHop()}, 48, 17},
		"options before routing": {[]dprtest.Extension{dprtest.DestOpts(8), dprtest.Routing(1, router6)}, 72, 17},
		"options go":             {[]dprtest.Extension{dprtest.HopByHop(), dprtest.DestOpts(16)}, 48, 60},
	} {
		t.Run(name, func(t *testing.T) {
			whole := dprtest.UDP(client6, vip6, dprtest.Options{Payload: pattern(3000), Extensions: tt.extensions})
			frags := dprtest.Fragment(whole, 1280)
			var body []byte
			for i, f := range frags {
				require.NoError(t, dprtest.Check(f))
				require.LessOrEqual(t, len(f), 1280)
				h := f[tt.unfragmentable : tt.unfragmentable+8]
				require.Equal(t, tt.first, h[0])
				word := binary.BigEndian.Uint16(h[2:])
				require.Equal(t, len(body), int(word&^7))
				require.Equal(t, i < len(frags)-1, word&1 == 1)
				require.Equal(t, frags[0][tt.unfragmentable+4:tt.unfragmentable+8], h[4:], "one identification")
				body = append(body, f[tt.unfragmentable+8:]...)
			}
			require.Equal(t, whole[tt.unfragmentable:], body)
			require.Greater(t, len(frags), 2)
		})
	}
}

func TestFragmentOfWhatFits(t *testing.T) {
	pkt := dprtest.UDP(client6, vip6, dprtest.Options{})
	require.Equal(t, [][]byte{pkt}, dprtest.Fragment(append(bytes.Clone(pkt), 0, 0), len(pkt)), "padding goes")
}

func TestMistakesPanic(t *testing.T) {
	pkt := dprtest.UDP(client4, vip4, dprtest.Options{Payload: make([]byte, 100)})
	for name, mistake := range map[string]func(){
		"two versions":     func() { dprtest.TCP(client4, vip6, dprtest.Options{}) },
		"no address":       func() { dprtest.TCP(netip.AddrPort{}, netip.AddrPort{}, dprtest.Options{}) },
		"long ipv4":        func() { dprtest.UDP(client4, vip4, dprtest.Options{Payload: make([]byte, 65508)}) },
		"long ipv6":        func() { dprtest.TCP(client6, vip6, dprtest.Options{Payload: make([]byte, 65516)}) },
		"long options":     func() { dprtest.TCP(client4, vip4, dprtest.Options{IPOptions: make([]byte, 41)}) },
		"tiny MTU":         func() { dprtest.Fragment(pkt, 27) },
		"fragment again":   func() { dprtest.Fragment(dprtest.Fragment(pkt, 68)[0], 44) },
		"no packet quoted": func() { dprtest.TooBig(router4, []byte("no"), 1, 8) },
	} {
		require.Panics(t, mistake, name)
	}
}

func TestFlags(t *testing.T) {
	require.Equal(t, "SA", (dprtest.SYN | dprtest.ACK).String())
	require.Equal(t, "FSRPAUEC", dprtest.Flags(255).String())
	require.Empty(t, dprtest.Flags(0).String())
}

// pattern returns n bytes in which no two runs of eight are equal.
func pattern(n int) []byte {
	b := make([]byte, 0, n+2)
	for i := uint16(0); len(b) < n; i++ {
		b = binary.BigEndian.AppendUint16(b, i)
	}
	return b[:n]
}

// Whatever is built and cut can be put together again.
func FuzzFragment(f *testing.F) {
	f.Add(uint16(3000), uint16(1500), true)
	f.Add(uint16(0), uint16(68), false)
	f.Add(uint16(60000), uint16(1280), true)
	f.Fuzz(func(t *testing.T, size, mtu uint16, v6 bool) {
		src, dst, l4 := client4, vip4, 20
		if v6 {
			src, dst, l4 = client6, vip6, 40
		}
		whole := dprtest.UDP(src, dst, dprtest.Options{Payload: pattern(int(size) % 65000)})
		mtu = max(mtu, 68)
		frags := dprtest.Fragment(whole, int(mtu))
		if len(frags) == 1 {
			require.Equal(t, whole, frags[0])
			return
		}
		if v6 {
			l4 += 8
		}
		var body []byte
		for _, frag := range frags {
			require.NoError(t, dprtest.Check(frag))
			require.LessOrEqual(t, len(frag), int(mtu))
			body = append(body, frag[l4:]...)
		}
		require.Equal(t, whole[len(whole)-len(body):], body)
		require.Equal(t, len(whole), len(body)+len(whole)-len(body))
	})
}
