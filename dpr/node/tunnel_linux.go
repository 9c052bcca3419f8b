package node

import (
	"errors"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/gue"
	"github.com/carom-dpr/carom/dpr/ipip"
)

// tunnels are the uplinks of all methods.
type tunnels struct {
	gue     *gue.Uplink
	port    uint16       // of GUE at hosts that receive by IP in IP: what is no packet goes there
	ipip    *ipip.Uplink // nil where this host can not, or must not for its keys
	methods methodSwitch
}

// openIPIP opens raw sockets for IP in IP: to receive, if that is this host's method,
// and to send to peers whose method it is. With keys there is none: it has no tag.
func (l *linux) openIPIP(t *tunnels) (err error) {
	refused := errors.New("this host has keys, and IP in IP can not be authenticated")
	if len(l.cfg.Keys) == 0 {
		t.ipip, refused = ipip.Open(ipip.Config{Listen: []netip.Addr{l.cfg.Addr}, SendOnly: l.cfg.Method != IPIP})
		if refused != nil && (l.cfg.Method == IPIP || !errors.Is(refused, unix.EPERM)) {
			return refused
		}
	}
	if refused != nil {
		t.ipip = nil
	}
	warn := sync.OnceFunc(func() {
		l.cfg.Logger.Warn("peers that receive by IP in IP get no connections from this host", "err", refused)
	})
	l.host.Reaches = func(tunnel netip.AddrPort) bool {
		reaches := t.ipip != nil || MethodOf(tunnel) != IPIP
		if !reaches {
			warn()
		}
		return reaches
	}
	return nil
}

// join makes the tunnels' queues the host's uplinks. Without IP in IP they are those
// of GUE themselves.
func (l *linux) join(t *tunnels) {
	for _, q := range t.gue.Queues {
		l.host.Uplinks = append(l.host.Uplinks, q)
	}
	if t.ipip == nil {
		return
	}
	for i, q := range t.gue.Queues {
		l.host.Uplinks[i] = &uplink{Device: q, gue: q, ipip: t.ipip, methods: &t.methods}
	}
	for _, q := range t.ipip.Queues {
		l.host.Uplinks = append(l.host.Uplinks, &uplink{Device: q, gue: t.gue.Queues[0], ipip: t.ipip, methods: &t.methods})
	}
}

// mtu returns the length of the longest packet that fits the tunnel to a peer.
func (t *tunnels) mtu(to netip.AddrPort) (int, error) {
	if MethodOf(to) == IPIP && t.ipip != nil {
		return t.ipip.MTU(to.Addr())
	}
	return t.gue.MTU(to.Addr())
}

// routeMTU returns the length of the longest packet that the path to an address carries
// without a tunnel.
func (t *tunnels) routeMTU(to netip.Addr) (int, error) {
	mtu, err := t.gue.MTU(to)
	if err != nil {
		return 0, err
	}
	return min(mtu+t.gue.Overhead(to), dpr.MaxPacket), nil
}

// setPeers tells each tunnel of all peers, since what one of them sends comes by this
// host's method, whatever its own is.
func (t *tunnels) setPeers(peers []Peer) error {
	t.methods.set(peers)
	byGUE, byIPIP := make([]gue.Peer, len(peers)), make([]ipip.Peer, len(peers))
	for i, p := range peers {
		byGUE[i] = gue.Peer{ID: p.ID, Addr: p.Addr, MTU: p.MTU}
		if MethodOf(p.Addr) == IPIP {
			byGUE[i].Addr = netip.AddrPortFrom(p.Addr.Addr(), t.port)
		}
		byIPIP[i] = ipip.Peer{ID: p.ID, Addr: p.Addr.Addr(), MTU: p.MTU}
	}
	err := t.gue.SetPeers(byGUE)
	if t.ipip == nil {
		return err
	}
	return errors.Join(err, t.ipip.SetPeers(byIPIP))
}

// stats adds up what all tunnels have counted.
func (t *tunnels) stats() TunnelStats {
	s := tunnelStats(t.gue.Stats())
	if t.ipip == nil {
		return s
	}
	more := t.ipip.Stats()
	s.Sent += more.Sent
	s.Received += more.Received
	for why := ipip.OK + 1; why < ipip.NumReasons; why++ {
		s.Dropped[why.String()] += more.Dropped[why]
	}
	return s
}

func (t *tunnels) close() error {
	if t.ipip == nil {
		return nil
	}
	return t.ipip.Close()
}
