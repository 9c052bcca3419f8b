package ipip

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/internal/header"
	"github.com/carom-dpr/carom/internal/segment"
)

var (
	client4 = netip.MustParseAddrPort("203.0.113.7:50001")
	server4 = netip.MustParseAddrPort("192.0.2.1:80")
	client6 = netip.MustParseAddrPort("[2001:db8:1::7]:50001")
	server6 = netip.MustParseAddrPort("[2001:db8::1]:80")
)

// outer4 puts a packet behind an outer IPv4 header.
func outer4(inner []byte, tos uint8) []byte {
	proto := uint8(4)
	if header.Version(inner) == 6 {
		proto = 41
	}
	return dprtest.IP(netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), proto, dprtest.Options{TOS: tos, Payload: inner})
}

func TestUnwrap(t *testing.T) {
	v4 := dprtest.TCP(client4, server4, dprtest.Options{TOS: 2, Payload: []byte("data")})
	v6 := dprtest.TCP(client6, server6, dprtest.Options{TOS: 2, Payload: []byte("data")})
	deaf := dprtest.TCP(client4, server4, dprtest.Options{Payload: []byte("data")})
	for _, c := range []struct {
		name           string
		b              []byte
		outer4, inner6 bool
		tos            uint8
		why            Reason
	}{
		{"IPv4 in IPv4", outer4(v4, 0), true, false, 0, OK},
		{"IPv6 in IPv4", outer4(v6, 0), true, true, 0, OK},
		{"IPv4 in IPv6", v4, false, false, 0, OK},
		{"IPv6 in IPv6", v6, false, true, 0, OK},
		{"congested on the way, IPv4", outer4(v4, 3), true, false, 0, OK},
		{"congested on the way, IPv6", v4, false, false, 3, OK},
		{"congested, and the sender does not understand", deaf, false, false, 3, Congested},
		{"the other version", v4, false, true, 0, BadInner},
		{"the other version, IPv4 outside", outer4(v6, 0), true, false, 0, BadInner},
		{"cut", v4[:len(v4)-1], false, false, 0, BadInner},
		{"nothing", nil, false, false, 0, BadInner},
		{"nothing, IPv4 outside", nil, true, false, 0, BadInner},
		{"an outer header that is too short", append([]byte{0x44}, outer4(v4, 0)[1:]...), true, false, 0, BadInner},
		{"an outer header alone", outer4(nil, 0), true, false, 0, BadInner},
	} {
		t.Run(c.name, func(t *testing.T) {
			inner, why := unwrap(slices.Clone(c.b), c.outer4, c.inner6, c.tos)
			require.Equal(t, c.why, why)
			if why != OK {
				return
			}
			require.NoError(t, dprtest.Check(inner))
			want := c.b[len(c.b)-len(inner):]
			require.Equal(t, want[len(want)-4:], inner[len(inner)-4:])
		})
	}
}

// What the kernel has joined is known by its checksum, long or not.
func TestJoined(t *testing.T) {
	const mtu = 1480
	for name, ends := range map[string][2]netip.AddrPort{"IPv4": {client4, server4}, "IPv6": {client6, server6}} {
		t.Run(name, func(t *testing.T) {
			make := func(size int, sum dprtest.Checksum) []byte {
				return dprtest.TCP(ends[0], ends[1], dprtest.Options{Flags: dprtest.ACK, Payload: make([]byte, size), Checksum: sum})
			}
			_, is := joined(make(1000, dprtest.Right), mtu)
			require.False(t, is)
			_, is = joined(make(1000, dprtest.Wrong), mtu)
			require.False(t, is)

			p := dpr.NewPackets(1, dpr.MaxPacket)[0]
			gso, is := joined(make(200, dprtest.Partial), mtu)
			require.True(t, is)
			require.Equal(t, dpr.GSONone, gso.Type)
			require.True(t, gso.NeedsCsum)

			long := make(20_000, dprtest.Partial)
			gso, is = joined(long, mtu)
			require.True(t, is)
			require.NotEqual(t, dpr.GSONone, gso.Type)
			require.Equal(t, mtu, int(gso.HdrLen)+int(gso.Size))
			p.Len, p.GSO = copy(p.Buf[p.Off:], long), gso
			sent := 0
			var s segment.Splitter
			require.True(t, s.Start(&p))
			var front [100]byte
			for s.Left() > 0 {
				hdr, payload := s.Segment(front[:])
				require.NoError(t, dprtest.Check(slices.Concat(hdr, payload)))
				sent += len(payload)
			}
			require.Equal(t, 20_000, sent)
		})
	}
	_, is := joined(dprtest.UDP(client4, server4, dprtest.Options{Checksum: dprtest.Partial}), mtu)
	require.False(t, is)
	_, is = joined([]byte{0x45}, mtu)
	require.False(t, is)
}

func FuzzUnwrap(f *testing.F) {
	v4 := dprtest.TCP(client4, server4, dprtest.Options{Payload: []byte("data")})
	f.Add(outer4(v4, 3), true, false, uint8(0))
	f.Add(v4, false, false, uint8(3))
	f.Add(dprtest.TCP(client6, server6, dprtest.Options{}), false, true, uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, outer4, inner6 bool, tos uint8) {
		inner, why := unwrap(b, outer4, inner6, tos)
		if why != OK {
			require.Nil(t, inner)
			return
		}
		require.Equal(t, inner6, header.Version(inner) == 6)
		require.LessOrEqual(t, len(inner), len(b))
		_, _ = joined(inner, 1480)
	})
}

func TestConfig(t *testing.T) {
	a4, a6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	b4 := netip.MustParseAddr("192.0.2.2")
	for _, c := range []struct {
		name   string
		listen []netip.Addr
		err    string
	}{
		{"none", nil, "Listen is empty"},
		{"all", []netip.Addr{netip.IPv4Unspecified()}, "Listen[0]"},
		{"one link's", []netip.Addr{netip.MustParseAddr("fe80::1%eth0")}, "Listen[0]"},
		{"two of a family", []netip.Addr{a4, b4}, "Listen[1]"},
	} {
		_, err := Open(Config{Listen: c.listen})
		require.ErrorContains(t, err, c.err, c.name)
	}
	listen := []netip.Addr{a4}
	for _, c := range []struct {
		name  string
		peers []Peer
		err   string
	}{
		{"no ID", []Peer{{Addr: b4}}, "ID 0"},
		{"no address", []Peer{{ID: 1}}, "no host's address"},
		{"another family", []Peer{{ID: 1, Addr: a6}}, "no address of the family"},
		{"an ID twice", []Peer{{ID: 1, Addr: b4}, {ID: 1, Addr: a4}}, "ID 1"},
		{"an address twice", []Peer{{ID: 1, Addr: b4}, {ID: 2, Addr: b4}}, "address 192.0.2.2"},
		{"an MTU", []Peer{{ID: 1, Addr: b4, MTU: -1}}, "MTU -1"},
	} {
		_, err := newPeerTable(c.peers, listen)
		require.ErrorContains(t, err, c.err, c.name)
	}
	require.Equal(t, 20, Overhead(false))
	require.Equal(t, 40, Overhead(true))
}
