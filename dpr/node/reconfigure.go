package node

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/loadinfo"
)

// Reconfigure changes the configuration of a node, usually while it runs, and
// breaks no connection; after Run has ended it is an error. When it returns, new connections follow the new
// configuration. On an error the old one stays in force as a whole.
//
// Services and Servers can come, go and change, as can Report, Keys, Weight, AliasPrefixes and
// Timeouts. All else must be as it was, or the error names the field; Logger is not
// looked at, nor Resources. A state that Drain has set stays. What Transport has
// made goes on as it is, with the new Keys.
//
// Servers that go keep their connections until these have ended.
//
// A service is known by its name. One that goes, or gives up ports or addresses,
// stays captured until its last connection has ended; new ones to what was given up
// are not redirected. A service cannot take over endpoints of another that peers
// still serve connections of, nor change its protocol: that would break connections.
//
// Keys change in steps, each on all hosts before the next: add the new key behind
// the old one, put it first, remove the old one. Consistent policies go by a seed
// that is derived from the first key when a node is opened: hosts opened with
// different ones agree on fewer choices until they are restarted.
//
// On Linux, a node that Open has made must be reconfigured in the network namespace
// that it was opened in.
func (n *Node) Reconfigure(cfg Config) error {
	cfg.Logger = n.cfg.Logger
	if len(cfg.NAT.Sources) == 0 {
		cfg.NAT.Sources = n.cfg.NAT.Sources
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	n.wiring.Lock()
	defer n.wiring.Unlock()
	if n.ended {
		return errors.New("node: Reconfigure after Run has ended: make another node")
	}
	old := n.current.Load()
	if err := errors.Join(cfg.follows(&old.Config), cfg.canTranslate(&n.host)); err != nil {
		return err
	}
	next, err := n.successor(old, cfg)
	if err != nil {
		return err
	}
	return n.replace(old, next)
}

// Validate reports what is wrong with the configuration, as far as that can be known
// without opening a node: not whether ports are free or interfaces exist.
func (c Config) Validate() error {
	c, err := c.withDefaults()
	if err != nil {
		return err
	}
	switch {
	case len(c.Report) == 0 && c.Transport == nil:
		return errors.New("node: Report is empty: give the peers' addresses and report ports, or a broadcast address and port")
	case len(c.Report) > 0 && c.Transport != nil:
		return errors.New("node: Report is for broadcast, and Transport is in its place: give one of both")
	}
	if _, err := c.keyring(); err != nil {
		return err
	}
	s := &setup{Config: c}
	if err := (dpr.Config{Services: s.endpoints(nil), MaxFlows: c.MaxFlows, Timeouts: c.Timeouts, NAT: c.NAT}).Validate(); err != nil {
		return err
	}
	return loadinfo.NewBoard(loadinfo.BoardConfig{}).SetSelf(s.self())
}

// follows reports why a running node cannot change from the old configuration to
// this one, nil if it can.
func (c *Config) follows(old *Config) error {
	for _, f := range []struct {
		name     string
		was, now any
	}{
		{"ID", old.ID, c.ID},
		{"Addr", old.Addr, c.Addr},
		{"TunnelPort", old.TunnelPort, c.TunnelPort},
		{"Method", old.Method, c.Method},
		{"ReportPort", old.ReportPort, c.ReportPort},
		{"Transport", old.carrier(), c.carrier()},
		{"Interface", old.Interface, c.Interface},
		{"Interfaces", old.Interfaces, c.Interfaces},
		{"Period", old.Period, c.Period},
		{"NoPathCheck", old.NoPathCheck, c.NoPathCheck},
		{"Queues", old.Queues, c.Queues},
		{"MaxFlows", old.MaxFlows, c.MaxFlows},
		{"SYNRate", old.SYNRate, c.SYNRate},
		{"NAT", natPorts(old.NAT), natPorts(c.NAT)},
		{"NAT.Sources", old.NAT.Sources, c.NAT.Sources},
		{"CaptureByRouting", old.CaptureByRouting, c.CaptureByRouting},
	} {
		if !reflect.DeepEqual(f.was, f.now) {
			return fmt.Errorf("node: %s cannot change from %v to %v while the node runs: restart it", f.name, f.was, f.now)
		}
	}
	return c.keysFollow(old)
}

// natPorts writes a range of ports.
func natPorts(n dpr.NAT) string {
	first, last := n.Ports()
	return fmt.Sprintf("%d-%d", first, last)
}

// carrier says in words what carries reports.
func (c *Config) carrier() string {
	if c.Transport != nil {
		return "one of its own"
	}
	return "broadcast"
}

// successor returns the setup that follows old when cfg comes into force.
func (n *Node) successor(old *setup, cfg Config) (*setup, error) {
	next := &setup{Config: cfg}
	n.engine.Tick(time.Now()) // its counts of connections are then right
	next.gone = n.goneServers(old, cfg.Servers)
	for _, was := range slices.Concat(old.former, old.Services) {
		for i := range cfg.Services {
			if err := n.succeeds(&was, &cfg.Services[i]); err != nil {
				return nil, err
			}
		}
		rest := without(was.endpoints(nil), next.endpoints(nil))
		if len(rest) > 0 && n.busy(was.Name) {
			next.former = append(next.former, was)
		}
	}
	return next, nil
}

// succeeds reports why a service cannot be configured while another one has
// connections, nil if it can.
func (n *Node) succeeds(was, is *Service) error {
	if was.Name == is.Name && was.Proto != is.Proto {
		return fmt.Errorf("node: service %q cannot change from %v to %v while the node runs: give it another name, or restart",
			is.Name, was.Proto, is.Proto)
	}
	shared := overlap(was, is)
	if was.Name == is.Name || shared == 0 || n.handedOver(was.Name) == 0 {
		return nil
	}
	return fmt.Errorf("node: service %q would take %v port %d from %q, of which peers serve %d connections:"+
		" keep the name, or give the port up first and wait until they have ended",
		is.Name, is.Proto, shared, was.Name, n.handedOver(was.Name))
}

// overlap returns a port that both services have at the same address, or 0.
func overlap(a, b *Service) uint16 {
	same := func(x netip.Addr) bool { return slices.Contains(b.Addrs, x) }
	first, last := max(a.Port, b.Port), min(max(a.Port, a.PortEnd), max(b.Port, b.PortEnd))
	if a.Proto != b.Proto || first > last || !slices.ContainsFunc(a.Addrs, same) {
		return 0
	}
	return first
}

// busy reports whether the service has connections, served here or by peers.
func (n *Node) busy(service string) bool { return n.conns(service) > 0 || n.handedOver(service) > 0 }

// conns returns the number of the service's connections that this host serves.
func (n *Node) conns(service string) int {
	if c := n.engine.Serving(service); c != nil {
		return int(c.Load())
	}
	return 0
}

// handedOver returns the number of the service's connections that peers serve.
func (n *Node) handedOver(service string) (open int) {
	for _, services := range n.engine.Stats().Open {
		open += services[service]
	}
	return open
}

// replace makes all parts follow the next setup, or the old one if any refuses.
func (n *Node) replace(old, next *setup) error {
	if err := n.apply(next); err != nil {
		return errors.Join(err, n.apply(old))
	}
	n.current.Store(next)
	signal(n.serversChanged)
	n.choose(time.Now())
	return nil
}

// apply makes all parts follow a setup. It may be repeated. What can fail comes
// before what peers see of it.
func (n *Node) apply(s *setup) error {
	if err := n.setServices(s.captured()); err != nil {
		return err
	}
	if err := n.wire(s, n.peers); err != nil {
		return err
	}
	if err := n.countSockets(s); err != nil {
		return err
	}
	if err := n.engine.SetTimeouts(s.Timeouts); err != nil {
		return err
	}
	if err := n.setKeys(s); err != nil {
		return err
	}
	if b, ok := n.reports.(*loadinfo.Broadcaster); ok && s.Transport == nil {
		if err := b.SetTargets(s.targets()); err != nil {
			return err
		}
	}
	return n.introduce(s)
}

// setServices tells the host, unless it knows already, whose packets to bring.
func (n *Node) setServices(list []dpr.Service) error {
	if n.host.SetServices == nil || reflect.DeepEqual(list, n.served) {
		return nil
	}
	n.served = nil // unknown, if this fails
	if err := n.host.SetServices(list); err != nil {
		return fmt.Errorf("node: Services: %w", err)
	}
	n.served = list
	return nil
}

func (n *Node) setKeys(s *setup) error {
	ring, err := s.keyring()
	if err != nil {
		return err
	}
	if n.host.SetKeys != nil {
		if err := n.host.SetKeys(s.Keys); err != nil {
			return fmt.Errorf("node: Keys: %w", err)
		}
	}
	n.reports.SetKeys(ring)
	return nil
}

// forget drops former services and servers whose last connection has ended.
func (n *Node) forget() {
	old := n.current.Load()
	if len(old.former) == 0 && len(old.gone) == 0 {
		return
	}
	n.engine.Tick(time.Now()) // its counts of connections are then right
	next := &setup{Config: old.Config, gone: n.goneServers(old, old.Servers)}
	for _, was := range old.former {
		if n.busy(was.Name) {
			next.former = append(next.former, was)
		}
	}
	if len(next.former) == len(old.former) && len(next.gone) == len(old.gone) {
		return
	}
	if err := n.replace(old, next); err != nil {
		n.cfg.Logger.Error("cannot give up former services and servers", "err", err)
	}
}
