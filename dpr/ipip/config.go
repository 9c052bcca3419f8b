package ipip

import (
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/internal/tunnel"
)

// Config configures an uplink.
type Config struct {
	// Listen are this host's addresses that peers send to, at most one of each
	// family. Packets to peers of a family leave from the address of that family.
	// Required.
	Listen []netip.Addr
	// SendOnly says that nothing is received: peers send to this host by another
	// method.
	SendOnly bool
}

func (c Config) validate() error {
	if len(c.Listen) == 0 {
		return fmt.Errorf("ipip: Listen is empty: give the addresses of this host that peers send to")
	}
	for i, a := range c.Listen {
		switch {
		case !unicast(a):
			return fmt.Errorf("ipip: Listen[%d] %v: give an address of this host that is valid beyond one link", i, a)
		case i > 0 && a.Unmap().Is4() == c.Listen[0].Unmap().Is4() || i > 1:
			return fmt.Errorf("ipip: Listen[%d] %v: at most one address of each family", i, a)
		}
	}
	return nil
}

func unicast(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && a.Zone() == ""
}

// Overhead is what the tunnel adds to each packet, in bytes: 20 over IPv4, 40 over
// IPv6.
func Overhead(outerIs6 bool) int { return tunnel.IPIP(outerIs6) }

// A Peer is a host that packets may go to and come from.
type Peer struct {
	// ID is the number by which packets name the peer.
	ID dpr.PeerID
	// Addr is the peer's address. No two peers may share one, since it is by the
	// address that a received packet's peer is known.
	Addr netip.Addr
	// MTU is the length of the longest packet, in bytes, that fits the tunnel to
	// the peer; see [Uplink.MTU]. Below 1280, IPv6 packets of up to 1280 bytes travel
	// in fragments of the outer packet. The default is no limit.
	MTU int
}

// peerTable is an immutable set of peers.
type peerTable struct {
	byID   map[dpr.PeerID]*peer
	byAddr map[netip.Addr]*peer
}

type peer struct {
	id     dpr.PeerID
	addr   netip.Addr
	family int // index of Listen
	mtu    int
	name   tunnel.Sockaddr
}

func newPeerTable(peers []Peer, listen []netip.Addr) (*peerTable, error) {
	t := &peerTable{byID: make(map[dpr.PeerID]*peer, len(peers)), byAddr: make(map[netip.Addr]*peer, len(peers))}
	for _, p := range peers {
		addr := p.Addr.Unmap()
		family := familyOf(addr, listen)
		switch {
		case p.ID == 0:
			return nil, fmt.Errorf("ipip: peer %v: ID 0 is no peer", p.Addr)
		case !unicast(addr):
			return nil, fmt.Errorf("ipip: peer %d: %v is no host's address, or one of a single link", p.ID, p.Addr)
		case family < 0:
			return nil, fmt.Errorf("ipip: peer %d: no address of the family of %v in Listen to send from", p.ID, addr)
		case p.MTU < 0:
			return nil, fmt.Errorf("ipip: peer %d: MTU %d is negative", p.ID, p.MTU)
		case t.byID[p.ID] != nil:
			return nil, fmt.Errorf("ipip: peer %v: ID %d is that of %v", p.Addr, p.ID, t.byID[p.ID].addr)
		case t.byAddr[addr] != nil:
			return nil, fmt.Errorf("ipip: peer %d: address %v is that of peer %d", p.ID, addr, t.byAddr[addr].id)
		}
		next := &peer{id: p.ID, addr: addr, family: family, mtu: p.MTU, name: tunnel.NewSockaddr(netip.AddrPortFrom(addr, 0))}
		if next.mtu == 0 {
			next.mtu = dpr.MaxPacket
		}
		t.byID[p.ID], t.byAddr[addr] = next, next
	}
	return t, nil
}

// familyOf returns the index of the first of listen in the family of addr, or -1.
func familyOf(addr netip.Addr, listen []netip.Addr) int {
	for i, l := range listen {
		if l.Unmap().Is4() == addr.Is4() {
			return i
		}
	}
	return -1
}

// A Reason says why a packet was dropped. The zero Reason is OK: it was not.
type Reason uint8

// The reasons.
const (
	OK Reason = iota

	// UnknownPeer: the outer source of a received packet is no peer's address.
	UnknownPeer
	// BadInner: what a received packet carries is no whole IP packet, or not of the
	// version that the protocol says.
	BadInner
	// Congested: the outer packet was marked with congestion experienced, and the
	// inner one says that its sender does not understand ECN (RFC 6040, section 4.2).
	Congested
	// Cut: the packet was longer than the receive buffer.
	Cut

	// NoPeer: the Peer of a packet to send is not in the list.
	NoPeer
	// Malformed: the packet to send is no IP packet, or no valid super-frame.
	Malformed
	// TooBig: the packet to send exceeds, with its overhead, the path's MTU.
	TooBig
	// Refused: the kernel would not send the packet: no route, a firewall.
	Refused

	// NumReasons is the number of reasons, for arrays of counters.
	NumReasons
)

// String returns the reason in lower-case words joined by hyphens, as labels of
// metrics are.
func (r Reason) String() string {
	if r >= NumReasons {
		return fmt.Sprintf("reason %d", uint8(r))
	}
	return [...]string{
		"ok", "unknown-peer", "bad-inner-packet", "congested", "cut", "no-peer", "malformed", "too-big", "refused",
	}[r]
}

// Stats counts what an uplink has done since it was opened.
type Stats struct {
	// Sent and Received are inner packets; a super-frame that is sent counts as its
	// segments, one that the kernel joined before it was received as one.
	Sent, Received uint64
	// Dropped are the packets that were dropped, by reason.
	Dropped [NumReasons]uint64
}

// counters are the live form of Stats.
type counters struct {
	sent, received atomic.Uint64
	dropped        [NumReasons]atomic.Uint64
}

func (c *counters) drop(why Reason) { c.dropped[why].Add(1) }

func (c *counters) stats() Stats {
	s := Stats{Sent: c.sent.Load(), Received: c.received.Load()}
	for i := range c.dropped {
		s.Dropped[i] = c.dropped[i].Load()
	}
	return s
}
