package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/lb"
	"github.com/carom-dpr/carom/loadinfo"
	"github.com/carom-dpr/carom/loadinfo/health"
)

// A Server is a host that runs no node: its connections are translated (NAT), so that
// it needs nothing but its server. It says nothing of itself, so each node goes by the
// connections that it has given it, and by whether it answers.
type Server struct {
	// ID names the host, as a peer's does. No peer may have the same.
	ID string
	// Services are the endpoints that its servers listen on, by the names of
	// Config.Services: one of IPv4, one of IPv6, or both. Connections of other services
	// and families it does not get.
	Services map[string][]netip.AddrPort
	// Weight is the host's capacity relative to its peers. The default is 100; a
	// negative one means no new connections.
	Weight int
	// Check returns what asks one of its endpoints whether it answers, nil to believe
	// that it does. The default is to connect, by the kernel of this process, for TCP
	// services; those of UDP are believed. A host of which any endpoint of a service does
	// not answer gets no new connections of it.
	//
	// Check is called when the node starts and after each Reconfigure. What it returns
	// is called once a second, with half a second to answer; not twice at once for one
	// endpoint, but for several endpoints at the same time. See health.Service for how
	// many failures count.
	Check func(service string, at netip.AddrPort) health.Check
}

const defaultServerWeight = 100

// cloneServers copies the servers: what the caller has is his to change.
func cloneServers(list []Server) []Server {
	list = slices.Clone(list)
	for i := range list {
		list[i].Services = maps.Clone(list[i].Services)
		for name, at := range list[i].Services {
			list[i].Services[name] = slices.Clone(at)
		}
	}
	return list
}

// weight is that of snapshots.
func (s *Server) weight() uint16 {
	switch {
	case s.Weight == 0:
		return defaultServerWeight
	case s.Weight < 0:
		return 0
	}
	return uint16(s.Weight)
}

// serverCheck names an endpoint whose health is checked, in the log, too.
func serverCheck(id, service string, at netip.AddrPort) string {
	return fmt.Sprintf("%s at %s %v", service, id, at)
}

// checks returns the checks of a server's endpoints.
func (s *Server) checks(services []Service) (list []health.Service) {
	for _, service := range services {
		for _, at := range s.Services[service.Name] {
			check := health.TCP(at.String())
			if s.Check != nil {
				check = s.Check(service.Name, at)
			}
			if s.Check != nil && check != nil || s.Check == nil && service.Proto == dpr.TCP {
				list = append(list, health.Service{Name: serverCheck(s.ID, service.Name, at), Check: check})
			}
		}
	}
	return list
}

// watchServers keeps connections away from plain servers that do not answer.
func (n *Node) watchServers(ctx context.Context) error {
	for ctx.Err() == nil {
		setup := n.current.Load()
		checker := health.Checker{Report: n.heardOf, Logger: n.cfg.Logger}
		for i := range setup.Servers {
			checker.Services = append(checker.Services, setup.Servers[i].checks(setup.Services)...)
		}
		n.forgetChecks(checker.Services)
		working, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- checker.Run(working) }()
		select {
		case <-ctx.Done():
		case <-n.serversChanged:
		}
		stop()
		if err := <-ended; err != nil {
			return err
		}
	}
	return nil
}

// heardOf notes whether an endpoint of a plain server answers.
func (n *Node) heardOf(check string, answers bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.answering[check] = time.Time{}
	if answers {
		n.answering[check] = time.Now()
	}
}

// forgetChecks forgets all endpoints but those that are checked.
func (n *Node) forgetChecks(checked []health.Service) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name := range n.answering {
		if !slices.ContainsFunc(checked, func(s health.Service) bool { return s.Name == name }) {
			delete(n.answering, name)
		}
	}
	for _, s := range checked {
		if _, known := n.answering[s.Name]; !known {
			n.answering[s.Name] = time.Time{}
		}
	}
}

// answersSince returns when all endpoints of the server for the service began to
// answer, as far as is known; ok is false if one does not.
func (n *Node) answersSince(s *Server, service string) (since time.Time, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, at := range s.Services[service] {
		from, checked := n.answering[serverCheck(s.ID, service, at)]
		if checked && from.IsZero() {
			return since, false
		}
		if from.After(since) {
			since = from
		}
	}
	return since, true
}

// addServers adds the plain servers of the service to a snapshot. Their loads are those
// that this host has given them.
func (n *Node) addServers(snap *lb.Snapshot, service string, now time.Time) {
	servers := n.current.Load().Servers
	for i := range servers {
		s := &servers[i]
		same := func(h lb.Host) bool { return h.ID == s.ID }
		if len(s.Services[service]) == 0 || slices.ContainsFunc(snap.Hosts, same) {
			continue
		}
		live := n.engine.Live(s.ID, service)
		h := lb.Host{
			ID: s.ID, Weight: s.weight(), Live: live, LiveThen: live.Load(),
			Conns: uint32(n.engine.Open(s.ID, service)), Load: lb.Resources{CPU: -1, Memory: -1, Disk: -1, Network: -1},
		}
		since, answers := n.answersSince(s, service)
		if !answers {
			h.Flags |= lb.Unhealthy
		} else if !since.IsZero() {
			h.Since = max(now.Sub(since), 1)
		}
		snap.Hosts = append(snap.Hosts, h)
	}
	slices.SortFunc(snap.Hosts, func(a, b lb.Host) int { return strings.Compare(a.ID, b.ID) })
	snap.Self = slices.IndexFunc(snap.Hosts, func(h lb.Host) bool { return h.Flags&lb.Local != 0 })
	snap.Members = lb.HashMembers(snap.Hosts)
}

// plain returns the servers that the engine is to know: those that are configured, and
// those that were and have connections; none of which a peer has the ID.
func (n *Node) plain(s *setup, peers map[string]loadinfo.Member) (list []Server) {
	for _, server := range slices.Concat(s.Servers, s.gone) {
		if _, taken := peers[server.ID]; !taken {
			list = append(list, server)
		}
	}
	return list
}

// goneServers returns the servers that go, or are gone, and have connections.
func (n *Node) goneServers(was *setup, next []Server) (gone []Server) {
	for _, s := range slices.Concat(was.Servers, was.gone) {
		stays := slices.ContainsFunc(next, func(o Server) bool { return o.ID == s.ID })
		if !stays && n.hasServer(s.ID) {
			gone = append(gone, s)
		}
	}
	return gone
}

func (n *Node) hasServer(id string) bool {
	for _, open := range n.engine.Stats().Open[id] {
		if open > 0 {
			return true
		}
	}
	return false
}

// proto returns the protocol of a service that is there or was.
func (s *setup) proto(service string) dpr.Proto {
	for _, known := range slices.Concat(s.Services, s.former) {
		if known.Name == service {
			return known.Proto
		}
	}
	return 0
}

// natServices are the ports at which plain servers answer this host.
func (s *setup) natServices() (list []dpr.Service) {
	first, last := s.NAT.Ports()
	for _, proto := range []dpr.Proto{dpr.TCP, dpr.UDP} {
		var addrs []netip.Addr
		for _, a := range s.NAT.Sources {
			if s.translates(proto, a.Unmap().Is4()) {
				addrs = append(addrs, a)
			}
		}
		if len(addrs) > 0 {
			list = append(list, dpr.Service{Proto: proto, Port: first, PortEnd: last, Addrs: addrs})
		}
	}
	return list
}

// translates reports whether any plain server has connections of the kind.
func (s *setup) translates(proto dpr.Proto, is4 bool) bool {
	for _, server := range slices.Concat(s.Servers, s.gone) {
		for _, service := range slices.Concat(s.Services, s.former) {
			for _, at := range server.Services[service.Name] {
				if service.Proto == proto && at.Addr().Unmap().Is4() == is4 {
					return true
				}
			}
		}
	}
	return false
}

// natSources are the addresses that connections to plain servers leave from, unless the
// configuration names others: the node's own, and of the other family the first that
// clients dial.
func (c *Config) natSources() []netip.Addr {
	list := []netip.Addr{c.Addr}
	for _, s := range c.Services {
		for _, a := range s.Addrs {
			if a.Unmap().Is4() != c.Addr.Unmap().Is4() {
				return append(list, a)
			}
		}
	}
	return list
}

func (c *Config) validateServers() error {
	for i := range c.Servers {
		if err := c.validateServer(i); err != nil {
			return fmt.Errorf("Servers[%d] %q: %w", i, c.Servers[i].ID, err)
		}
	}
	return c.validateNAT()
}

// canTranslate reports why the host can have no plain servers, nil if it can.
func (c *Config) canTranslate(h *Host) error {
	if len(c.Servers) > 0 && h.Replies == nil {
		return errors.New("node: Servers: this host sends no packets of its own: give it Host.Replies, or no Servers")
	}
	return nil
}

// validateNAT refuses ports for plain servers that something else has.
func (c *Config) validateNAT() error {
	first, last := c.NAT.Ports()
	within := func(first2, last2 uint16) bool { return len(c.Servers) > 0 && first2 <= last && last2 >= first }
	taken := func(by string) error {
		return fmt.Errorf("NAT: connections to Servers leave from ports %d to %d, which are %s's, too: give others", first, last, by)
	}
	switch {
	case within(c.TunnelPort, c.TunnelPort):
		return taken("TunnelPort")
	case within(c.ReportPort, c.ReportPort):
		return taken("ReportPort")
	}
	for _, s := range c.Services {
		own := func(a netip.Addr) bool { return slices.Contains(c.NAT.Sources, a) }
		if within(s.Port, max(s.Port, s.PortEnd)) && slices.ContainsFunc(s.Addrs, own) {
			return taken(fmt.Sprintf("service %q", s.Name))
		}
	}
	return nil
}

func (c *Config) validateServer(i int) error {
	s := &c.Servers[i]
	switch {
	case s.ID == "" || len(s.ID) > loadinfo.MaxID:
		return fmt.Errorf("ID: give 1 to %d bytes", loadinfo.MaxID)
	case s.ID == c.ID:
		return errors.New("ID is this host's own: give another")
	case slices.ContainsFunc(c.Servers[:i], func(o Server) bool { return o.ID == s.ID }):
		return errors.New("ID is there twice: give each server its own")
	case s.Weight > maxWeight:
		return fmt.Errorf("Weight %d: give at most %d", s.Weight, maxWeight)
	case len(s.Services) == 0:
		return errors.New("Services is empty: give the endpoints of at least one service")
	}
	for name, list := range s.Services {
		if err := c.validateEndpoints(name, list); err != nil {
			return fmt.Errorf("service %q: %w", name, err)
		}
		for _, o := range c.Servers[:i] {
			if at := shared(list, o.Services[name]); at.IsValid() {
				return fmt.Errorf("service %q: %v is an endpoint of %q, too, and would get the shares of both: leave one out",
					name, at, o.ID)
			}
		}
	}
	return nil
}

// shared returns an endpoint that both lists have, or the zero one.
func shared(a, b []netip.AddrPort) (at netip.AddrPort) {
	for _, x := range a {
		for _, y := range b {
			if x.Addr().Unmap() == y.Addr().Unmap() && x.Port() == y.Port() {
				return x
			}
		}
	}
	return at
}

func (c *Config) validateEndpoints(name string, list []netip.AddrPort) error {
	if !slices.ContainsFunc(c.Services, func(s Service) bool { return s.Name == name }) {
		return errors.New("is none of Services: give the name of one")
	}
	if len(list) == 0 {
		return errors.New("has no endpoint: give an address and a port")
	}
	own := append(c.dialled(), c.Addr)
	for i, at := range list {
		is4 := at.Addr().Unmap().Is4()
		switch {
		case !unicast(at.Addr()) || at.Addr().IsLoopback() || at.Port() == 0:
			return fmt.Errorf("%v: give the unicast address and the port of its server", at)
		case slices.Contains(own, at.Addr().Unmap()):
			return fmt.Errorf("%v is this host's own address: it needs no entry", at)
		case !slices.ContainsFunc(c.NAT.Sources, func(a netip.Addr) bool { return a.Unmap().Is4() == is4 }):
			return fmt.Errorf("%v: this host has no address of its family to connect from: give one to a service in Addrs", at)
		case slices.ContainsFunc(list[:i], func(o netip.AddrPort) bool { return o.Addr().Unmap().Is4() == is4 }):
			return fmt.Errorf("%v: there is another of its family: give one of each", at)
		}
	}
	return nil
}

// ServerStatus is the state of a plain server, as this host sees it.
type ServerStatus struct {
	// ID is the host's.
	ID string
	// Weight is its capacity.
	Weight uint16
	// Services is by name.
	Services map[string]ServerService
}

// ServerService is what a plain server has of one service.
type ServerService struct {
	// Proto is the service's protocol.
	Proto dpr.Proto
	// Endpoints are those of its server.
	Endpoints []netip.AddrPort
	// Healthy says that they answer.
	Healthy bool
	// Conns is the number of connections that this host has given it.
	Conns int
}

// serverStatus returns the state of all plain servers, those that are gone but for
// their connections among them.
func (n *Node) serverStatus() (list []ServerStatus) {
	current := n.current.Load()
	for _, s := range n.plain(current, nil) {
		status := ServerStatus{ID: s.ID, Weight: s.weight(), Services: make(map[string]ServerService)}
		if slices.ContainsFunc(current.gone, func(o Server) bool { return o.ID == s.ID }) {
			status.Weight = 0
		}
		for name, at := range s.Services {
			_, answers := n.answersSince(&s, name)
			status.Services[name] = ServerService{Proto: current.proto(name), Endpoints: at, Healthy: answers, Conns: n.engine.Open(s.ID, name)}
		}
		list = append(list, status)
	}
	return list
}
