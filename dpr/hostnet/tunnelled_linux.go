package hostnet

import (
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr"
)

// Answers of services whose Reply is ReplyTunnelled go to the engine: the rules
//
//	iif lo from <alias> ipproto tcp sport P lookup <fourth table>
//
// come before those for answers that leave directly, and the only route of that table
// leads to the TUN. Only what this host sends itself comes from lo. ICMP errors about
// datagrams that no server wants have no ports, and take the same way.

// tunnelTable is the routing table whose only route leads answers to the TUN.
func (n *Net) tunnelTable() int { return n.cfg.Table + 3 }

// tunnelled returns the services whose answers are tunnelled.
func (n *Net) tunnelled() []Service {
	return slices.DeleteFunc(slices.Clone(n.services), func(s Service) bool { return s.Reply != dpr.ReplyTunnelled })
}

// tunnelRules returns the rules for answers from the aliases.
func (n *Net) tunnelRules(family int, aliases []netip.Addr) (list []netlink.Rule) {
	services := n.tunnelled()
	if len(services) == 0 {
		return nil
	}
	add := func(src netip.Addr, proto int, ports *netlink.RulePortRange) {
		r := netlink.NewRule()
		r.Family, r.Priority, r.Table, r.Protocol = family, n.cfg.RulePreference, n.tunnelTable(), protocol
		r.IifName, r.Src, r.IPProto, r.Sport = "lo", hostNet(src), proto, ports
		if !slices.ContainsFunc(list, func(o netlink.Rule) bool { return sameRule(o, *r) }) {
			list = append(list, *r)
		}
	}
	icmp := unix.IPPROTO_ICMP
	if family == netlink.FAMILY_V6 {
		icmp = unix.IPPROTO_ICMPV6
	}
	for _, a := range aliases {
		for _, s := range services {
			add(a, int(s.Protocol), netlink.NewRulePortRange(s.Port, s.lastPort()))
		}
		add(a, icmp, nil)
	}
	return list
}

// syncTunnelled keeps the table for tunnelled answers. The server's kernel makes what
// fits the tunnel from the narrowest route; the engine tells it of paths that are
// narrower still.
func (n *Net) syncTunnelled(family, headers int, wanted bool) error {
	if !wanted || len(n.tunnelled()) == 0 {
		return n.syncRouteToTUN(family, n.tunnelTable(), nil)
	}
	mtu, err := n.tunnelMTU(family)
	if err != nil {
		return err
	}
	route := new(netlink.Route)
	if mtu > headers {
		route.MTU, route.AdvMSS = mtu, mtu-headers
	}
	return n.syncRouteToTUN(family, n.tunnelTable(), route)
}

// tunnelMTU returns the length of the longest packet that fits a tunnel by the narrowest
// route, in bytes, 0 if it is not known.
func (n *Net) tunnelMTU(family int) (int, error) {
	routes, err := n.mainRoutes(family)
	if err != nil {
		return 0, err
	}
	least := 0
	for _, r := range routes {
		if r.mtu > 0 && (least == 0 || r.mtu < least) {
			least = r.mtu
		}
	}
	least = max(least-n.cfg.Overhead, 0)
	if family == netlink.FAMILY_V6 && least > 0 {
		least = max(least, minMTU6) // a tunnel carries those in any case
	}
	return least, nil
}

// minMTU6 is what every link carries (RFC 8200, section 5), in bytes.
const minMTU6 = 1280
