package gue

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
)

// Control messages travel among packets, and Read is not woken by them alone.
func TestControlOverSockets(t *testing.T) {
	for name, is6 := range map[string]bool{"IPv4": false, "IPv6": true} {
		t.Run(name, func(t *testing.T) {
			got := make(chan string, 16)
			a, b := pair(t, is6, Config{Keys: controlKeys, Control: func(_ dpr.PeerID, m []byte) { got <- string(m) }})
			from := b.peers.Load().byAddr[a.cfg.Listen[0].Addr()]
			want := []string{"", "one", string(make([]byte, MaxControl))}
			for _, m := range want {
				require.NoError(t, a.Control(peerB, []byte(m)))
			}
			inner := dprtest.UDP(client4, server4, dprtest.Options{})
			_, err := a.Queues[0].Write([]dpr.Packet{packet(inner, peerB)})
			require.NoError(t, err)
			segs, _ := read(t, b.Queues[0], 1, from)
			require.Equal(t, [][]byte{inner}, segs)
			for _, m := range want {
				require.Equal(t, m, <-got)
			}
			require.Zero(t, b.Stats().Dropped)
			require.EqualValues(t, len(want), b.Stats().ControlsReceived)
			require.Error(t, a.Control(peerB, make([]byte, MaxControl+1)))
			require.Error(t, a.Control(99, nil))
			require.NoError(t, a.Close())
			require.Error(t, a.Control(peerB, nil))
			require.EqualValues(t, len(want), a.Stats().ControlsSent)
		})
	}
}

// An uplink that has no use for control messages drops them, and a replay is dropped
// by one that has.
func TestControlDropped(t *testing.T) {
	a, b := pair(t, false, Config{})
	require.NoError(t, a.Control(peerB, []byte("x")))
	inner := dprtest.UDP(client4, server4, dprtest.Options{})
	_, err := a.Queues[0].Write([]dpr.Packet{packet(inner, peerB)})
	require.NoError(t, err)
	read(t, b.Queues[0], 1, peerA)
	require.Equal(t, uint64(1), b.Stats().Dropped[Control])
	require.Zero(t, b.Stats().ControlsReceived)
	require.Error(t, b.Control(peerB, nil), "not a peer")
	require.NoError(t, b.SetPeers([]Peer{{ID: peerA, Addr: netip.MustParseAddrPort("127.0.0.1:9")}}))
}
