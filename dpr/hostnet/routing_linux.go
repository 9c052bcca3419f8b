package hostnet

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// protocol marks the routes and rules of this package as its own, for "ip route
// show proto 108" and for the next start after a kill. No routing daemon has it.
const protocol = 108

// placeholder is an address that the TUN always has: to the kernel, an interface
// without one fails every reverse path filter. It is the IPv4 dummy address of
// RFC 7600 and leads nowhere.
var placeholder = netip.AddrFrom4([4]byte{192, 0, 0, 8})

// families are the two address families and what belongs to each.
var families = []struct {
	id      int
	headers int // IP and TCP without options, in bytes
	is      func(netip.Addr) bool
}{
	{netlink.FAMILY_V4, 40, netip.Addr.Is4},
	{netlink.FAMILY_V6, 60, netip.Addr.Is6},
}

// SetAliases makes addresses of peers local to packets that come from the TUN, and
// ends those of earlier calls that are not among them. Servers on the wildcard
// address then serve the connections that peers redirect to this host; answers
// leave directly with the alias as their source. Packets from elsewhere for an
// alias, and the host's own connections to it, go where they would without.
//
// Addresses that are this host's own, that are a gateway, or that lie outside
// Config.AliasPrefixes are refused: the error names them all, and the others are
// set. After any other error the call may be repeated, and Run repeats it.
func (n *Net) SetAliases(addrs []netip.Addr) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return fmt.Errorf("hostnet: SetAliases: %w", os.ErrClosed)
	}
	taken, err := n.takenAddrs()
	if err != nil {
		return fmt.Errorf("hostnet: SetAliases: %w", err)
	}
	clear(n.aliases)
	var errs []error
	for _, a := range addrs {
		a = a.Unmap()
		if reason := n.refuse(a, taken); reason != "" {
			errs = append(errs, fmt.Errorf("hostnet: alias %v refused: %s", a, reason))
			continue
		}
		n.aliases[a] = true
	}
	if err := n.syncRouting(); err != nil {
		errs = append(errs, fmt.Errorf("hostnet: SetAliases: %w", err))
	}
	return errors.Join(errs...)
}

// refuse returns why an address cannot be an alias, or nothing.
func (n *Net) refuse(a netip.Addr, taken map[netip.Addr]string) string {
	if !a.IsGlobalUnicast() || a.Zone() != "" {
		return "not a global unicast address"
	}
	within := func(p netip.Prefix) bool { return p.Contains(a) }
	if len(n.cfg.AliasPrefixes) > 0 && !slices.ContainsFunc(n.cfg.AliasPrefixes, within) {
		return "outside AliasPrefixes"
	}
	return taken[a]
}

// takenAddrs returns the addresses that no alias may have, with the reason.
func (n *Net) takenAddrs() (map[netip.Addr]string, error) {
	taken := map[netip.Addr]string{}
	for _, f := range families {
		routes, err := n.routes(f.id, unix.RT_TABLE_MAIN)
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			taken[addrOf(r.Gw)] = "a gateway of this host"
			for _, hop := range r.MultiPath {
				taken[addrOf(hop.Gw)] = "a gateway of this host"
			}
		}
	}
	addrs, err := n.addrs(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		if ip := addrOf(a.IP); !n.added[ip] {
			taken[ip] = "an address of this host"
		}
	}
	return taken, nil
}

// syncRouting makes rules, routes and the addresses of the TUN what the aliases
// ask for. It changes only what differs, so it serves to set up, to repair, to
// clean up after a killed process and, without aliases, to take down.
func (n *Net) syncRouting() error {
	return errors.Join(n.followNICs(), n.syncTables())
}

func (n *Net) syncTables() error {
	if err := n.removeAddrs(); err != nil {
		return err
	}
	for _, f := range families {
		aliases := n.aliasesOf(f.is)
		if err := n.syncDelivery(f.id, aliases); err != nil {
			return err
		}
		if err := n.syncReplies(f.id, f.headers, len(aliases) > 0); err != nil {
			return err
		}
		if err := n.syncTunnelled(f.id, f.headers, len(aliases) > 0); err != nil {
			return err
		}
		if err := n.syncRules(f.id, aliases); err != nil {
			return err
		}
	}
	if err := errors.Join(n.syncRewriting(), n.syncCapture()); err != nil {
		return err
	}
	return n.addAddrs()
}

// aliasesOf returns the aliases of one family in order.
func (n *Net) aliasesOf(is func(netip.Addr) bool) (list []netip.Addr) {
	for a := range n.aliases {
		if is(a) {
			list = append(list, a)
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return list
}

// syncDelivery keeps the table that makes aliases local.
func (n *Net) syncDelivery(family int, aliases []netip.Addr) error {
	var want []netlink.Route
	for _, a := range aliases {
		r := netlink.Route{
			Family: family, Table: n.cfg.Table, Protocol: protocol, Type: unix.RTN_LOCAL,
			Scope: netlink.SCOPE_HOST, LinkIndex: n.tun.Attrs().Index, Dst: hostNet(a),
		}
		if family == netlink.FAMILY_V6 {
			r.Scope, r.Priority = netlink.SCOPE_UNIVERSE, 1024 // as the kernel reports them
		}
		want = append(want, r)
	}
	return n.syncTable(family, n.cfg.Table, want)
}

// syncReplies keeps the table for answers from aliases: the main table's routes
// with a smaller segment size to announce. The entry host never sees the server's
// SYN-ACK, so nobody else can see to it.
func (n *Net) syncReplies(family, headers int, wanted bool) error {
	if !wanted {
		return n.syncTable(family, n.cfg.Table+1, nil)
	}
	routes, err := n.mainRoutes(family)
	if err != nil {
		return err
	}
	var want []netlink.Route
	for _, r := range routes {
		r.Table, r.Protocol = n.cfg.Table+1, protocol
		if size := r.mtu - n.cfg.Overhead - headers; size > 0 && (r.AdvMSS == 0 || size < r.AdvMSS) {
			r.AdvMSS = size
		}
		want = append(want, r.Route)
	}
	return n.syncTable(family, n.cfg.Table+1, want)
}

// syncTable makes our routes of a table equal to want.
func (n *Net) syncTable(family, table int, want []netlink.Route) error {
	have, err := n.routes(family, table)
	if err != nil {
		return err
	}
	equal := func(a, b netlink.Route) bool { return a.AdvMSS == b.AdvMSS && a.MTU == b.MTU && a.Equal(b) }
	for _, h := range have {
		if h.Protocol == protocol && !slices.ContainsFunc(want, func(w netlink.Route) bool { return equal(h, w) }) {
			if err := ignore(n.nl.RouteDel(&h), unix.ESRCH); err != nil {
				return fmt.Errorf("remove route %v: %w", h, err)
			}
		}
	}
	for _, w := range want {
		if !slices.ContainsFunc(have, func(h netlink.Route) bool { return equal(h, w) }) {
			if err := n.nl.RouteAdd(&w); err != nil {
				return fmt.Errorf("add route %v: %w", w, err)
			}
		}
	}
	return nil
}

// routes lists a table, without what the kernel adds to tell a route's state.
func (n *Net) routes(family, table int) ([]netlink.Route, error) {
	routes, err := listed(func() ([]netlink.Route, error) {
		return n.nl.RouteListFiltered(family, &netlink.Route{Table: table}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes of table %d: %w", table, err)
	}
	for i := range routes {
		routes[i].Flags &= int(netlink.FLAG_ONLINK)
		for _, hop := range routes[i].MultiPath {
			hop.Flags &= int(netlink.FLAG_ONLINK)
		}
	}
	return routes, nil
}

// listed repeats a listing that was inconsistent because something changed meanwhile.
func listed[T any](list func() ([]T, error)) (all []T, err error) {
	const tries = 10 // one is enough unless routes never rest
	for range tries {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

// addrs lists the addresses of a link, of all links if it is nil.
func (n *Net) addrs(link netlink.Link, family int) ([]netlink.Addr, error) {
	addrs, err := listed(func() ([]netlink.Addr, error) { return n.nl.AddrList(link, family) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	return addrs, nil
}

// syncRules keeps the rules that lead to our tables.
func (n *Net) syncRules(family int, aliases []netip.Addr) error {
	var want []netlink.Rule
	rule := func(preference, table int) *netlink.Rule {
		r := netlink.NewRule()
		r.Family, r.Priority, r.Table, r.Protocol = family, preference, table, protocol
		want = append(want, *r)
		return &want[len(want)-1]
	}
	if len(aliases) > 0 {
		rule(n.cfg.RulePreference, n.cfg.Table).IifName = n.cfg.TUN
	}
	for _, a := range aliases {
		rule(n.cfg.RulePreference+1, n.cfg.Table+1).Src = hostNet(a)
	}
	want = append(want, n.tunnelRules(family, aliases)...)
	have, err := n.ownRules(family)
	if err != nil {
		return err
	}
	for _, h := range have {
		if !slices.ContainsFunc(want, func(w netlink.Rule) bool { return sameRule(h, w) }) {
			if err := ignore(n.nl.RuleDel(&h), unix.ENOENT); err != nil {
				return fmt.Errorf("remove %v: %w", h, err)
			}
		}
	}
	for _, w := range want {
		if !slices.ContainsFunc(have, func(h netlink.Rule) bool { return sameRule(h, w) }) {
			if err := n.nl.RuleAdd(&w); err != nil {
				return fmt.Errorf("add %v: %w", w, err)
			}
		}
	}
	return nil
}

// ownRules lists the rules of this package that lead to our tables.
func (n *Net) ownRules(family int) ([]netlink.Rule, error) {
	rules, err := listed(func() ([]netlink.Rule, error) { return n.nl.RuleList(family) })
	if err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	return slices.DeleteFunc(rules, func(r netlink.Rule) bool {
		return r.Protocol != protocol || r.Table != n.cfg.Table && r.Table != n.cfg.Table+1 && r.Table != n.tunnelTable()
	}), nil
}

func sameRule(a, b netlink.Rule) bool {
	return a.Priority == b.Priority && a.Table == b.Table && a.IifName == b.IifName && netString(a.Src) == netString(b.Src) &&
		a.IPProto == b.IPProto
}

func netString(p *net.IPNet) string {
	if p == nil {
		return ""
	}
	return p.String()
}

// checkTables refuses tables that somebody else uses. Routes of ours that lead
// nowhere, and rules for a TUN that is gone, are the remains of a killed process.
func (n *Net) checkTables() error {
	for _, f := range families {
		for _, table := range []int{n.cfg.Table, n.cfg.Table + 1, n.tunnelTable()} {
			routes, err := n.routes(f.id, table)
			if err != nil {
				return err
			}
			for _, r := range routes {
				if r.Protocol != protocol {
					return fmt.Errorf("table %d has a route to %v that is not ours: choose another Table", table, r.Dst)
				}
			}
		}
		rules, err := n.ownRules(f.id)
		if err != nil {
			return err
		}
		for _, r := range rules {
			if r.IifName == "" || r.IifName == "lo" || r.IifName == n.cfg.TUN {
				continue
			}
			if _, err := n.nl.LinkByName(r.IifName); err == nil {
				return fmt.Errorf("table %d serves another router's interface %s: choose another Table", r.Table, r.IifName)
			}
		}
	}
	n.ours = true
	return nil
}

// addrsWanted are the addresses that the TUN is to have: the IPv4 aliases, without
// which the kernel refuses to send from them, and the placeholder. IPv6 needs no
// address, and one would break the host's connections to its real owner.
func (n *Net) addrsWanted() map[netip.Addr]bool {
	want := map[netip.Addr]bool{}
	if !n.closed {
		want[placeholder] = true
	}
	for a := range n.aliases {
		if a.Is4() {
			want[a] = true
		}
	}
	return want
}

// removeAddrs takes addresses off the TUN that are no longer wanted.
func (n *Net) removeAddrs() error {
	want := n.addrsWanted()
	for a := range n.added {
		if want[a] {
			continue
		}
		err := n.nl.AddrDel(n.tun, &netlink.Addr{IPNet: hostNet(a)})
		if err := ignore(err, unix.EADDRNOTAVAIL, unix.ENODEV); err != nil {
			return fmt.Errorf("remove address %v: %w", a, err)
		}
		delete(n.added, a)
	}
	return nil
}

// addAddrs puts addresses on the TUN that it lacks, and takes away the routes that
// thereby came into the table local, with which the host would take all packets
// for them.
func (n *Net) addAddrs() error {
	want := n.addrsWanted()
	if len(want) == 0 {
		return nil
	}
	have, err := n.addrs(n.tun, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	missing := maps.Clone(want)
	for _, h := range have {
		delete(missing, addrOf(h.IP))
	}
	if len(missing) == 0 {
		return n.removeLocalRoutes(want)
	}
	errs := []error{n.ignoreARP()}
	for a := range missing {
		// A link's scope keeps it from being chosen as the source of anything else.
		err := n.nl.AddrAdd(n.tun, &netlink.Addr{IPNet: hostNet(a), Scope: unix.RT_SCOPE_LINK})
		if err != nil {
			errs = append(errs, fmt.Errorf("add address %v: %w", a, err))
			continue
		}
		n.added[a] = true
	}
	errs = append(errs, n.removeLocalRoutes(want))
	awaitReceivers()
	return errors.Join(append(errs, n.restoreARP())...)
}

// removeLocalRoutes takes the TUN's addresses out of the table local.
func (n *Net) removeLocalRoutes(addrs map[netip.Addr]bool) error {
	routes, err := n.routes(netlink.FAMILY_V4, unix.RT_TABLE_LOCAL)
	if err != nil {
		return err
	}
	for _, r := range routes {
		if r.LinkIndex == n.tun.Attrs().Index && r.Dst != nil && addrs[addrOf(r.Dst.IP)] {
			if err := ignore(n.nl.RouteDel(&r), unix.ESRCH); err != nil {
				return fmt.Errorf("remove %v from table local: %w", r.Dst, err)
			}
		}
	}
	return nil
}

// ignoreARP keeps the captured interfaces from answering for addresses of others
// while one of them is in the table local.
func (n *Net) ignoreARP() error {
	for _, c := range n.nics {
		if c.link == nil {
			continue
		}
		now, err := c.arp.get()
		if err != nil {
			return err
		}
		if now != "0" {
			continue // some other value that ignores no less
		}
		c.arp.old = now
		if err := c.arp.set("1"); err != nil {
			return err
		}
	}
	return nil
}

// awaitReceivers returns when every packet that the kernel was receiving has been
// dealt with. One that found an alias in the table local, on another processor, may
// not have asked for arp_ignore yet; without this it was seen to be answered.
func awaitReceivers() {
	// A global barrier is the kernel's synchronize_rcu, and packets are received
	// within RCU read sections. Where it is refused the race is merely improbable.
	const cmdGlobal = 1 // MEMBARRIER_CMD_GLOBAL
	_, _, _ = unix.Syscall(unix.SYS_MEMBARRIER, cmdGlobal, 0, 0)
}

func (n *Net) restoreARP() error {
	var errs []error
	for _, c := range n.nics {
		if c.link != nil && c.arp.old == "0" {
			errs = append(errs, c.arp.set("0"))
		}
	}
	return errors.Join(errs...)
}

func hostNet(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}
