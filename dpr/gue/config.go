package gue

import (
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/internal/tunnel"
)

// Config configures an uplink.
type Config struct {
	// Listen are the addresses and the port that peers send to, at most one of each
	// family; port 0 is replaced by [Port]. Packets to peers of a family leave from
	// the address of that family. The default is all addresses of this host, in
	// both families. With Keys each must be one address, not all, since the tag
	// covers it.
	Listen []netip.AddrPort
	// Keys authenticate datagrams: the first is used to send, all are accepted.
	// Without keys a datagram is judged by its source address alone, which anybody
	// in the network between the hosts can forge.
	Keys []Key
	// Queues is the number of receive queues for each of Listen, among which the
	// kernel spreads flows; the default is 1.
	Queues int
	// Sources is the number of UDP source ports to send from; the default is 4. A
	// network card spreads datagrams over its receive queues by their ports. Each
	// takes one or two sockets for each of Listen.
	Sources int
	// NoOffload switches off UDP segmentation and receive offload, and the joining
	// of received segments. It costs most of the throughput; it is meant for
	// kernels whose offload is broken.
	NoOffload bool
	// Control is given each control message of a peer, by the goroutine that reads,
	// so it must not wait. The bytes are the uplink's again when it returns. The
	// default is to drop and count them.
	Control func(from dpr.PeerID, message []byte)
	// Log receives the one message there is: that the kernel refused an offload.
	// The default is slog.Default.
	Log *slog.Logger
}

const (
	defaultSources = 4
	maxSources     = 64
	maxQueues      = 256
)

// withDefaults returns the configuration with its zero fields but Listen filled
// in, or an error that names the field that cannot be.
func (c Config) withDefaults() (Config, error) {
	if c.Queues == 0 {
		c.Queues = 1
	}
	if c.Sources == 0 {
		c.Sources = defaultSources
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Queues < 0 || c.Queues > maxQueues {
		return c, fmt.Errorf("gue: Queues %d is not within 1 to %d", c.Queues, maxQueues)
	}
	if c.Sources < 0 || c.Sources > maxSources {
		return c, fmt.Errorf("gue: Sources %d is not within 1 to %d", c.Sources, maxSources)
	}
	var err error
	c.Listen, err = listen(c.Listen, len(c.Keys) > 0)
	return c, err
}

// listen checks the addresses to listen on and fills in their ports. With exact
// set, wildcards will not do.
func listen(addrs []netip.AddrPort, exact bool) ([]netip.AddrPort, error) {
	if len(addrs) == 0 && exact {
		return nil, fmt.Errorf("gue: Listen is empty: with Keys, or over IP, it must name an address of this host")
	}
	var out []netip.AddrPort
	for i, a := range addrs {
		ip := a.Addr().Unmap()
		switch {
		case !ip.IsValid() || ip.Zone() != "":
			return nil, fmt.Errorf("gue: Listen[%d] %v is no address, or one of a single link", i, a)
		case exact && ip.IsUnspecified():
			return nil, fmt.Errorf("gue: Listen[%d] is %v: with Keys, or over IP, it must be one address of this host", i, ip)
		case i > 0 && ip.Is4() == out[0].Addr().Is4() || i > 1:
			return nil, fmt.Errorf("gue: Listen[%d] %v: at most one address of each family", i, a)
		}
		port := a.Port()
		if port == 0 {
			port = Port
		}
		out = append(out, netip.AddrPortFrom(ip, port))
	}
	return out, nil
}

// A Peer is a host that packets may go to and come from.
type Peer struct {
	// ID is the number by which packets name the peer.
	ID dpr.PeerID
	// Addr is where the peer listens. No two peers may share an address, since it
	// is by the address that a received packet's peer is known. Port 0 is replaced
	// by [Port].
	Addr netip.AddrPort
	// MTU is the length of the longest packet, in bytes, that fits the tunnel to
	// the peer; see [Uplink.MTU]. It need not be exact: what the kernel knows better
	// is its to say. Below 1280, IPv6 packets of up to 1280 bytes, which every link
	// must carry (RFC 8200, section 5), travel in fragments of the outer packet.
	// The default is no limit.
	MTU int
}

// peerTable is an immutable set of peers.
type peerTable struct {
	byID   map[dpr.PeerID]*peer
	byAddr map[netip.Addr]dpr.PeerID
}

type peer struct {
	addr     netip.AddrPort
	src, dst [16]byte // the outer addresses, as the tag covers them
	family   int      // index of Listen
	mtu      int
	sock     tunnel.Sockaddr
}

// newPeerTable checks the peers against the addresses that this host sends from.
func newPeerTable(peers []Peer, listen []netip.AddrPort) (*peerTable, error) {
	t := &peerTable{
		byID:   make(map[dpr.PeerID]*peer, len(peers)),
		byAddr: make(map[netip.Addr]dpr.PeerID, len(peers)),
	}
	for _, p := range peers {
		addr := p.Addr.Addr().Unmap()
		port := p.Addr.Port()
		if port == 0 {
			port = Port
		}
		family := familyOf(addr, listen)
		switch {
		case p.ID == 0:
			return nil, fmt.Errorf("gue: peer %v: ID 0 is no peer", p.Addr)
		case !addr.IsValid() || addr.IsUnspecified() || addr.IsMulticast() || addr.Zone() != "":
			return nil, fmt.Errorf("gue: peer %d: %v is no host's address, or one of a single link", p.ID, p.Addr)
		case family < 0:
			return nil, fmt.Errorf("gue: peer %d: no address of the family of %v in Listen to send from", p.ID, addr)
		case p.MTU < 0:
			return nil, fmt.Errorf("gue: peer %d: MTU %d is negative", p.ID, p.MTU)
		case t.byID[p.ID] != nil:
			return nil, fmt.Errorf("gue: peer %v: ID %d is that of %v", p.Addr, p.ID, t.byID[p.ID].addr)
		case t.byAddr[addr] != 0:
			return nil, fmt.Errorf("gue: peer %d: address %v is that of peer %d", p.ID, addr, t.byAddr[addr])
		}
		to, mtu := netip.AddrPortFrom(addr, port), p.MTU
		if mtu == 0 {
			mtu = dpr.MaxPacket
		}
		t.byID[p.ID] = &peer{
			addr: to, src: listen[family].Addr().As16(), dst: addr.As16(), family: family, mtu: mtu, sock: tunnel.NewSockaddr(to),
		}
		t.byAddr[addr] = p.ID
	}
	return t, nil
}

// familyOf returns the index of the first of listen in the family of addr, or -1.
func familyOf(addr netip.Addr, listen []netip.AddrPort) int {
	for i, l := range listen {
		if l.Addr().Is4() == addr.Is4() {
			return i
		}
	}
	return -1
}

// Stats counts what an uplink has done since it was opened.
type Stats struct {
	// Sent and Received are inner packets; a super-frame counts as its segments.
	Sent, Received uint64
	// Calls are the system calls that sent and received them.
	SendCalls, ReceiveCalls uint64
	// Joined are the received packets that became part of a super-frame.
	Joined uint64
	// ControlsSent and ControlsReceived are control messages, which are none of the
	// packets.
	ControlsSent, ControlsReceived uint64
	// Dropped are the packets and control messages that were dropped, by reason.
	Dropped [NumReasons]uint64
}

// counters are the live form of Stats.
type counters struct {
	sent, received, sendCalls, receiveCalls, joined atomic.Uint64
	controlsSent, controlsReceived                  atomic.Uint64
	dropped                                         [NumReasons]atomic.Uint64
}

func (c *counters) drop(why Reason, n int) { c.dropped[why].Add(uint64(n)) }

func (c *counters) stats() Stats {
	s := Stats{
		Sent: c.sent.Load(), Received: c.received.Load(), Joined: c.joined.Load(),
		SendCalls: c.sendCalls.Load(), ReceiveCalls: c.receiveCalls.Load(),
		ControlsSent: c.controlsSent.Load(), ControlsReceived: c.controlsReceived.Load(),
	}
	for i := range c.dropped {
		s.Dropped[i] = c.dropped[i].Load()
	}
	return s
}
