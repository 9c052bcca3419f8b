package header_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/internal/checksum"
	"github.com/carom-dpr/carom/internal/header"
)

// clampOptions are the options of a handshake's packet, and what becomes of them on a
// path of 1500 bytes through a tunnel that adds 52 of them (A15).
var clampOptions = []struct{ name, options, want4, want6 string }{
	{"1460", "020405b4", "02040580", "0204056c"},
	{"8960", "02042300 0402 0101", "02040580 0402 0101", "0204056c 0402 0101"},
	{"65535", "0204ffff", "02040580", "0204056c"},
	{"one more than fits IPv4", "02040581", "02040580", "0204056c"},
	{"as much as fits IPv4", "02040580", "02040580", "0204056c"},
	{"as much as fits IPv6", "0204056c", "0204056c", "0204056c"},
	{"less stays", "020401f4", "020401f4", "020401f4"},
	{"0 stays", "02040000", "02040000", "02040000"},
	{"none", "0402 0101", "0402 0101", "0402 0101"},
	{"no options", "", "", ""},
	{"at an odd offset", "01 020405b4 000000", "01 02040580 000000", "01 0204056c 000000"},
	{"at an odd offset, last", "0402 080a0000000100000000 010101 02042300 00", "0402 080a0000000100000000 010101 02040580 00", "0402 080a0000000100000000 010101 0204056c 00"},
	{"behind the end", "00 020405b4 000000", "00 020405b4 000000", "00 020405b4 000000"},
	{"cut off", "0101 0204", "0101 0204", "0101 0204"},
}

const clampMTU = 1500 - (header.IPv6Len + header.UDPLen + 4)

// clampFamilies make packets of both families, and more with something between the
// headers, around a segment with the options and flags.
var clampFamilies = map[string]func(f header.TCPFields) []byte{
	"IPv4": func(f header.TCPFields) []byte {
		return ip4(header.IPv4Fields{Protocol: header.ProtoTCP, DF: true}, segment(client4, vip4, f, "odd"))
	},
	"IPv4 with options": func(f header.TCPFields) []byte {
		return ip4Options(header.ProtoTCP, "07070400 00000000", segment(client4, vip4, f, "odd"))
	},
	"IPv6": func(f header.TCPFields) []byte { return ip6(header.ProtoTCP, segment(client6, vip6, f, "odd")) },
	"IPv6 with an extension": func(f header.TCPFields) []byte {
		return ip6(header.ProtoHopByHop, unhex("06 00 0104 00000000"), segment(client6, vip6, f, "odd"))
	},
}

func TestClampMSS(t *testing.T) {
	for family, build := range clampFamilies {
		for _, tt := range clampOptions {
			t.Run(family+"/"+tt.name, func(t *testing.T) {
				want := unhex(tt.want4)
				if header.Version(build(header.TCPFields{})) == 6 {
					want = unhex(tt.want6)
				}
				for _, flags := range []uint8{header.SYN, header.SYN | header.ACK, header.SYN | header.ECE | header.CWR} {
					checkClamp(t, build, header.TCPFields{Flags: flags, Options: unhex(tt.options)}, want)
				}
			})
		}
	}
}

// checkClamp clamps a packet as it is, with a wrong checksum and with a partial one;
// it must become the packet that want would have made, as right or wrong as before.
func checkClamp(t *testing.T, build func(header.TCPFields) []byte, f header.TCPFields, want []byte) {
	t.Helper()
	changes := !bytes.Equal(f.Options, want)
	right, clamped := build(f), f
	clamped.Options = want
	var p header.Packet
	require.Equal(t, header.OK, p.Parse(right))
	sum := int(p.L4) + 16
	for _, off := range []uint16{0, 1, 0x1234} {
		got, expected := slices.Clone(right), build(clamped)
		addChecksum(got, sum, off)
		addChecksum(expected, sum, off)
		padded := append(got, 0xaa, 0xbb) // as short frames are
		require.Equal(t, changes, p.ClampMSS(padded, clampMTU, false))
		require.Equal(t, expected, padded[:len(got)])
		require.Equal(t, []byte{0xaa, 0xbb}, padded[len(got):])
		require.Equal(t, off == 0, dprtest.Check(padded[:len(got)]) == nil, "an independent opinion")
	}
	got, expected := slices.Clone(right), build(clamped)
	copy(got[sum:], "pp")
	copy(expected[sum:], "pp")
	require.Equal(t, changes, p.ClampMSS(got, clampMTU, true))
	require.Equal(t, expected, got)
}

// addChecksum makes a checksum wrong by off, a ones-complement difference.
func addChecksum(pkt []byte, at int, off uint16) {
	field := pkt[at:]
	binary.BigEndian.PutUint16(field, checksum.Update16(binary.BigEndian.Uint16(field), off, 0))
}

// What is no packet of a handshake, or must not be changed, stays.
func TestClampMSSLeavesTheRest(t *testing.T) {
	options := unhex("020405b4")
	build := clampFamilies["IPv4"]
	for name, pkt := range map[string][]byte{
		"data":             build(header.TCPFields{Flags: header.ACK, Options: options}),
		"reset":            build(header.TCPFields{Flags: header.SYN | header.RST, Options: options}),
		"SYN and FIN":      build(header.TCPFields{Flags: header.SYN | header.FIN, Options: options}),
		"UDP":              udp4(),
		"a later fragment": ip4(header.IPv4Fields{Protocol: header.ProtoTCP, FragOffset: 64}, segment(client4, vip4, header.TCPFields{Flags: header.SYN, Options: options}, "")),
		"authenticated":    ip6(header.ProtoAH, unhex("06 04 0000 00000001 00000001 000000000000000000000000"), segment(client6, vip6, header.TCPFields{Flags: header.SYN, Options: options}, "")),
	} {
		t.Run(name, func(t *testing.T) {
			var p header.Packet
			require.Equal(t, header.OK, p.Parse(pkt))
			want := slices.Clone(pkt)
			require.False(t, p.ClampMSS(pkt, 576, false))
			require.Equal(t, want, pkt)
		})
	}
}

// A path that claims to be narrower than any may be is not believed: tiny segments
// would be an attack.
func TestClampMSSHasALeast(t *testing.T) {
	for family, want := range map[string]uint16{"IPv4": 28, "IPv6": 1220} {
		for _, mtu := range []int{-1, 0, 60, 68} {
			var p header.Packet
			pkt := clampFamilies[family](header.TCPFields{Flags: header.SYN, Options: unhex("020405b4")})
			require.Equal(t, header.OK, p.Parse(pkt))
			require.True(t, p.ClampMSS(pkt, mtu, false))
			value, _, _ := header.FindMSS(pkt[p.L4:])
			require.Equal(t, want, value)
			require.NoError(t, dprtest.Check(pkt))
		}
	}
}

func TestFindMSS(t *testing.T) {
	for name, tt := range map[string]struct {
		options string
		value   uint16
		offset  int
	}{
		"first":                   {"020405b4 0402 0000", 1460, 22},
		"at an odd offset":        {"01 020405b4 000000", 1460, 23},
		"behind unknown options":  {"fd06 f9890000 020401f4", 500, 28},
		"last":                    {"0101 0402 02042300", 8960, 26},
		"none":                    {"0402 0101", 0, 0},
		"no options":              {"", 0, 0},
		"behind the end":          {"00 020405b4 000000", 0, 0},
		"length 0 ends the walk":  {"0400 020405b4 0000", 0, 0},
		"beyond the header":       {"0101 0204", 0, 0},
		"kind without length":     {"010101 02", 0, 0},
		"of a wrong length":       {"0203 05 01", 0, 0},
		"of a wrong length, then": {"0203 05 01 020405b4", 1460, 26},
	} {
		t.Run(name, func(t *testing.T) {
			h := header.TCP(segment(client4, vip4, header.TCPFields{Options: unhex(tt.options)}, ""))
			value, offset, ok := header.FindMSS(slices.Clip(h))
			require.Equal(t, tt.offset != 0, ok)
			require.Equal(t, []any{tt.value, tt.offset}, []any{value, offset})
		})
	}
	_, _, ok := header.FindMSS(syn4()[:19])
	require.False(t, ok)
	_, _, ok = header.FindMSS(syn4()[:22])
	require.False(t, ok, "header cut")
}

func TestSetMSS(t *testing.T) {
	for name, options := range map[string]string{"even": "020405b4", "odd": "01 020405b4 000000", "odd, last": "010101 010101 01 0204ffff 00"} {
		t.Run(name, func(t *testing.T) {
			h := header.TCP(segment(client4, vip4, header.TCPFields{Options: unhex(options)}, "odd"))
			_, offset, ok := header.FindMSS(h)
			require.True(t, ok)
			for _, mss := range []uint16{1300, 536, 0xff00, 0x00ff} {
				header.SetMSS(h, offset, mss)
				value, _, _ := header.FindMSS(h)
				require.Equal(t, mss, value)
				require.True(t, header.ChecksumOK(h, header.ProtoTCP, &client4, &vip4))
			}
		})
	}
}
