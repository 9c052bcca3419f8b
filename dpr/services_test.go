package dpr_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/lb"
)

// A service that goes and comes back finds the flows that it left: they are counted for
// as long as they are in the table, and no longer.
func TestFlowsOfAServiceThatComesBack(t *testing.T) {
	web := []dpr.Service{{Name: "web", Proto: dpr.TCP, Port: 80, Addrs: []netip.Addr{vip.Addr()}}}
	for name, tt := range map[string]struct {
		away time.Duration
		left int32
	}{
		"before they end": {0, 1},
		"when they ended": {time.Hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, dpr.Config{TrackLocal: true})
			b.choose("self")
			require.Equal(t, dpr.Local, b.from(tcp(syn, 1, 0)).Verdict)
			require.NoError(t, b.SetServices(nil))
			b.pass(tt.away)
			require.NoError(t, b.SetServices(web))
			b.pass(0)
			require.Equal(t, tt.left, b.Serving("web").Load())
			require.Equal(t, uint64(1), b.Stats().Services["web"].Served, "since the engine was made")
			b.pass(time.Hour)
			require.Zero(t, b.flows())
			require.Zero(t, b.Serving("web").Load())
		})
	}
}

// A service that comes back has no policy until it gets a snapshot again.
func TestAServiceThatComesBackHasNoSnapshot(t *testing.T) {
	b := newBench(t, dpr.Config{})
	b.requireForward(b.from(tcp(syn, 1, 0)), "h2")
	require.NoError(t, b.SetServices(nil))
	require.NoError(t, b.SetServices([]dpr.Service{{Name: "web", Proto: dpr.TCP, Port: 80, Addrs: []netip.Addr{vip.Addr()}}}))
	other := netip.AddrPortFrom(client.Addr(), client.Port()+1)
	require.Equal(t, dpr.Local, b.from(dprtest.TCP(other, vip, dprtest.Options{Flags: syn})).Verdict)
}

// Services that are refused leave nothing behind.
func TestServicesAfterRefusedOnes(t *testing.T) {
	source := netip.MustParseAddr("198.51.100.9")
	b := newBench(t, dpr.Config{NAT: dpr.NAT{Sources: []netip.Addr{source}}})
	first, _ := dpr.NAT{Sources: []netip.Addr{source}}.Ports()
	bad := dpr.Service{Name: "new", Proto: dpr.TCP, Port: first, Addrs: []netip.Addr{source}}
	plain := []dpr.Peer{{ID: "h2", Servers: map[string][]netip.AddrPort{"new": {netip.MustParseAddrPort("203.0.113.4:80")}, "web": {netip.MustParseAddrPort("203.0.113.5:80")}}}}
	require.NoError(t, b.SetPeers(plain))
	require.Error(t, b.SetServices([]dpr.Service{bad}))
	require.Zero(t, b.Open("h2", "new"))
	require.Equal(t, dpr.Transmit, b.from(tcpFrom(netip.AddrPortFrom(client.Addr(), 1), syn, 1, 0)).Verdict, "nothing changed")
	require.NoError(t, b.SetPeers(plain))
	require.Error(t, b.SetSnapshot("new", b.policy, &lb.Snapshot{}))
	require.Nil(t, b.Serving("new"))
	good := dpr.Service{Name: "new", Proto: dpr.TCP, Port: 8080, Addrs: []netip.Addr{vip.Addr()}}
	require.NoError(t, b.SetServices([]dpr.Service{good}))
	require.NotNil(t, b.Serving("new"))
}

// A batch that began before its peer went, and came back, changes no count of the one
// that came back.
func TestLateBatchesAndPeersThatComeBack(t *testing.T) {
	for name, tt := range map[string]struct{ before, late []byte }{
		"a flow begins": {nil, tcp(syn, 1, 0)},
		"a flow ends":   {tcp(syn, 1, 0), tcp(rst, 2, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, dpr.Config{})
			if tt.before != nil {
				b.requireForward(b.from(tt.before), "h2")
			}
			late := b.Late(b.now)
			require.NoError(t, b.SetPeers(nil))
			require.NoError(t, b.SetPeers([]dpr.Peer{{ID: "h2"}}))
			late([]dpr.Packet{packet(tt.late)})
			require.Zero(t, b.open("h2", "web"))
			require.Zero(t, b.Open("h2", "web"))
			b.pass(3 * time.Hour)
			require.Zero(t, b.flows())
			require.Zero(t, b.open("h2", "web"))
		})
	}
}
