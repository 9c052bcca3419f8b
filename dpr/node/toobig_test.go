package node_test

import (
	"context"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/dpr/node"
)

// kept is a device to which nothing comes and that keeps what goes to it.
type kept struct {
	nowhere
	pkts []dpr.Packet
}

func (k *kept) Write(pkts []dpr.Packet) (int, error) {
	k.pkts = append(k.pkts, pkts...)
	return len(pkts), nil
}

// Who has sent a packet that is too long for its way is told: a peer through the tunnel,
// all others from this host.
func TestTellsWhatIsTooBig(t *testing.T) {
	uplink, replies := &kept{nowhere: nowhere{make(chan struct{})}}, &kept{}
	var tell func(*dpr.Packet, int)
	n, err := node.New(node.Config{
		ID: "a", Addr: netip.MustParseAddr("198.18.0.1"), Services: []node.Service{{Name: "web", Port: 80}},
		Report: []netip.AddrPort{netip.MustParseAddrPort("198.18.0.2:6082")},
	}, node.Host{
		Devices: []dpr.Device{nowhere{make(chan struct{})}}, Uplinks: []dpr.Device{uplink}, Replies: replies,
		Reports:    nowhere{make(chan struct{})},
		SetPeers:   func([]node.Peer) error { return nil },
		SetAliases: func([]netip.Addr) error { return nil },
		OnTooBig:   func(f func(*dpr.Packet, int)) { tell = f },
	})
	require.NoError(t, err)
	const peer = 7
	for _, from := range []dpr.PeerID{peer, 0} {
		p := dpr.NewPackets(1, 2000)[0]
		p.Peer, p.Len = from, copy(p.Buf[p.Off:], dprtest.TCP(netip.MustParseAddrPort("198.18.0.1:80"),
			netip.MustParseAddrPort("192.0.2.1:999"), dprtest.Options{DF: true, Payload: make([]byte, 1400)}))
		tell(&p, 1300)
	}
	for _, to := range []*kept{uplink, replies} {
		require.Len(t, to.pkts, 1)
		require.NoError(t, dprtest.Check(to.pkts[0].Bytes()))
	}
	require.EqualValues(t, peer, uplink.pkts[0].Peer)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(t, n.Run(ended))
}
