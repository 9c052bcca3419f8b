package node_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/google/nftables"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/node"
	"github.com/carom-dpr/carom/internal/lab"
)

// A node that starts and stops again and again leaves nothing, wherever its start
// fails. Each step of it that takes a descriptor fails in turn, since there is one
// less than it needs; the way back has to do without new ones.
func TestStartAndStopLeaveNothing(t *testing.T) {
	w := newWorld(t, false, "a")
	h := w.hosts["a"]
	h.serve(t, port)
	cfg := h.role("").config()
	cfg.Keys, cfg.Queues = nil, 2
	cfg.Services[0].Reply = dpr.ReplyRewritten
	require.NoError(t, startAndStop(h.Host, cfg, plenty)) // what is made once for the process
	before, descriptors := traces(t, h.Host), len(openDescriptors(t))

	failed, spare := 0, 0
	for range *cycles {
		err := startAndStop(h.Host, cfg, spare)
		open := len(openDescriptors(t))
		require.LessOrEqual(t, open, descriptors, "after a start with %d descriptors to spare: %v", spare, err)
		descriptors = open // connections of tests before may still end
		if err == nil {
			spare = 0 // enough; begin anew
			continue
		}
		require.ErrorIs(t, err, unix.EMFILE)
		failed++
		spare++
	}
	require.Equal(t, before, traces(t, h.Host))
	t.Logf("%d starts, %d of which failed", *cycles, failed)
	require.NotZero(t, failed)
	require.NoError(t, startAndStop(h.Host, cfg, plenty))
}

// cycles are about four rounds of the steps of a start.
var cycles = flag.Int("cycles", 200, "how often TestStartAndStopLeaveNothing starts a node")

// plenty is more descriptors than a node needs.
const plenty = 1000

// startAndStop opens a node in a process that may open only so many descriptors, and
// runs it to its end.
func startAndStop(h *lab.Host, cfg node.Config, spare int) error {
	return h.Do(func() error {
		n, err := scarce(spare, func() (*node.Node, error) { return node.Open(cfg) })
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		return n.Run(ctx)
	})
}

// scarce calls f while the process may open only so many descriptors.
func scarce(spare int, f func() (*node.Node, error)) (*node.Node, error) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		return nil, err
	}
	limit, err := limitFor(spare)
	if err != nil {
		return nil, err
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: min(limit, was.Max), Max: was.Max}); err != nil {
		return nil, err
	}
	n, err := f()
	return n, errors.Join(err, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
}

// limitFor returns the limit below which so many numbers of descriptors are free.
func limitFor(spare int) (limit uint64, err error) {
	used := make(map[int]bool)
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err == nil && unix.Fstat(fd, new(unix.Stat_t)) == nil { // but for that of the directory
			used[fd] = true
		}
	}
	for ; spare > 0; limit++ {
		if !used[int(limit)] {
			spare--
		}
	}
	return limit, nil
}

func openDescriptors(t *testing.T) []os.DirEntry {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return list
}

// traces writes down what a node makes in its host's network.
func traces(t *testing.T, h *lab.Host) (all []string) {
	t.Helper()
	nl := h.Netlink()
	links, err := nl.LinkList()
	require.NoError(t, err)
	for _, l := range links {
		all = append(all, fmt.Sprintf("link %s %v", l.Attrs().Name, l.Attrs().Flags))
	}
	addrs, err := nl.AddrList(nil, netlink.FAMILY_ALL)
	require.NoError(t, err)
	for _, a := range addrs {
		all = append(all, fmt.Sprintf("address %v", a.IPNet))
	}
	rules, err := nl.RuleList(netlink.FAMILY_ALL)
	require.NoError(t, err)
	for _, r := range rules {
		all = append(all, fmt.Sprintf("%v", r))
	}
	routes, err := nl.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	require.NoError(t, err)
	for _, r := range routes {
		all = append(all, fmt.Sprintf("route %v", r))
	}
	require.NoError(t, h.Do(func() error {
		for _, l := range links {
			programs, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: ebpf.AttachTCXIngress})
			require.NoError(t, err)
			all = append(all, fmt.Sprintf("%d programs on %s", len(programs.Programs), l.Attrs().Name))
		}
		conn, err := nftables.New()
		require.NoError(t, err)
		tables, err := conn.ListTables()
		all = append(all, fmt.Sprintf("%d nftables", len(tables)))
		return err
	}))
	slices.Sort(all)
	return all
}
