package gue_test

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/dpr/gue"
)

var (
	client4 = netip.MustParseAddrPort("203.0.113.7:50001")
	server4 = netip.MustParseAddrPort("192.0.2.1:80")
	client6 = netip.MustParseAddrPort("[2001:db8:1::7]:50001")
	server6 = netip.MustParseAddrPort("[2001:db8::1]:80")

	hostA4 = netip.MustParseAddrPort("10.0.0.1:49152")
	hostB4 = netip.MustParseAddrPort("10.0.0.2:6080")
	hostA6 = netip.MustParseAddrPort("[fd00::1]:49152")
	hostB6 = netip.MustParseAddrPort("[fd00::2]:6080")

	keyOne = gue.Key{ID: 1, Secret: [16]byte{0: 1, 15: 2}}
	keyTwo = gue.Key{ID: 2, Secret: [16]byte{0: 3, 15: 4}}
)

func packet(b []byte) dpr.Packet {
	p := dpr.NewPackets(1, dpr.MaxPacket)[0]
	p.Len = copy(p.Buf[p.Off:], b)
	return p
}

func codec(t testing.TB, keys ...gue.Key) *gue.Codec {
	t.Helper()
	c, err := gue.NewCodec(keys...)
	require.NoError(t, err)
	return c
}

// inners are packets of all kinds that a tunnel may have to carry.
func inners() map[string][]byte {
	data := dprtest.Options{Flags: dprtest.ACK, Payload: []byte("hello, world"), TOS: 0xb8 | 2}
	df := data
	df.DF = true
	big := dprtest.Options{Payload: make([]byte, 3000)}
	return map[string][]byte{
		"tcp4":           dprtest.TCP(client4, server4, data),
		"tcp4 DF":        dprtest.TCP(client4, server4, df),
		"tcp6":           dprtest.TCP(client6, server6, data),
		"udp4":           dprtest.UDP(client4, server4, dprtest.Options{}),
		"udp6":           dprtest.UDP(client6, server6, data),
		"fragment":       dprtest.Fragment(dprtest.UDP(client4, server4, big), 1400)[1],
		"IP options":     dprtest.TCP(client4, server4, dprtest.Options{IPOptions: []byte{7, 7, 4, 0, 0, 0, 0}}),
		"extension":      dprtest.UDP(client6, server6, dprtest.Options{Extensions: []dprtest.Extension{dprtest.HopByHop()}}),
		"icmp":           dprtest.PortUnreachable(server4.Addr(), dprtest.UDP(client4, server4, data), 8),
		"IP and no more": dprtest.IP(client4.Addr(), server4.Addr(), 200, dprtest.Options{}),
	}
}

func TestRoundTrip(t *testing.T) {
	for name, inner := range inners() {
		for _, ends := range [][2]netip.AddrPort{{hostA4, hostB4}, {hostA6, hostB6}} {
			for hops := range uint8(gue.HopLimit + 1) {
				for _, keys := range [][]gue.Key{nil, {keyOne}, {keyTwo, keyOne}} {
					t.Run(fmt.Sprintf("%s, %v, %d hops, %d keys", name, ends[1], hops, len(keys)), func(t *testing.T) {
						c := codec(t, keys...)
						p := packet(inner)
						o := gue.Outer{Src: ends[0], Dst: ends[1], ID: 7, Hops: hops}
						require.Equal(t, gue.OK, c.Encap(&p, &o))

						outer := p.Bytes()
						require.NoError(t, dprtest.Check(outer))
						is6 := ends[0].Addr().Is6()
						require.Len(t, outer, len(inner)+gue.Overhead(is6, len(keys) > 0 || hops > 0))
						if !is6 {
							innerDF := inner[0]>>4 == 6 || inner[6]&0x40 != 0
							require.Equal(t, innerDF, outer[6]&0x40 != 0, "DF")
						}

						var got gue.Outer
						require.Equal(t, gue.OK, c.Decap(&p, &got))
						require.Equal(t, inner, p.Bytes())
						require.Equal(t, dpr.Headroom, p.Off)
						if is6 {
							o.ID = 0
						}
						o.TOS = got.TOS
						require.Equal(t, o, got)
						if inner[0]>>4 == 4 {
							require.Equal(t, inner[1], got.TOS)
						}
					})
				}
			}
		}
	}
}

// TestWire fixes the bytes that hosts of different versions must agree on.
func TestWire(t *testing.T) {
	inner := dprtest.TCP(client4, server4, dprtest.Options{Flags: dprtest.SYN, Seq: 1})
	for name, tc := range map[string]struct {
		keys []gue.Key
		hops uint8
		want string // between the UDP header and the inner packet
	}{
		"variant 1":    {nil, 0, ""},
		"hop count":    {nil, 1, "03040000 01000000 0000000000000000"},
		"key":          {[]gue.Key{keyOne}, 0, "03040000 00010000 " + wireTag},
		"key and hops": {[]gue.Key{keyTwo}, 2, "03040000 02020000"},
	} {
		t.Run(name, func(t *testing.T) {
			p := packet(inner)
			require.Equal(t, gue.OK, codec(t, tc.keys...).Encap(&p, &gue.Outer{Src: hostA4, Dst: hostB4, Hops: tc.hops}))
			got := hex.EncodeToString(p.Bytes()[28 : p.Len-len(inner)])
			want := strings.ReplaceAll(tc.want, " ", "")
			require.Equal(t, want, got[:len(want)])
		})
	}
}

// wireTag was computed with another implementation of SipHash-2-4 over the bytes
// that the package comment lists.
const wireTag = "0e5e7691ec813686"

// TestDecapRefuses changes one thing of a good packet and fixes the checksums.
func TestDecapRefuses(t *testing.T) {
	good := dprtest.TCP(client4, server4, dprtest.Options{Flags: dprtest.ACK, Payload: []byte("x")})
	const variant0 = "\x03\x04\x00\x00"
	const private = "\x00\x00\x00\x00" + "\x00\x00\x00\x00\x00\x00\x00\x00"
	for name, tc := range map[string]struct {
		payload string
		keys    bool
		want    gue.Reason
	}{
		"variant 1":                 {string(good), false, gue.OK},
		"variant 0":                 {variant0 + private + string(good), false, gue.OK},
		"variant 0 without private": {"\x00\x04\x00\x00" + string(good), false, gue.OK},
		"padding":                   {string(good) + "\x00\x00", false, gue.OK},
		"empty":                     {"", false, gue.Short},
		"half a header":             {"\x03\x04\x00", false, gue.Short},
		"header beyond the end":     {variant0 + private[:11], false, gue.Short},
		"longest header, too short": {"\x1f\x04\x00\x00" + string(good), false, gue.Short},
		"variant 2":                 {"\x83\x04\x00\x00" + private + string(good), false, gue.BadHeader},
		"variant 3":                 {"\xc3\x04\x00\x00" + private + string(good), false, gue.BadHeader},
		"flags":                     {"\x03\x04\x00\x01" + private + string(good), false, gue.BadHeader},
		"other header length":       {"\x02\x04\x00\x00" + private[:8] + string(good), false, gue.BadHeader},
		"reserved bits":             {variant0 + "\x00\x00\x00\x01" + private[4:] + string(good), false, gue.BadHeader},
		"no IP inside":              {"\x03\x06\x00\x00" + private + string(good), false, gue.BadHeader},
		"control":                   {"\x23\x01\x00\x00" + private, false, gue.Control},
		"hops":                      {variant0 + "\x03\x00\x00\x00" + private[4:] + string(good), false, gue.TooManyHops},
		"IPv6 said, IPv4 inside":    {"\x03\x29\x00\x00" + private + string(good), false, gue.BadInner},
		"version 5":                 {"\x55" + string(good[1:]), false, gue.BadInner},
		"inner cut":                 {string(good[:len(good)-1]), false, gue.BadInner},
		"inner shorter than header": {string(good[:19]), false, gue.BadInner},
		"nothing inside":            {variant0 + private, false, gue.BadInner},
		"untagged, variant 1":       {string(good), true, gue.NoTag},
		"untagged, variant 0":       {variant0 + private + string(good), true, gue.NoTag},
		"untagged, no private":      {"\x00\x04\x00\x00" + string(good), true, gue.NoTag},
		"unknown key":               {variant0 + "\x00\x09\x00\x00" + private[4:] + string(good), true, gue.UnknownKey},
		"wrong tag":                 {variant0 + "\x00\x01\x00\x00" + private[4:] + string(good), true, gue.BadTag},
	} {
		t.Run(name, func(t *testing.T) {
			c := codec(t)
			if tc.keys {
				c = codec(t, keyOne)
			}
			outer := dprtest.UDP(hostA4, hostB4, dprtest.Options{Payload: []byte(tc.payload)})
			p := packet(outer)
			var o gue.Outer
			require.Equal(t, tc.want, c.Decap(&p, &o))
			if tc.want == gue.OK {
				require.Equal(t, good, p.Bytes())
			} else {
				require.Equal(t, outer, p.Bytes(), "a refusal changes nothing")
			}
		})
	}
}

func TestDecapRefusesOuter(t *testing.T) {
	inner := dprtest.TCP(client4, server4, dprtest.Options{Payload: []byte("x")})
	udp := func(src, dst netip.AddrPort, o dprtest.Options) []byte {
		o.Payload = inner
		return dprtest.UDP(src, dst, o)
	}
	for name, tc := range map[string]struct {
		b    []byte
		want gue.Reason
	}{
		"v4":                  {udp(hostA4, hostB4, dprtest.Options{}), gue.OK},
		"v4, no checksum":     {udp(hostA4, hostB4, dprtest.Options{Checksum: dprtest.None}), gue.OK},
		"v6":                  {udp(hostA6, hostB6, dprtest.Options{}), gue.OK},
		"v6, no checksum":     {udp(hostA6, hostB6, dprtest.Options{Checksum: dprtest.None}), gue.BadOuter},
		"v4, wrong checksum":  {udp(hostA4, hostB4, dprtest.Options{Checksum: dprtest.Wrong}), gue.BadOuter},
		"v6, wrong checksum":  {udp(hostA6, hostB6, dprtest.Options{Checksum: dprtest.Wrong}), gue.BadOuter},
		"TCP":                 {dprtest.TCP(hostA4, hostB4, dprtest.Options{}), gue.NotOurs},
		"fragment":            {dprtest.Fragment(udp(hostA4, hostB4, dprtest.Options{}), 48)[0], gue.BadOuter},
		"cut":                 {udp(hostA4, hostB4, dprtest.Options{})[:40], gue.BadOuter},
		"empty":               {nil, gue.BadOuter},
		"wrong IPv4 checksum": {func() []byte { b := udp(hostA4, hostB4, dprtest.Options{}); b[10] ^= 1; return b }(), gue.BadOuter},
	} {
		t.Run(name, func(t *testing.T) {
			p := packet(tc.b)
			var o gue.Outer
			require.Equal(t, tc.want, codec(t).Decap(&p, &o))
		})
	}
}

func TestEncapRefuses(t *testing.T) {
	inner := dprtest.TCP(client4, server4, dprtest.Options{Payload: make([]byte, 100)})
	long := dprtest.UDP(client4, server4, dprtest.Options{Payload: make([]byte, dpr.MaxPacket-28-27)})
	for name, tc := range map[string]struct {
		inner []byte
		spoil func(*dpr.Packet)
		want  gue.Reason
	}{
		"no room":     {inner, func(p *dpr.Packet) { p.Buf, p.Off = p.Buf[p.Off-27:], 27 }, gue.NoRoom},
		"cut":         {inner, func(p *dpr.Packet) { p.Len-- }, gue.Malformed},
		"empty":       {inner, func(p *dpr.Packet) { p.Len = 0 }, gue.Malformed},
		"super-frame": {inner, func(p *dpr.Packet) { p.GSO.Type = dpr.GSOTCP4 }, gue.Malformed},
		"too long":    {long, func(*dpr.Packet) {}, gue.TooBig},
	} {
		t.Run(name, func(t *testing.T) {
			p := packet(tc.inner)
			tc.spoil(&p)
			before := append([]byte{}, p.Buf...)
			require.Equal(t, tc.want, codec(t).Encap(&p, &gue.Outer{Src: hostA4, Dst: hostB4}))
			require.Equal(t, before, p.Buf)
		})
	}
}

// TestTagCovers flips each bit that the tag must protect.
func TestTagCovers(t *testing.T) {
	inner := dprtest.TCP(client6, server6, dprtest.Options{Flags: dprtest.ACK, Payload: make([]byte, 200)})
	c := codec(t, keyOne)
	p := packet(inner)
	require.Equal(t, gue.OK, c.Encap(&p, &gue.Outer{Src: hostA4, Dst: hostB4}))
	payload := append([]byte{}, p.Bytes()[28:]...)
	open := func(src, dst netip.AddrPort, payload []byte) gue.Reason {
		q := packet(dprtest.UDP(src, dst, dprtest.Options{Payload: payload}))
		var o gue.Outer
		return c.Decap(&q, &o)
	}
	require.Equal(t, gue.OK, open(hostA4, hostB4, payload))
	for bit := range 8 * (16 + 60) { // GUE header, IPv6 and TCP headers
		spoilt := append([]byte{}, payload...)
		spoilt[bit/8] ^= 1 << (bit % 8)
		require.NotEqual(t, gue.OK, open(hostA4, hostB4, spoilt), "byte %d bit %d", bit/8, bit%8)
	}
	require.Equal(t, gue.BadTag, open(hostB4, hostA4, payload))
	require.Equal(t, gue.BadTag, open(netip.MustParseAddrPort("10.0.0.3:49152"), hostB4, payload))
	require.Equal(t, gue.BadTag, open(hostA4, netip.MustParseAddrPort("10.0.0.3:6080"), payload))
}

func TestKeys(t *testing.T) {
	for name, tc := range map[string]struct {
		keys []gue.Key
		says string
	}{
		"ID 0":      {[]gue.Key{{Secret: keyOne.Secret}}, "Keys[0].ID"},
		"ID twice":  {[]gue.Key{keyOne, {ID: 1, Secret: keyTwo.Secret}}, "Keys[1].ID 1"},
		"no secret": {[]gue.Key{keyOne, {ID: 3}}, "Keys[1].Secret"},
	} {
		_, err := gue.NewCodec(tc.keys...)
		require.ErrorContains(t, err, tc.says, name)
	}
	c := codec(t)
	require.False(t, c.Variant0())
	require.NoError(t, c.SetKeys(keyOne, keyTwo))
	require.True(t, c.Variant0())
}

// TestKeyRotation changes keys one host at a time and loses nothing.
func TestKeyRotation(t *testing.T) {
	a, b := codec(t, keyOne), codec(t, keyOne)
	for _, step := range []struct {
		c    *gue.Codec
		keys []gue.Key
	}{
		{a, []gue.Key{keyOne, keyTwo}}, {b, []gue.Key{keyOne, keyTwo}},
		{a, []gue.Key{keyTwo, keyOne}}, {b, []gue.Key{keyTwo, keyOne}},
		{a, []gue.Key{keyTwo}}, {b, []gue.Key{keyTwo}},
	} {
		require.NoError(t, step.c.SetKeys(step.keys...))
		for _, pair := range [][2]*gue.Codec{{a, b}, {b, a}} {
			p := packet(inners()["tcp4"])
			var o gue.Outer
			require.Equal(t, gue.OK, pair[0].Encap(&p, &gue.Outer{Src: hostA4, Dst: hostB4}))
			require.Equal(t, gue.OK, pair[1].Decap(&p, &o))
		}
	}
}

// TestECN goes through the table of RFC 6040, section 4.2, in both families.
func TestECN(t *testing.T) {
	const drop = 9
	want := [4][4]uint8{ // [inner][outer]; 0 Not-ECT, 1 ECT(1), 2 ECT(0), 3 CE
		{0, 0, 0, drop},
		{1, 1, 1, 3},
		{2, 1, 2, 3},
		{3, 3, 3, 3},
	}
	for inner := range uint8(4) {
		for outer := range uint8(4) {
			for name, pkt := range map[string][]byte{
				"v4": dprtest.TCP(client4, server4, dprtest.Options{TOS: 0x28 | inner, Payload: []byte("x")}),
				"v6": dprtest.TCP(client6, server6, dprtest.Options{TOS: 0x28 | inner, Payload: []byte("x")}),
			} {
				t.Run(fmt.Sprintf("%s inner %d outer %d", name, inner, outer), func(t *testing.T) {
					p := packet(dprtest.UDP(hostA4, hostB4, dprtest.Options{TOS: 0xb8 | outer, Payload: pkt}))
					var o gue.Outer
					why := codec(t).Decap(&p, &o)
					if want[inner][outer] == drop {
						require.Equal(t, gue.Congested, why)
						return
					}
					require.Equal(t, gue.OK, why)
					require.NoError(t, dprtest.Check(p.Bytes()))
					got := p.Bytes()[1]
					if name == "v6" {
						got = p.Bytes()[0]<<4 | p.Bytes()[1]>>4
					}
					require.Equal(t, 0x28|want[inner][outer], got, "DSCP stays, ECN is merged")
				})
			}
		}
	}
}

func TestOverhead(t *testing.T) {
	require.Equal(t, 28, gue.Overhead(false, false))
	require.Equal(t, 48, gue.Overhead(true, false))
	require.Equal(t, 44, gue.Overhead(false, true))
	require.Equal(t, 64, gue.Overhead(true, true))
	require.LessOrEqual(t, gue.Overhead(true, true), dpr.Headroom)
}

func TestReasonsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for r := range gue.NumReasons {
		require.NotEmpty(t, r.String())
		require.False(t, seen[r.String()], r.String())
		seen[r.String()] = true
	}
}

func TestCodecAllocatesNothing(t *testing.T) {
	c := codec(t, keyOne)
	p := packet(inners()["tcp6"])
	o := gue.Outer{Src: hostA6, Dst: hostB6}
	var got gue.Outer
	require.Zero(t, testing.AllocsPerRun(100, func() {
		c.Encap(&p, &o)
		c.Decap(&p, &got)
	}))
	require.Equal(t, hostB6, got.Dst)
}

func FuzzDecap(f *testing.F) {
	for _, inner := range inners() {
		for _, keys := range [][]gue.Key{nil, {keyOne}} {
			for _, ends := range [][2]netip.AddrPort{{hostA4, hostB4}, {hostA6, hostB6}} {
				p := packet(inner)
				codec(f, keys...).Encap(&p, &gue.Outer{Src: ends[0], Dst: ends[1], Hops: 1})
				f.Add(p.Bytes(), len(keys) > 0)
			}
		}
	}
	plain, keyed := codec(f), codec(f, keyOne)
	f.Fuzz(func(t *testing.T, b []byte, withKey bool) {
		if len(b) > dpr.MaxPacket {
			return
		}
		c := plain
		if withKey {
			c = keyed
		}
		p := packet(b)
		var o gue.Outer
		if c.Decap(&p, &o) != gue.OK {
			require.Equal(t, b, append([]byte{}, p.Bytes()...))
			return
		}
		// What came out goes in again, and out again as it was.
		inner := append([]byte{}, p.Bytes()...)
		require.Equal(t, gue.OK, c.Encap(&p, &o))
		require.Equal(t, gue.OK, c.Decap(&p, &o))
		require.Equal(t, inner, p.Bytes())
	})
}

func BenchmarkCodec(b *testing.B) {
	for name, c := range map[string]*gue.Codec{"variant 1": codec(b), "tag": codec(b, keyOne)} {
		b.Run(name, func(b *testing.B) {
			p := packet(dprtest.TCP(client4, server4, dprtest.Options{Flags: dprtest.ACK, Payload: make([]byte, 1400)}))
			o := gue.Outer{Src: hostA4, Dst: hostB4}
			for b.Loop() {
				c.Encap(&p, &o)
				c.Decap(&p, &o)
			}
		})
	}
}
