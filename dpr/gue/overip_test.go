package gue_test

import (
	"net/netip"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/dpr/gue"
)

// overIP returns an uplink over an endpoint of the network.
func overIP(t *testing.T, n *dprtest.Network, cfg gue.Config) (*gue.OverIP, *dprtest.Endpoint) {
	t.Helper()
	var addrs []netip.Addr
	for _, l := range cfg.Listen {
		addrs = append(addrs, l.Addr())
	}
	e, err := n.Join(dprtest.Link{}, addrs...)
	require.NoError(t, err)
	u, err := gue.NewOverIP(cfg, e)
	require.NoError(t, err)
	return u, e
}

func TestOverIP(t *testing.T) {
	for _, tc := range []struct {
		name string
		a, b string
		keys []gue.Key
	}{
		{"IPv4", "10.0.0.1:0", "10.0.0.2:6080", nil},
		{"IPv6 with a key", "[fd00::1]:0", "[fd00::2]:6080", []gue.Key{keyOne}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			at, bt := netip.MustParseAddrPort(tc.a), netip.MustParseAddrPort(tc.b)
			n := dprtest.NewNetwork(1)
			a, _ := overIP(t, n, gue.Config{Listen: []netip.AddrPort{at}, Keys: tc.keys})
			b, _ := overIP(t, n, gue.Config{Listen: []netip.AddrPort{bt}, Keys: tc.keys})
			require.NoError(t, a.SetPeers([]gue.Peer{{ID: 7, Addr: bt}}))
			require.NoError(t, b.SetPeers([]gue.Peer{{ID: 8, Addr: at}}))

			inner := dprtest.TCP(client4, server4, dprtest.Options{Flags: dprtest.ACK, Payload: []byte("hello")})
			var want [][]byte
			var pkts []dpr.Packet
			for range 20 {
				p := packet(inner)
				p.Peer = 7
				pkts = append(pkts, p)
				want = append(want, inner)
			}
			frame := packet(dprtest.TCP(client6, server6, dprtest.Options{
				Flags: dprtest.ACK, Payload: make([]byte, 20_000), Checksum: dprtest.Partial,
			}))
			frame.Peer = 7
			frame.GSO = dpr.GSO{Type: dpr.GSOTCP6, NeedsCsum: true, CsumStart: 40, CsumOffset: 16, HdrLen: 60, Size: 1000}
			for i := range 20 {
				want = append(want, dprtest.TCP(client6, server6, dprtest.Options{
					Flags: dprtest.ACK, Seq: uint32(i * 1000), Payload: make([]byte, 1000),
				}))
			}
			nobody, cut := packet(inner), packet(inner[:30])
			cut.Peer = 7
			sent, err := a.Write(append(pkts, frame, nobody, cut))
			require.NoError(t, err)
			require.Equal(t, 21, sent)

			var got [][]byte
			in := dpr.NewPackets(16, 2000)
			for len(got) < len(want) {
				n, err := b.Read(in)
				require.NoError(t, err)
				for _, p := range in[:n] {
					require.Equal(t, dpr.PeerID(8), p.Peer)
					got = append(got, append([]byte{}, p.Bytes()...))
				}
			}
			require.Equal(t, want, got)
			require.NoError(t, b.Close())
			_, err = b.Read(in)
			require.ErrorIs(t, err, os.ErrClosed)
			s, r := a.Stats(), b.Stats()
			require.Equal(t, uint64(40), s.Sent)
			require.Equal(t, uint64(40), r.Received)
			require.Equal(t, uint64(1), s.Dropped[gue.NoPeer])
			require.Equal(t, uint64(1), s.Dropped[gue.Malformed])
		})
	}
}

func TestOverIPDropsByReason(t *testing.T) {
	at, bt := netip.MustParseAddrPort("10.0.0.1:6080"), netip.MustParseAddrPort("10.0.0.2:6080")
	n := dprtest.NewNetwork(1)
	b, _ := overIP(t, n, gue.Config{Listen: []netip.AddrPort{bt}})
	require.NoError(t, b.SetPeers([]gue.Peer{{ID: 8, Addr: at}}))
	far, err := n.Join(dprtest.Link{}, at.Addr(), netip.MustParseAddr("10.0.0.9"))
	require.NoError(t, err)
	inner := dprtest.UDP(client4, server4, dprtest.Options{Payload: make([]byte, 600)})
	whole := dprtest.UDP(hostA4, bt, dprtest.Options{Payload: inner})
	_, err = far.Write([]dpr.Packet{
		packet(dprtest.UDP(netip.MustParseAddrPort("10.0.0.9:1"), bt, dprtest.Options{Payload: inner})),
		packet(dprtest.TCP(hostA4, bt, dprtest.Options{})),
		packet(dprtest.UDP(hostA4, netip.AddrPortFrom(bt.Addr(), 99), dprtest.Options{Payload: inner})),
		packet(dprtest.UDP(hostA4, bt, dprtest.Options{})),
		packet(dprtest.Fragment(whole, 300)[0]),
		packet(dprtest.UDP(hostA4, bt, dprtest.Options{Payload: inner, Checksum: dprtest.Wrong})),
		packet(whole),
	})
	require.NoError(t, err)
	in := dpr.NewPackets(16, 2000)
	count, err := b.Read(in)
	require.NoError(t, err)
	require.Equal(t, 1, count)
	require.Equal(t, inner, in[0].Bytes())
	var want [gue.NumReasons]uint64
	want[gue.UnknownPeer], want[gue.NotOurs], want[gue.Short], want[gue.BadOuter] = 1, 2, 1, 2
	require.Equal(t, want, b.Stats().Dropped)
}

func TestNewOverIPRefuses(t *testing.T) {
	e, err := dprtest.NewNetwork(1).Join(dprtest.Link{}, hostA4.Addr())
	require.NoError(t, err)
	_, err = gue.NewOverIP(gue.Config{}, e)
	require.ErrorContains(t, err, "Listen")
	_, err = gue.NewOverIP(gue.Config{Listen: []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:0")}}, e)
	require.ErrorContains(t, err, "Listen[0]")
}
