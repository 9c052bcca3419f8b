package node

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
)

// writes keeps what is written.
type writes [][]dpr.PeerID

func (w *writes) Write(pkts []dpr.Packet) (int, error) {
	var ids []dpr.PeerID
	for _, p := range pkts {
		ids = append(ids, p.Peer)
	}
	*w = append(*w, ids)
	return len(pkts), nil
}

func TestEachPeerGetsItsMethod(t *testing.T) {
	at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), port) }
	var m methodSwitch
	var gue, ipip writes
	u := &uplink{gue: &gue, ipip: &ipip, methods: &m}
	pkts := []dpr.Packet{{Peer: 1}, {Peer: 1}, {Peer: 2}, {Peer: 3}, {Peer: 2}}
	m.set([]Peer{{ID: 1, Addr: at(6080)}, {ID: 3, Addr: at(6080)}})
	n, err := u.Write(pkts)
	require.NoError(t, err)
	require.Equal(t, len(pkts), n)
	require.Equal(t, writes{{1, 1, 2, 3, 2}}, gue)

	gue = nil
	m.set([]Peer{{ID: 1, Addr: at(6080)}, {ID: 2, Addr: at(0)}, {ID: 3, Addr: at(6080)}})
	n, err = u.Write(pkts)
	require.NoError(t, err)
	require.Equal(t, len(pkts), n)
	require.Equal(t, writes{{1, 1}, {3}}, gue)
	require.Equal(t, writes{{2}, {2}}, ipip)
}

func TestMethodNames(t *testing.T) {
	for _, m := range []Method{GUE, IPIP} {
		got, err := ParseMethod(m.String())
		require.NoError(t, err)
		require.Equal(t, m, got)
	}
	_, err := ParseMethod("l2")
	require.ErrorContains(t, err, "give gue or ipip")
	require.Equal(t, "method 9", Method(9).String())
}
