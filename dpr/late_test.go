package dpr_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/lb"
)

// A goroutine may have loaded what is known of peers before another one binds a flow to a
// peer, or to a server of one, that has just come.
func TestFlowYoungerThanTheBatch(t *testing.T) {
	t.Run("peer", func(t *testing.T) {
		b := newBench(t, dpr.Config{})
		require.NoError(t, b.SetPeers([]dpr.Peer{{ID: "h2"}}))
		late := b.Late(b.now)
		require.NoError(t, b.SetPeers([]dpr.Peer{{ID: "h2"}, {ID: "h3"}}))
		b.choose("h3")
		b.requireForward(b.from(dprtest.TCP(client, vip, dprtest.Options{Flags: dprtest.SYN, Seq: 1})), "h3")
		pkts := []dpr.Packet{packet(dprtest.TCP(client, vip, dprtest.Options{Flags: dprtest.ACK, Seq: 2}))}
		late(pkts)
		b.requireForward(pkts[0], "h3")
	})
	t.Run("server", func(t *testing.T) {
		b := newNAT(t, dpr.Config{})
		late := b.Late(b.now)
		elsewhere := netip.MustParseAddrPort("203.0.113.4:8080")
		require.NoError(t, b.SetPeers([]dpr.Peer{{ID: "h2"}, {ID: "h3", Servers: map[string][]netip.AddrPort{"web": {elsewhere}}}}))
		s := side{client, vip, elsewhere, entry}
		b.out(s, dprtest.Options{Flags: dprtest.SYN, Seq: 1})
		pkts := []dpr.Packet{packet(dprtest.TCP(s.client, s.dialled, dprtest.Options{Flags: dprtest.ACK, Seq: 2}))}
		late(pkts)
		b.requireBytes(pkts[0], dprtest.TCP(b.leaves(s), elsewhere, dprtest.Options{Flags: dprtest.ACK, Seq: 2, TTL: 63}))
	})
	t.Run("service", func(t *testing.T) {
		b := newNAT(t, dpr.Config{})
		require.NoError(t, b.SetPeers([]dpr.Peer{{ID: "h3", Servers: map[string][]netip.AddrPort{"web": {plain}, "new": {plain}}}}))
		late := b.Late(b.now)
		dialled := netip.AddrPortFrom(vip.Addr(), 81)
		require.NoError(t, b.SetServices([]dpr.Service{
			{Name: "web", Proto: dpr.TCP, Port: 80, Addrs: []netip.Addr{vip.Addr()}},
			{Name: "new", Proto: dpr.TCP, Port: 81, Addrs: []netip.Addr{vip.Addr()}},
		}))
		require.NoError(t, b.SetSnapshot("new", b.policy, &lb.Snapshot{
			Hosts: []lb.Host{{ID: "h1", Weight: 1, Flags: lb.Local}, {ID: "h3", Weight: 1}},
		}))
		s := side{client, dialled, plain, entry}
		b.out(s, dprtest.Options{Flags: dprtest.SYN, Seq: 1})
		pkts := []dpr.Packet{packet(dprtest.TCP(plain, b.leaves(s), dprtest.Options{Flags: dprtest.SYN | dprtest.ACK, Seq: 7, Ack: 2}))}
		late(pkts)
		b.requireBytes(pkts[0], dprtest.TCP(dialled, client, dprtest.Options{Flags: dprtest.SYN | dprtest.ACK, Seq: 7, Ack: 2, TTL: 63}))
	})
}
