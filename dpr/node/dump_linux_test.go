package node_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/internal/lab"
)

// dump writes down what a node could change in a host's namespace: interfaces and
// what is attached to them, addresses, rules, routes of all tables, neighbours that
// somebody configured, settings, and sockets other than TCP connections.
func dump(t *testing.T, h *lab.Host) (all []string) {
	t.Helper()
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	require.NoError(t, h.Do(func() error {
		dumpLinks(t, h.Netlink(), add)
		dumpRouting(t, h.Netlink(), add)
		for _, pattern := range []string{"/proc/sys/net/ipv4/*", "/proc/sys/net/ipv[46]/conf/*/*"} {
			files, err := filepath.Glob(pattern)
			require.NoError(t, err)
			for _, f := range files {
				if b, err := os.ReadFile(f); err == nil { // some can only be written
					add("%s %s", f, b)
				}
			}
		}
		return nil
	}))
	for _, kind := range []string{"udp", "udp6", "raw", "raw6", "packet"} {
		add("sockets %s %d", kind, strings.Count(readNetwork(t, h, kind), "\n"))
	}
	slices.Sort(all)
	return all
}

func dumpLinks(t *testing.T, nl *netlink.Handle, add func(string, ...any)) {
	t.Helper()
	links, err := nl.LinkList()
	require.NoError(t, err)
	for _, l := range links {
		add("link %s %v mtu %d", l.Attrs().Name, l.Attrs().Flags, l.Attrs().MTU)
		qdiscs, err := nl.QdiscList(l)
		require.NoError(t, err)
		for _, q := range qdiscs {
			add("qdisc %s %s", l.Attrs().Name, q.Type())
		}
		for _, hook := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
			programs, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: hook})
			require.NoError(t, err)
			add("tcx %v %s %d programs", hook, l.Attrs().Name, len(programs.Programs))
		}
	}
}

func dumpRouting(t *testing.T, nl *netlink.Handle, add func(string, ...any)) {
	t.Helper()
	addrs, err := nl.AddrList(nil, netlink.FAMILY_ALL)
	require.NoError(t, err)
	for _, a := range addrs {
		add("address %v on %d scope %d", a.IPNet, a.LinkIndex, a.Scope)
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		rules, err := nl.RuleList(family)
		require.NoError(t, err)
		for _, r := range rules {
			add("rule of family %d: %v iif %s proto %d", family, r, r.IifName, r.Protocol)
		}
		all := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
		routes, err := nl.RouteListFiltered(family, all, netlink.RT_FILTER_TABLE)
		require.NoError(t, err)
		for _, r := range routes {
			add("route %v type %d scope %d proto %d advmss %d", r, r.Type, r.Scope, r.Protocol, r.AdvMSS)
		}
	}
}

// requireSame compares two dumps and shows only what differs.
func requireSame(t *testing.T, want, got []string, msgAndArgs ...any) {
	t.Helper()
	missing := func(in, from []string) []string {
		return slices.DeleteFunc(slices.Clone(from), func(s string) bool { return slices.Contains(in, s) })
	}
	require.Empty(t, missing(got, want), msgAndArgs...)
	require.Empty(t, missing(want, got), msgAndArgs...)
}
