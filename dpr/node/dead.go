package node

import (
	"net/netip"
	"slices"
	"time"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/internal/header"
	"github.com/carom-dpr/carom/loadinfo"
)

// abandon ends the connections that this host serves and that were dialled at peers
// which are dead. What their clients send goes there, so they would hang until TCP gives
// up. It comes before the aliases go: without its address no socket can send a reset.
func (n *Node) abandon(peers []string, addrs []netip.Addr, next map[string]loadinfo.Member) {
	own := n.current.Load().dialled()
	addrs = slices.DeleteFunc(addrs, func(a netip.Addr) bool { return slices.Contains(own, a) || dialledAt(next, a) })
	if n.host.Abort == nil || len(addrs) == 0 {
		return
	}
	ended, err := n.host.Abort(addrs)
	n.aborted.Add(uint64(ended))
	switch {
	case err != nil:
		n.cfg.Logger.Warn("cannot end connections that were dialled at a dead peer: their clients wait until TCP gives up",
			"peers", peers, "ended", ended, "err", err)
	case ended > 0:
		n.cfg.Logger.Warn("connections that were dialled at a dead peer have been ended with a reset", "peers", peers, "ended", ended)
	}
}

// rouse has clients whose serving host has died say something, from which the engine can
// make a reset: one that only reads would wait for its keepalive, or for ever. A segment
// whose sequence number lies outside of a client's window must be answered with an ACK
// (RFC 9293, section 3.10.7.4). Where the window lies is not known, but of two numbers
// half of all numbers apart it has at most one. It must come after the peer is gone from
// the engine. A client's firewall may keep it from the client, which then finds out as it
// would without.
func (n *Node) rouse(now time.Time) {
	if n.host.Replies == nil {
		return
	}
	var batch []dpr.Packet
	roused := 0
	for f := range n.engine.Flows(now) {
		if !f.Lost || !isOpen(f.State) {
			continue
		}
		if roused++; roused > maxRoused {
			break
		}
		batch = append(batch, bare(f.Dialled, f.Client, header.ACK, 0), bare(f.Dialled, f.Client, header.ACK, 1<<31))
		if len(batch) == rouseBatch {
			_, _ = n.host.Replies.Write(batch) // the router reports what is gone
			batch = batch[:0]
		}
	}
	_, _ = n.host.Replies.Write(batch)
}

const (
	// maxRoused is how many clients are roused of one death: so many take less than a
	// second, in which membership is not followed.
	maxRoused  = 1 << 16
	rouseBatch = 64
)

// isOpen reports whether a client may wait for data.
func isOpen(s dpr.State) bool {
	return s == dpr.Established || s == dpr.Unconfirmed || s == dpr.Closing
}

// dead returns the peers that have died since membership was last followed, and the
// addresses at which clients dialled them.
func (n *Node) dead(members []loadinfo.Member) (peers []string, addrs []netip.Addr) {
	window := togetherPeriods * n.cfg.Period
	for i := range members {
		m := &members[i]
		if _, known := n.peers[m.ID]; !known || m.State != loadinfo.Down || !silent(m, window) {
			continue
		}
		if !fellAlone(m, members, window) {
			n.cfg.Logger.Warn("most hosts fell silent at once, which may be the network's fault:"+
				" connections that were dialled at this one are not ended", "peer", m.ID)
			continue
		}
		peers, addrs = append(peers, m.ID), append(addrs, m.Dialled...)
	}
	return peers, unique(addrs)
}

// togetherPeriods is within how many report periods hosts fall silent at once: what is
// lost of one silence more than of another is a report, or two.
const togetherPeriods = 3

// silent reports whether a host is not heard. One that has left in order, or has come
// back from silence and is not trusted yet, is down and was heard of late: its kernel
// answers its clients.
func silent(m *loadinfo.Member, window time.Duration) bool {
	return m.State >= loadinfo.Stale && m.Age >= window
}

// fellAlone reports whether a peer that is down fell silent by itself. If those that
// did so within the window, it among them, outnumber those that are heard, this host
// among them, the network may be to blame, and come back before the clients give up.
func fellAlone(m *loadinfo.Member, members []loadinfo.Member, window time.Duration) bool {
	heard, fell := 0, 0
	for i := range members {
		switch o := &members[i]; {
		case !silent(o, window):
			heard++
		case (o.Age - m.Age).Abs() < window:
			fell++
		}
	}
	return fell <= heard
}

// dialledAt reports whether clients dial one of the peers at the address.
func dialledAt(peers map[string]loadinfo.Member, a netip.Addr) bool {
	for _, m := range peers {
		if slices.Contains(m.Dialled, a) {
			return true
		}
	}
	return false
}
