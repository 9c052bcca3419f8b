package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/hostnet"
	"github.com/carom-dpr/carom/loadinfo"
)

// A Peer is what an uplink needs to know of another host.
type Peer struct {
	// ID is the engine's number for the peer.
	ID dpr.PeerID
	// Name is the host's ID in its cluster.
	Name string
	// Addr is where the peer's tunnel receives.
	Addr netip.AddrPort
	// MTU is the length of the longest packet that the tunnel to the peer carries, in
	// bytes.
	MTU int
}

// A Host is what a node needs of the machine that it runs on. Fields marked
// optional may be nil; without one of the others New returns an error that names it.
type Host struct {
	// Devices lead to the host's kernel, at least one. Uplinks lead to its peers; without
	// any the host can hand nothing over.
	Devices, Uplinks []dpr.Device
	// Replies sends packets that leave like the host's own; see dpr.Router. Optional.
	Replies dpr.Writer
	// OnTooBig says, before the node runs, who is told of packets of Replies that exceed
	// the MTU of their way, in bytes, and must not be fragmented. Optional.
	OnTooBig func(tell func(p *dpr.Packet, mtu int))
	// Reports is the socket for load reports; nil with Config.Transport.
	Reports loadinfo.PacketConn
	// TrackLocal says that the kernel's socket table does not keep packets of
	// local connections away from Devices; see dpr.Config.
	TrackLocal bool
	// MTU is the length of the longest packet that a tunnel carries, in bytes, if
	// PathMTU does not know better; 68 at least. The default is 1452, that of GUE over
	// IPv6 on Ethernet.
	MTU int
	// PathMTU returns the length of the longest packet that the tunnel to the address
	// of a peer carries at present, in bytes. It is called about twice a second for
	// each peer. Optional.
	PathMTU func(netip.AddrPort) (int, error)
	// RouteMTU is PathMTU without a tunnel, for Config.Servers. Optional: without it
	// their paths are believed to be Ethernet's.
	RouteMTU func(netip.Addr) (int, error)
	// Reaches reports whether there is a tunnel of the peer's method; see MethodOf.
	// Peers that are not reached get no connections. Optional: without it all are.
	Reaches func(netip.AddrPort) bool

	// Control sends a message to the peer's node, over the tunnel. Optional, like
	// TakeControl: without both, connections that peers serve are not confirmed.
	Control func(to dpr.PeerID, message []byte) error
	// TakeControl says, before the node runs, who takes the messages of peers, without
	// waiting and without keeping the bytes.
	TakeControl func(take func(from dpr.PeerID, message []byte))
	// Lives says what this host's sockets know of connections that peers have handed
	// over; see confirm.Config. Optional.
	Lives func(flows []dpr.Question, lives []dpr.Life) error
	// Abort ends the TCP connections of this host that were dialled at one of the
	// addresses, so that their clients are reset, and returns how many they were. It may
	// take a second for some ten thousand. It is called when a peer is dead, before SetAliases takes
	// its addresses away. Optional: without it connections that were dialled at that peer
	// are left to TCP's timeouts.
	Abort func([]netip.Addr) (int, error)

	// SetPeers tells the uplink whom it may send to and receive from.
	SetPeers func([]Peer) error
	// SetAliases says which addresses of peers the host is to answer from.
	SetAliases func([]netip.Addr) error
	// SetServices replaces the endpoints whose packets come to Devices: those of this
	// host, Former ones among them, and without a name the ports at which Config.Servers
	// answer. Optional: without it the host must bring those
	// of all services that Node.Reconfigure may add.
	SetServices func([]dpr.Service) error
	// SetKeys replaces the cluster's keys, from which those of the tunnel are derived.
	// Optional: without it the tunnel has none.
	SetKeys func([]loadinfo.Key) error
	// Sockets returns where the kernel counts the service's connections. Optional:
	// without it, count with Node.Wrap.
	Sockets func(service string) dpr.Sockets
	// Listening reports whether a server listens on the address and TCP port.
	// Optional.
	Listening func(netip.Addr, uint16) (bool, error)
	// Capture returns the counters of what brings packets to Devices, for Node.Status.
	// Optional.
	Capture func() (hostnet.Stats, error)
	// Tunnel returns the counters of Uplinks, for Node.Status. Optional.
	Tunnel func() TunnelStats
	// Answers are where TCP segments for dpr.ProbePort come to this host, a whole IP
	// packet for each Read, one of Answers for each family. Close wakes a Read.
	// Optional: without, paths to the peers are not probed.
	Answers []io.ReadCloser
	// Beat is told that the router works. Optional.
	Beat func(time.Time)
	// Run does what the host has to do meanwhile, until ctx is done. Optional.
	Run func(ctx context.Context) error
	// Unwire undoes what was changed on the host for the node. It is called before
	// the router stops. Optional.
	Unwire func() error
	// Close gives back all that the host holds but Devices, Uplinks and Reports,
	// which the node closes. Optional.
	Close func() error
}

// minTunnelMTU is what IPv4 guarantees, in bytes.
const minTunnelMTU = 68

// validate returns an error that names the field that is missing.
func (h *Host) validate(cfg *Config) error {
	switch {
	case len(h.Devices) == 0:
		return errors.New("node: Host.Devices is empty: give what leads to the kernel")
	case slices.Contains(h.Devices, nil):
		return fmt.Errorf("node: Host.Devices[%d] is nil: give a device", slices.Index(h.Devices, nil))
	case slices.Contains(h.Uplinks, nil):
		return fmt.Errorf("node: Host.Uplinks[%d] is nil: give a device", slices.Index(h.Uplinks, nil))
	case h.Reports == nil && cfg.Transport == nil:
		return errors.New("node: Host.Reports is nil: give the socket for reports, or Config.Transport")
	case h.MTU != 0 && (h.MTU < minTunnelMTU || h.MTU > dpr.MaxPacket):
		return fmt.Errorf("node: Host.MTU is %d: give %d to %d, or 0 for the default", h.MTU, minTunnelMTU, dpr.MaxPacket)
	case h.SetPeers == nil:
		return errors.New("node: Host.SetPeers is nil: give what tells the uplink of the peers")
	case h.SetAliases == nil:
		return errors.New("node: Host.SetAliases is nil: give what lets the host answer from addresses of peers")
	}
	return nil
}

func (h *Host) run(ctx context.Context) error {
	if h.Run == nil {
		return nil
	}
	return h.Run(ctx)
}

// count fills in what the host counts itself.
func (h *Host) count(s *Status) {
	if h.Capture != nil {
		s.Capture, _ = h.Capture() // the only error is that the host is unwired
	}
	if h.Tunnel != nil {
		s.Tunnel = h.Tunnel()
	}
}

func (h *Host) reaches(tunnel netip.AddrPort) bool { return h.Reaches == nil || h.Reaches(tunnel) }

func (h *Host) unwire() error {
	if h.Unwire == nil {
		return nil
	}
	return h.Unwire()
}

// close gives back what the host holds. Devices may have been closed before.
func (h *Host) close() error {
	for _, d := range append(slices.Clone(h.Devices), h.Uplinks...) {
		if d != nil { // what New refuses
			d.Close()
		}
	}
	if h.Reports != nil {
		h.Reports.Close()
	}
	answers := h.closeAnswers()
	if h.Close == nil {
		return answers
	}
	return errors.Join(answers, h.Close())
}
