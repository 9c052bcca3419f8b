package hostnet

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Where the kernel has no BPF for tc, rules bring the services' IPv4 packets to the
// TUN. The order of rules is then
//
//	0  iif <nic> to A ipproto tcp dport P lookup <third table>: all is led to the TUN
//	1  lookup local, which was rule 0 before
//	1  iif <nic> unreachable: what is for neither is not forwarded either
//
// IPv6 stays with the kernel: it has no forwarding for a single interface, and rules
// would lead away the messages of neighbour discovery.

const (
	captureRule = 0 // preferences
	localRule   = 1
)

// captureTable is the routing table whose only route leads to the TUN.
func (n *Net) captureTable() int { return n.cfg.Table + 2 }

// startByRouting captures by rules from now on.
func (n *Net) startByRouting() error {
	// Or the kernel attaches a local socket to a packet before it is routed, and then
	// drops it when it is to be forwarded.
	if err := n.change("/proc/sys/net/ipv4/ip_early_demux", "0", nil); err != nil {
		return err
	}
	n.byRouting = true
	for _, c := range n.nics {
		if err := n.captureOn(c); err != nil {
			return err
		}
	}
	return n.syncCapture()
}

// routeToTUN lets the interface's packets be forwarded to the TUN.
func (c *nic) routeToTUN() error {
	return errors.Join(
		c.change("forwarding", "1"),
		// A packet to be forwarded is asked whether its source could be answered as if
		// it came from the TUN, where the peers' addresses are local: that of a peer
		// who dials this host would be refused.
		c.change("accept_local", "1"),
		c.change("rp_filter", "2"),
	)
}

// captured returns the rules that capture IPv4. They match no fragment, which has no
// ports as far as rules are concerned: a datagram in fragments is served here. ICMP is
// captured as a whole, for the errors that are about redirected connections.
func (n *Net) captured() (list []netlink.Rule) {
	add := func(nic string, to netip.Addr, proto int, ports *netlink.RulePortRange) {
		r := netlink.NewRule()
		r.Family, r.Priority, r.Table, r.Protocol = netlink.FAMILY_V4, captureRule, n.captureTable(), protocol
		r.IifName, r.Dst, r.IPProto, r.Dport = nic, hostNet(to), proto, ports
		if !slices.ContainsFunc(list, func(o netlink.Rule) bool { return sameCapture(o, *r) }) {
			list = append(list, *r)
		}
	}
	for _, nic := range n.nics {
		for _, s := range n.services {
			for _, a := range s.Addrs {
				if !a.Unmap().Is4() {
					continue
				}
				add(nic.name, a.Unmap(), int(s.Protocol), netlink.NewRulePortRange(s.Port, s.lastPort()))
				add(nic.name, a.Unmap(), unix.IPPROTO_ICMP, nil)
			}
		}
	}
	return list
}

// fences returns the rules that keep the interfaces from forwarding anything else, but
// where they forwarded before.
func (n *Net) fences() (list []netlink.Rule) {
	for _, nic := range n.nics {
		path := ipv4Setting(nic.name, "forwarding")
		if !slices.ContainsFunc(nic.settings, func(s setting) bool { return s.path == path && s.old == "0" }) {
			continue
		}
		r := netlink.NewRule()
		r.Family, r.Priority, r.Protocol, r.IifName, r.Type = netlink.FAMILY_V4, localRule, protocol, nic.name, unix.FR_ACT_UNREACHABLE
		list = append(list, *r)
	}
	return list
}

// endForwarding turns forwarding off where a killed process has turned it on for its
// capture, which its fences say. It comes before they are removed.
func (n *Net) endForwarding() error {
	rules, err := n.captureRules()
	if err != nil {
		return err
	}
	for _, r := range rules {
		if r.Priority != localRule {
			continue
		}
		err := os.WriteFile(ipv4Setting(r.IifName, "forwarding"), []byte("0"), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // else the interface is gone
			return fmt.Errorf("interface %s forwards what it should not since a router was killed: %w", r.IifName, err)
		}
	}
	return nil
}

// syncCapture makes the rules what the services ask for, and takes all away that a
// killed process has left if this one captures by BPF.
func (n *Net) syncCapture() error {
	capturing := n.byRouting && !n.closed
	var want []netlink.Rule
	if capturing {
		want = append(n.captured(), n.fences()...)
	}
	have, err := n.captureRules()
	if err != nil {
		return err
	}
	if capturing {
		err = errors.Join(n.syncRouteToTUN(netlink.FAMILY_V4, n.captureTable(), new(netlink.Route)), n.moveLocal(true))
	}
	for _, h := range have {
		if !slices.ContainsFunc(want, func(w netlink.Rule) bool { return sameCapture(h, w) }) {
			err = errors.Join(err, ignore(n.nl.RuleDel(&h), unix.ENOENT))
		}
	}
	for _, w := range want {
		if err == nil && !slices.ContainsFunc(have, func(h netlink.Rule) bool { return sameCapture(h, w) }) {
			err = n.addCapture(&w)
		}
	}
	if !capturing {
		err = errors.Join(err, n.moveLocal(false), n.syncRouteToTUN(netlink.FAMILY_V4, n.captureTable(), nil))
	}
	if err != nil {
		return fmt.Errorf("capture by routing: %w", err)
	}
	return nil
}

func (n *Net) addCapture(r *netlink.Rule) error {
	err := n.nl.RuleAdd(r)
	if errors.Is(err, unix.EINVAL) && r.Dport != nil && r.Dport.End == math.MaxUint16 {
		return fmt.Errorf("port 65535 of %v: Linux's routing rules know ports up to 65534: end the service's range there", r.Dst.IP)
	}
	return err
}

// syncRouteToTUN makes the only route of a table that to the TUN, with the given one's
// metrics; without one there is none. What a killed process had there went with its TUN.
func (n *Net) syncRouteToTUN(family, table int, route *netlink.Route) error {
	routes, err := n.routes(family, table)
	if err != nil {
		return err
	}
	there := false
	for _, r := range routes {
		if r.Protocol != protocol || r.LinkIndex != n.tun.Attrs().Index {
			continue
		}
		if route != nil && r.MTU == route.MTU && r.AdvMSS == route.AdvMSS {
			there = true
		} else if err := ignore(n.nl.RouteDel(&r), unix.ESRCH); err != nil {
			return fmt.Errorf("remove route %v: %w", r, err)
		}
	}
	if route == nil || there {
		return nil
	}
	everywhere, scope := &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, netlink.SCOPE_LINK
	if family == netlink.FAMILY_V6 {
		everywhere, scope = &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}, netlink.SCOPE_UNIVERSE
	}
	err = n.nl.RouteAdd(&netlink.Route{
		Family: family, Table: table, Protocol: protocol, Type: unix.RTN_UNICAST,
		Scope: scope, LinkIndex: n.tun.Attrs().Index, Dst: everywhere, MTU: route.MTU, AdvMSS: route.AdvMSS,
	})
	if err != nil {
		return fmt.Errorf("add route to %s: %w", n.cfg.TUN, err)
	}
	return nil
}

// captureRules lists our rules of capture.
func (n *Net) captureRules() ([]netlink.Rule, error) {
	rules, err := listed(func() ([]netlink.Rule, error) { return n.nl.RuleList(netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	ours := func(r netlink.Rule) bool {
		fence := r.Priority == localRule && r.IifName != ""
		return r.Protocol == protocol && (fence || r.Priority == captureRule && r.Table == n.captureTable())
	}
	return slices.DeleteFunc(rules, func(r netlink.Rule) bool { return !ours(r) }), nil
}

// moveLocal puts the rule for the table local behind the rules of capture, or back to
// where the kernel had it. At no moment there is none.
func (n *Net) moveLocal(behind bool) error {
	rules, err := listed(func() ([]netlink.Rule, error) { return n.nl.RuleList(netlink.FAMILY_V4) })
	if err != nil {
		return fmt.Errorf("list rules: %w", err)
	}
	at := func(preference int, protocol uint8) *netlink.Rule {
		r := netlink.NewRule()
		r.Family, r.Priority, r.Table, r.Protocol = netlink.FAMILY_V4, preference, unix.RT_TABLE_LOCAL, protocol
		return r
	}
	there := func(preference int) bool {
		return slices.ContainsFunc(rules, func(r netlink.Rule) bool {
			return r.Table == unix.RT_TABLE_LOCAL && r.Priority == preference && r.IifName == "" && r.Src == nil && r.Dst == nil
		})
	}
	first, second := at(captureRule, unix.RTPROT_KERNEL), at(localRule, protocol)
	switch {
	case behind && there(captureRule):
		return errors.Join(ignore(n.nl.RuleAdd(second), unix.EEXIST), n.nl.RuleDel(first))
	case !behind && there(localRule):
		return errors.Join(ignore(n.nl.RuleAdd(first), unix.EEXIST), n.nl.RuleDel(second))
	}
	return nil
}

func sameCapture(a, b netlink.Rule) bool {
	ports := func(r netlink.Rule) string {
		if r.Dport == nil {
			return ""
		}
		return strconv.Itoa(int(r.Dport.Start)) + "-" + strconv.Itoa(int(r.Dport.End))
	}
	return a.Priority == b.Priority && a.IifName == b.IifName && netString(a.Dst) == netString(b.Dst) &&
		a.IPProto == b.IPProto && ports(a) == ports(b)
}
