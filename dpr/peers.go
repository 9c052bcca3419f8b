package dpr

import (
	"fmt"
	"slices"
)

// SetPeers replaces the set of peers that flows may be handed to. A peer that is
// left out is gone: the next packet of each flow it served finds that out, and is
// answered with a reset or, if it opens a connection, put before the policy. A peer
// that merely gets no new flows stays in the set. On an error nothing changes.
func (e *Engine) SetPeers(peers []Peer) error {
	names := make(map[string]Peer, len(peers))
	for _, p := range peers {
		if _, twice := names[p.ID]; twice || p.ID == "" {
			return fmt.Errorf("dpr: peer %q: IDs must be unique and not empty", p.ID)
		}
		if p.MTU != 0 && (p.MTU < minMTU || p.MTU > MaxPacket) {
			return fmt.Errorf("dpr: peer %q: MTU %d: must be between %d and %d", p.ID, p.MTU, minMTU, MaxPacket)
		}
		if err := p.validatePlain(&e.cfg.NAT); err != nil {
			return err
		}
		names[p.ID] = p
	}
	if len(names) > maxPeers {
		return fmt.Errorf("dpr: %d peers: at most %d", len(names), maxPeers)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	next := *e.view.Load()
	next.peers = slices.Clone(next.peers)
	e.keepPeers(&next, names)
	for _, p := range peers {
		if _, isNew := names[p.ID]; isNew {
			e.addPeer(&next, p)
		}
	}
	e.findOwners(&next)
	e.growCounters(&next)
	if err := e.setServers(&next); err != nil {
		return err
	}
	e.view.Store(&next)
	next.relink()
	return nil
}

// minMTU is the least that any tunnel must carry: what IPv4 guarantees.
const minMTU = 68

// keepPeers updates the peers of v that are in names, which it removes there, and
// frees the slots of the others.
func (e *Engine) keepPeers(v *view, names map[string]Peer) {
	for slot := 1; slot < len(v.peers); slot++ {
		p := &v.peers[slot]
		if p.id == 0 {
			continue
		}
		if want, stays := names[p.name]; stays && (p.plain == nil) == (want.Servers == nil) {
			p.mtu, p.addrs, p.plain = peerMTU(want), slices.Clone(want.Addrs), want.Servers
			delete(names, p.name)
			continue
		}
		*p = peer{}
	}
}

func peerMTU(p Peer) int {
	switch {
	case p.MTU != 0:
		return p.MTU
	case p.Servers != nil:
		return defaultPlainMTU
	}
	return defaultPeerMTU
}

func (e *Engine) addPeer(v *view, p Peer) {
	slot := 1
	for slot < len(v.peers) && v.peers[slot].id != 0 {
		slot++
	}
	if slot == len(v.peers) {
		v.peers = append(v.peers, peer{})
	}
	e.generation++
	v.peers[slot] = peer{
		id:       PeerID(e.generation)<<slotBits | PeerID(slot),
		name:     p.ID,
		mtu:      peerMTU(p),
		addrs:    slices.Clone(p.Addrs),
		plain:    p.Servers,
		listener: new(listener),
	}
}

// findOwners finds the peer of each address.
func (e *Engine) findOwners(v *view) {
	v.owner = make([]PeerID, len(e.addrs))
	for i := range v.peers {
		for _, a := range v.peers[i].addrs {
			if index, known := e.addrIndex[a.As16()]; known && v.owner[index] == 0 {
				v.owner[index] = v.peers[i].id
			}
		}
	}
}
