package node

import (
	"fmt"
	"slices"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/hostnet"
	"github.com/carom-dpr/carom/loadinfo/sockmeter"
)

// endpoints are those that the node is opened with.
func (l *linux) endpoints() []dpr.Service { return (&setup{Config: l.cfg}).captured() }

// captured returns the services in the form that the capture of packets needs.
func captured(services []dpr.Service) []hostnet.Service {
	list := make([]hostnet.Service, len(services))
	for i, s := range services {
		list[i] = hostnet.Service{Protocol: uint8(s.Proto), Port: s.Port, PortEnd: s.PortEnd, Addrs: s.Addrs, Reply: s.Reply}
	}
	return list
}

// metered returns the TCP services whose sockets are counted, each once: with its
// current ports, or with former ones if it has no others and nobody else has them.
func metered(services []dpr.Service) (list []sockmeter.Service) {
	for _, s := range services { // current ones come first
		m := sockmeter.Service{Name: s.Name, Port: s.Port, PortEnd: max(s.Port, s.PortEnd)}
		clash := func(o sockmeter.Service) bool {
			return o.Name == m.Name || o.Port <= m.PortEnd && m.Port <= o.PortEnd
		}
		if s.Name != "" && s.Proto == dpr.TCP && !(s.Former && slices.ContainsFunc(list, clash)) {
			list = append(list, m)
		}
	}
	return list
}

// checkInterfaces refuses addresses whose packets nobody would capture: the
// interfaces are chosen when the node is opened.
func (l *linux) checkInterfaces(services []dpr.Service) error {
	if len(l.cfg.Interfaces) > 0 {
		return nil // as the operator says
	}
	have := make(map[int]bool)
	for _, s := range l.endpoints() {
		for _, a := range s.Addrs {
			if ifi, err := interfaceOf("", a); err == nil {
				have[ifi.Index] = true
			}
		}
	}
	for _, s := range services {
		for _, a := range s.Addrs {
			ifi, err := interfaceOf("", a)
			switch {
			case s.Former:
			case err != nil:
				return fmt.Errorf("service %q: %w", s.Name, err)
			case !have[ifi.Index]:
				return fmt.Errorf("service %q: Addr %v is on %s, where nothing is captured: restart, or name %s in Interfaces",
					s.Name, a, ifi.Name, ifi.Name)
			}
		}
	}
	return nil
}
