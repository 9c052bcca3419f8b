package node

import (
	"net/netip"
	"slices"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/loadinfo"
)

// A setup is a configuration with its defaults, and what is left of earlier ones.
// It is immutable.
type setup struct {
	Config
	// former are services as they were configured before, with connections that
	// must go on. Some of their endpoints may be those of current services.
	former []Service
	// gone are servers that were configured before, with connections that must go on.
	gone []Server
}

// endpoints returns all endpoints in the form that the engine needs: current ones
// at the addresses of this host and the given ones of peers, and former ones as far
// as they are not current.
func (s *setup) endpoints(peers []netip.Addr) []dpr.Service {
	list := make([]dpr.Service, 0, len(s.Services)+len(s.former))
	for i := range s.Services {
		list = append(list, s.Services[i].endpoints(peers))
	}
	for i := range s.former {
		list = append(list, without(s.former[i].endpoints(peers), list)...)
	}
	return list
}

// captured returns the endpoints whose packets the host is to bring.
func (s *setup) captured() []dpr.Service { return append(s.endpoints(nil), s.natServices()...) }

func (s *Service) endpoints(peers []netip.Addr) dpr.Service {
	return dpr.Service{
		Name: s.Name, Proto: s.Proto, Port: s.Port, PortEnd: s.PortEnd,
		Addrs: slices.Concat(s.Addrs, peers), Reply: s.Reply,
	}
}

// without returns the endpoints of s that none of the list has, as former ones.
func without(s dpr.Service, list []dpr.Service) (rest []dpr.Service) {
	for _, a := range s.Addrs {
		ranges := [][2]uint16{{s.Port, max(s.Port, s.PortEnd)}}
		for _, o := range list {
			if o.Proto == s.Proto && slices.ContainsFunc(o.Addrs, func(b netip.Addr) bool { return a.Unmap() == b.Unmap() }) {
				ranges = cut(ranges, o.Port, max(o.Port, o.PortEnd))
			}
		}
		for _, r := range ranges {
			rest = addEndpoint(rest, dpr.Service{
				Name: s.Name, Proto: s.Proto, Port: r[0], PortEnd: r[1], Addrs: []netip.Addr{a}, Former: true, Reply: s.Reply,
			})
		}
	}
	return rest
}

// cut takes the ports from first to last out of the ranges.
func cut(ranges [][2]uint16, first, last uint16) (rest [][2]uint16) {
	for _, r := range ranges {
		if last < r[0] || r[1] < first {
			rest = append(rest, r)
			continue
		}
		if r[0] < first {
			rest = append(rest, [2]uint16{r[0], first - 1})
		}
		if last < r[1] {
			rest = append(rest, [2]uint16{last + 1, r[1]})
		}
	}
	return rest
}

// addEndpoint adds s to the list: its address to those of the same ports, if any.
func addEndpoint(list []dpr.Service, s dpr.Service) []dpr.Service {
	for i := range list {
		if list[i].Port == s.Port && list[i].PortEnd == s.PortEnd {
			list[i].Addrs = append(list[i].Addrs, s.Addrs...)
			return list
		}
	}
	return append(list, s)
}

// dialled returns the addresses at which this host is dialled, each once. Peers must
// answer from former ones, too, while connections to those go on.
func (s *setup) dialled() []netip.Addr {
	list := s.Config.dialled()
	for _, service := range s.former {
		list = append(list, service.Addrs...)
	}
	return unique(list)
}

// mayAlias reports whether this host may answer from the address of a peer.
func (s *setup) mayAlias(a netip.Addr) bool {
	return len(s.AliasPrefixes) == 0 ||
		slices.ContainsFunc(s.AliasPrefixes, func(p netip.Prefix) bool { return p.Contains(a.Unmap()) })
}

// aliasesOf returns the addresses at which a peer is dialled and from which this host
// may answer, which are none of its own.
func (s *setup) aliasesOf(peer loadinfo.Member) (list []netip.Addr) {
	own := s.dialled()
	for _, a := range peer.Dialled {
		if s.mayAlias(a) && !slices.Contains(own, a) {
			list = append(list, a)
		}
	}
	return list
}

// self is what this host says of itself, but for what changes by itself.
func (s *setup) self() loadinfo.Self {
	self := loadinfo.Self{
		ID:      s.ID,
		Node:    s.tunnel(),
		Dialled: s.dialled(),
		Weight:  s.Weight,
	}
	for _, service := range s.Services {
		self.Services = append(self.Services, loadinfo.OwnService{Name: service.Name, Weight: service.Weight, Requests: service.Requests})
	}
	return self
}
