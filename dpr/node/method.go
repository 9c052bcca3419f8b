package node

import (
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/carom-dpr/carom/dpr"
)

// A Method is how packets that are handed over travel between hosts. Each host chooses
// the one that it receives by, and its reports tell the others.
type Method uint8

// The methods.
const (
	// GUE is UDP, which the network spreads over paths and queues, and which can be
	// authenticated: see package dpr/gue.
	GUE Method = iota
	// IPIP is IP in IP, which adds 8 bytes less and can not be authenticated: see
	// package dpr/ipip.
	IPIP
)

// String returns the method's name in lower case.
func (m Method) String() string {
	if int(m) < len(methodNames) {
		return methodNames[m]
	}
	return fmt.Sprintf("method %d", uint8(m))
}

var methodNames = [...]string{"gue", "ipip"}

// ParseMethod returns the method of that name.
func ParseMethod(name string) (Method, error) {
	for m, s := range methodNames {
		if s == name {
			return Method(m), nil
		}
	}
	return 0, fmt.Errorf("method %q: give gue or ipip", name)
}

// MethodOf returns the method by which a host receives that reports this address of
// its tunnel: IP in IP has no ports, so its port is 0.
func MethodOf(tunnel netip.AddrPort) Method {
	if tunnel.Port() == 0 {
		return IPIP
	}
	return GUE
}

// tunnel is where peers reach this host's tunnel.
func (c *Config) tunnel() netip.AddrPort {
	if c.Method == IPIP {
		return netip.AddrPortFrom(c.Addr, 0)
	}
	return netip.AddrPortFrom(c.Addr, c.TunnelPort)
}

// A methodSwitch knows the method of each peer.
type methodSwitch struct {
	ipip atomic.Pointer[map[dpr.PeerID]bool] // nil if there is none
}

// set replaces the peers.
func (m *methodSwitch) set(peers []Peer) {
	by := make(map[dpr.PeerID]bool)
	for _, p := range peers {
		if MethodOf(p.Addr) == IPIP {
			by[p.ID] = true
		}
	}
	if len(by) == 0 {
		m.ipip.Store(nil)
	} else {
		m.ipip.Store(&by)
	}
}

// An uplink reads from one tunnel and writes to each peer's own.
type uplink struct {
	dpr.Device
	gue, ipip dpr.Writer
	methods   *methodSwitch
}

// Write hands each packet to the tunnel of its peer's method, neighbours together.
func (u *uplink) Write(pkts []dpr.Packet) (int, error) {
	by := u.methods.ipip.Load()
	if by == nil {
		return u.gue.Write(pkts)
	}
	sent := 0
	for len(pkts) > 0 {
		ipip := (*by)[pkts[0].Peer]
		n := 1
		for n < len(pkts) && (*by)[pkts[n].Peer] == ipip {
			n++
		}
		to := u.gue
		if ipip {
			to = u.ipip
		}
		k, err := to.Write(pkts[:n])
		sent += k
		if err != nil {
			return sent, err
		}
		pkts = pkts[n:]
	}
	return sent, nil
}
