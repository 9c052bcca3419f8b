package node

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/loadinfo"
)

// pathsEvery is how often a node asks for the MTUs of the paths to its peers. A path
// that becomes narrower swallows long packets until then. Linux repeats a segment 0.2,
// 0.6 and 1.4 s after the first time on a short path: the second comes through.
const pathsEvery = 500 * time.Millisecond

// followPaths makes engine and uplink follow the MTUs of the paths to the peers.
func (n *Node) followPaths() error {
	n.wiring.Lock()
	defer n.wiring.Unlock()
	s := n.current.Load()
	mtus := n.measure(s, n.peers)
	if maps.Equal(n.mtus, mtus) {
		return nil
	}
	return n.setPeers(s, n.peers, mtus)
}

// measure returns the length of the longest packet that fits the tunnel to each of
// the peers, and the path to each plain server, by ID.
func (n *Node) measure(s *setup, peers map[string]loadinfo.Member) map[string]int {
	mtus := make(map[string]int, len(peers))
	for id, m := range peers {
		mtus[id] = n.host.MTU
		if n.host.PathMTU == nil {
			continue
		}
		if mtu, err := n.host.PathMTU(m.Node); err == nil { // else nothing gets there anyway
			mtus[id] = mtu
		}
	}
	for _, server := range n.plain(s, peers) {
		if mtu := n.pathTo(&server); mtu > 0 {
			mtus[server.ID] = mtu
		}
	}
	return mtus
}

// pathTo returns the length of the longest packet that fits the paths to all endpoints
// of a plain server, 0 if that is not known.
func (n *Node) pathTo(s *Server) (least int) {
	if n.host.RouteMTU == nil {
		return 0
	}
	for _, list := range s.Services {
		for _, at := range list {
			mtu, err := n.host.RouteMTU(at.Addr())
			if err == nil && (least == 0 || mtu < least) {
				least = mtu
			}
		}
	}
	return least
}

// setPeers tells engine and uplink of the peers and of the MTUs of their tunnels.
func (n *Node) setPeers(s *setup, peers map[string]loadinfo.Member, mtus map[string]int) error {
	list, uplink := make([]dpr.Peer, 0, len(peers)), make([]Peer, 0, len(peers))
	for _, id := range slices.Sorted(maps.Keys(peers)) {
		list = append(list, dpr.Peer{ID: id, MTU: mtus[id], Addrs: s.aliasesOf(peers[id])})
	}
	members := len(list)
	for _, server := range n.plain(s, peers) {
		list = append(list, dpr.Peer{ID: server.ID, MTU: mtus[server.ID], Servers: server.Services})
	}
	if err := n.engine.SetPeers(list); err != nil {
		return err
	}
	for _, p := range list[:members] {
		uplink = append(uplink, Peer{ID: n.engine.PeerID(p.ID), Name: p.ID, Addr: peers[p.ID].Node, MTU: p.MTU})
	}
	if err := n.host.SetPeers(uplink); err != nil {
		return fmt.Errorf("tunnels to peers: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mtus = mtus
	return nil
}
