package node

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"time"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/confirm"
	"github.com/carom-dpr/carom/dpr/hostnet"
	"github.com/carom-dpr/carom/internal/beat"
	"github.com/carom-dpr/carom/loadinfo"
)

// State returns what this host says of itself: joining, up or draining.
func (n *Node) State() loadinfo.State {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.state
}

// setState changes the state from one to another; any other state stays.
func (n *Node) setState(from, to loadinfo.State) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state == from {
		n.state = to
		n.board.SetState(to)
	}
}

// Drain keeps new connections away from this host: peers hand it none, and it
// hands those that dial it to peers. Connections that it has go on. Undrain takes
// it back.
func (n *Node) Drain() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state = loadinfo.Draining
	n.board.SetState(n.state)
}

// Undrain ends what Drain began.
func (n *Node) Undrain() { n.setState(loadinfo.Draining, loadinfo.Up) }

// A Status is the state of a node for programs and people.
type Status struct {
	// ID is this host's.
	ID string
	// State is what this host says of itself: joining, up or draining.
	State loadinfo.State
	// Members are all hosts that this one knows of, itself included.
	Members []loadinfo.Member
	// Servers are the hosts that run no node.
	Servers []ServerStatus
	// Services are this host's, by name.
	Services map[string]ServiceStatus
	// Engine counts packets and flows.
	Engine dpr.Stats
	// Reports counts load reports.
	Reports loadinfo.Stats
	// Confirm counts what peers were asked about the connections that they serve.
	Confirm confirm.Stats
	// Aborted counts connections that this host served and ended, since the peer that
	// they were dialled at was dead.
	Aborted uint64
	// Capture counts the packets that came to this host, before the engine. It is zero
	// where the host does not count them, and once Run has ended.
	Capture hostnet.Stats
	// Tunnel counts the packets between the hosts. It is zero where the host does not
	// count them.
	Tunnel TunnelStats
	// MTU is the length of the longest packet that fits the tunnel to each peer, in
	// bytes, by the peer's ID.
	MTU map[string]int
	// Paths are those to the peers that were probed, by the peer's ID; see
	// Config.NoPathCheck.
	Paths map[string][]Path
}

// TunnelStats counts packets as they were before they went into the tunnel; a
// super-frame counts as its segments.
type TunnelStats struct {
	// Sent and Received count the packets that passed.
	Sent, Received uint64
	// ControlsSent and ControlsReceived count the messages between the nodes that are
	// no packets: questions about connections, and their answers.
	ControlsSent, ControlsReceived uint64
	// Dropped counts the packets and messages that were dropped, by reason.
	Dropped map[string]uint64
}

// ServiceStatus is the state of one service of this host.
type ServiceStatus struct {
	// Conns is the number of established connections that this host serves.
	Conns int
	// Healthy says that the server listens.
	Healthy bool
}

// Status returns the state as it is now.
func (n *Node) Status() Status {
	s := Status{
		ID:       n.cfg.ID,
		State:    n.State(),
		Members:  n.board.Members(time.Now()),
		Services: make(map[string]ServiceStatus),
		Engine:   n.engine.Stats(),
		Reports:  n.reports.Stats(),
		Confirm:  n.confirmation(),
		Aborted:  n.aborted.Load(),
	}
	s.Paths = n.prober.all()
	s.Servers = n.serverStatus()
	n.host.count(&s)
	n.mu.Lock()
	defer n.mu.Unlock()
	s.MTU = maps.Clone(n.mtus)
	for _, service := range n.current.Load().Services {
		s.Services[service.Name] = ServiceStatus{
			Conns:   n.conns(service.Name),
			Healthy: n.healthyNow(service.Name),
		}
	}
	return s
}

// Board returns the board that the node keeps, for those who answer questions about
// the cluster, such as an rrdns.Server. What this host says of itself is the node's to
// set.
func (n *Node) Board() *loadinfo.Board { return n.board }

// Engine returns the node's engine, for its flows and counters.
func (n *Node) Engine() *dpr.Engine { return n.engine }

func (n *Node) healthyNow(service string) bool {
	healthy, known := n.healthy[service]
	return healthy || !known
}

// healthEvery is how often a node looks whether its servers listen: soon enough
// that few connections meet a dead server, seldom enough to cost nothing.
const healthEvery = time.Second

// watchHealth keeps peers' connections away from services whose server does not
// listen.
func (n *Node) watchHealth(ctx context.Context) error {
	for {
		services := n.current.Load().Services
		for i := range services {
			n.checkHealth(&services[i])
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(beat.Wait(time.Now(), healthEvery)):
		}
	}
}

func (n *Node) checkHealth(s *Service) {
	if n.host.Listening == nil || s.Proto != dpr.TCP {
		return
	}
	healthy, err := n.listening(s)
	n.mu.Lock()
	defer n.mu.Unlock()
	changed := n.healthyNow(s.Name) != healthy
	n.healthy[s.Name] = healthy
	if !changed {
		return // and who follows the board need not wake
	}
	n.board.SetHealthy(s.Name, healthy)
	switch {
	case healthy:
		n.cfg.Logger.Info("a server listens again", "service", s.Name)
	case err != nil:
		n.cfg.Logger.Warn("no server listens: peers hand this host no connections", "service", s.Name, "err", err)
	default:
		n.cfg.Logger.Warn("no server listens: peers hand this host no connections", "service", s.Name)
	}
}

// listening reports whether a server listens on any port of the service.
func (n *Node) listening(s *Service) (bool, error) {
	for port := int(s.Port); port <= max(int(s.Port), int(s.PortEnd)); port++ {
		ok, err := n.host.Listening(s.Addrs[0], uint16(port))
		if err != nil {
			return false, fmt.Errorf("cannot see whether a server listens on %v: %w",
				netip.AddrPortFrom(s.Addrs[0], uint16(port)), err)
		}
		if ok {
			return true, nil
		}
	}
	return false, nil
}
