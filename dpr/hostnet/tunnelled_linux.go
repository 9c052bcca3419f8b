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
//	iif lo from <alias> ipproto tcp lookup <fourth table>
//
// come before those for answers that leave directly, and the only route of that table
// leads to the TUN. Only what this host sends itself comes from lo. ICMP errors about
// packets that no server wants take the same way.
//
// They name no ports: when the kernel notes the MTU of a connection's path, it looks its
// route up without them (IPv4), and would note it for another one.

// tunnelTable is the routing table whose only route leads answers to the TUN.
func (n *Net) tunnelTable() int { return n.cfg.Table + 3 }

// tunnelledProtocols returns the protocols whose answers are tunnelled, in the order of
// the services, and ICMP; none if no answers are.
func (n *Net) tunnelledProtocols(family int) (list []int) {
	for _, s := range n.services {
		if s.Reply == dpr.ReplyTunnelled && !slices.Contains(list, int(s.Protocol)) {
			list = append(list, int(s.Protocol))
		}
	}
	switch {
	case list == nil:
		return nil
	case family == netlink.FAMILY_V4:
		return append(list, unix.IPPROTO_ICMP)
	}
	return append(list, unix.IPPROTO_ICMPV6)
}

// tunnelRules returns the rules for answers from the aliases.
func (n *Net) tunnelRules(family int, aliases []netip.Addr) (list []netlink.Rule) {
	for _, proto := range n.tunnelledProtocols(family) {
		for _, a := range aliases {
			r := netlink.NewRule()
			r.Family, r.Priority, r.Table, r.Protocol = family, n.cfg.RulePreference, n.tunnelTable(), protocol
			r.IifName, r.Src, r.IPProto = "lo", hostNet(a), proto
			list = append(list, *r)
		}
	}
	return list
}

// syncTunnelled keeps the table for tunnelled answers. The server's kernel makes what
// fits the tunnel from the narrowest route; the engine tells it of paths that are
// narrower still.
func (n *Net) syncTunnelled(family, headers int, wanted bool) error {
	if !wanted || n.tunnelledProtocols(family) == nil {
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
