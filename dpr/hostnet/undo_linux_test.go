package hostnet

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/google/gopacket"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/tun"
	"github.com/carom-dpr/carom/internal/lab"
)

func payload(b []byte) gopacket.SerializableLayer { return gopacket.Payload(b) }

// dump writes down all that the package could change in a host's namespace.
func dump(t *testing.T, h *lab.Host) []string {
	t.Helper()
	var all []string
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	nl := h.Netlink()
	links, err := nl.LinkList()
	require.NoError(t, err)
	for _, l := range links {
		add("link %s %v mtu %d", l.Attrs().Name, l.Attrs().Flags, l.Attrs().MTU)
		qdiscs, err := nl.QdiscList(l)
		require.NoError(t, err)
		for _, q := range qdiscs { // others come by themselves when a link first goes up
			if q.Type() == "clsact" {
				add("qdisc %s %s", l.Attrs().Name, q.Type())
			}
		}
		filters, err := nl.FilterList(l, netlink.HANDLE_MIN_INGRESS)
		require.NoError(t, err)
		for _, f := range filters {
			add("filter %s %s", l.Attrs().Name, f.Type())
		}
		require.NoError(t, h.Do(func() error {
			programs, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: ebpf.AttachTCXIngress})
			require.NoError(t, err)
			add("tcx %s %d programs", l.Attrs().Name, len(programs.Programs))
			return nil
		}))
	}
	addrs, err := nl.AddrList(nil, netlink.FAMILY_ALL)
	require.NoError(t, err)
	for _, a := range addrs {
		add("address %v on %d scope %d", a.IPNet, a.LinkIndex, a.Scope)
	}
	for _, f := range families {
		rules, err := nl.RuleList(f.id)
		require.NoError(t, err)
		for _, r := range rules {
			add("%v iif %s proto %d", r, r.IifName, r.Protocol)
		}
		routes, err := nl.RouteListFiltered(f.id, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		require.NoError(t, err)
		for _, r := range routes {
			add("route %v type %d scope %d proto %d advmss %d", r, r.Type, r.Scope, r.Protocol, r.AdvMSS)
		}
	}
	require.NoError(t, h.Do(func() error {
		for _, pattern := range []string{"/proc/sys/net/ipv4/conf/*/*", "/proc/sys/net/ipv6/conf/*/*", "/proc/sys/net/ipv4/ip_early_demux"} {
			files, err := filepath.Glob(pattern)
			require.NoError(t, err)
			for _, f := range files {
				b, err := os.ReadFile(f)
				if err == nil { // some can only be written, or have no value yet
					add("%s %s", f, b)
				}
			}
		}
		return nil
	}))
	for name, use := range tables(t, h) {
		add("nftables %s %d", name, use)
	}
	slices.Sort(all)
	return all
}

// requireSame compares two dumps and shows only what differs.
func requireSame(t *testing.T, want, got []string, msgAndArgs ...any) {
	t.Helper()
	var gone, came []string
	for _, s := range want {
		if !slices.Contains(got, s) {
			gone = append(gone, s)
		}
	}
	for _, s := range got {
		if !slices.Contains(want, s) {
			came = append(came, s)
		}
	}
	require.Empty(t, gone, msgAndArgs...)
	require.Empty(t, came, msgAndArgs...)
}

// openTUN makes a TUN in a host. It goes when the test ends.
func openTUN(t *testing.T, h *lab.Host, name string) {
	t.Helper()
	require.NoError(t, h.Do(func() error {
		dev, err := tun.Open(tun.Config{Name: name})
		if err == nil {
			t.Cleanup(func() { dev.Close() })
		}
		return err
	}))
}

func open(h *lab.Host, cfg Config) (n *Net, err error) {
	err = h.Do(func() (err error) {
		n, err = Open(cfg)
		return err
	})
	return n, err
}

func TestCloseRestoresEverything(t *testing.T) {
	for _, noTCX := range []bool{false, true} {
		t.Run(fmt.Sprintf("noTCX=%v", noTCX), func(t *testing.T) {
			w := newWorld(t)
			openTUN(t, w.a, "carom0")
			require.NoError(t, w.a.SetSysctl("net.ipv4.conf.eth0.arp_ignore", "0"))
			before := dump(t, w.a)
			n, err := open(w.a, Config{TUN: "carom0", Services: inEachMode(w.a), noTCX: noTCX})
			require.NoError(t, err)
			require.NoError(t, n.SetAliases(addrs(w.b)))
			require.NotEqual(t, before, dump(t, w.a))
			require.NoError(t, n.Close())
			require.NoError(t, n.Close())
			requireSame(t, before, dump(t, w.a))
			n.Beat()
			require.ErrorIs(t, n.SetAliases(nil), os.ErrClosed)
			require.ErrorIs(t, n.SetServices(services(w.a)), os.ErrClosed)
			_, err = n.Stats()
			require.ErrorIs(t, err, os.ErrClosed)
		})
	}
}

// inEachMode are the host's services, one with rewritten answers and one with tunnelled.
func inEachMode(h *lab.Host) []Service {
	list := services(h)
	list[0].Reply, list[1].Reply = dpr.ReplyTunnelled, dpr.ReplyRewritten
	return list
}

// Whatever step Open fails at, Close undoes the steps before it.
func TestOpenUndoesEachStep(t *testing.T) {
	w := newWorld(t)
	openTUN(t, w.a, "carom0")
	before := dump(t, w.a)
	cfg, err := Config{TUN: "carom0", Services: services(w.a)}.withDefaults()
	require.NoError(t, err)
	for done := range len((&Net{}).steps()) + 1 {
		n := newNet(cfg)
		require.NoError(t, w.a.Do(func() error {
			for _, step := range n.steps()[:done] {
				if err := step(); err != nil {
					return err
				}
			}
			return n.Close()
		}))
		requireSame(t, before, dump(t, w.a), "after %d steps", done)
	}
}

// Open fails at the last thing that it does, with one interface attached to.
func TestOpenUndoesHalfACapture(t *testing.T) {
	for _, noTCX := range []bool{false, true} {
		w := newWorld(t)
		openTUN(t, w.a, "carom0")
		before := dump(t, w.a)
		gone := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "gone"}, PeerName: "gone1"}
		require.NoError(t, w.a.Netlink().LinkAdd(gone))
		cfg, err := Config{TUN: "carom0", Interfaces: []string{"eth0", "gone"}, Services: services(w.a), noTCX: noTCX}.withDefaults()
		require.NoError(t, err)
		n := newNet(cfg)
		steps := n.steps()
		require.NoError(t, w.a.Do(func() error {
			for i, step := range steps {
				if i == len(steps)-1 {
					require.NoError(t, w.a.Netlink().LinkDel(gone))
					require.ErrorContains(t, step(), "attach to gone")
					return n.Close()
				}
				require.NoError(t, step())
			}
			return nil
		}))
		requireSame(t, before, dump(t, w.a))
	}
}

// A router that ends closes its TUN; the interface may be gone before the Net.
func TestCloseAfterTheTUN(t *testing.T) {
	w := newWorld(t)
	before := dump(t, w.a)
	var n *Net
	require.NoError(t, w.a.Do(func() error {
		dev, err := tun.Open(tun.Config{Name: "carom0"})
		require.NoError(t, err)
		n, err = Open(Config{TUN: "carom0", Services: services(w.a)})
		require.NoError(t, err)
		require.NoError(t, n.SetAliases(addrs(w.b)))
		return dev.Close()
	}))
	require.NoError(t, n.Close())
	requireSame(t, before, dump(t, w.a))
}

func TestOpenRefuses(t *testing.T) {
	for _, c := range []struct {
		name, err string
		change    func(t *testing.T, h *lab.Host, cfg *Config)
	}{
		{"unknown TUN", "TUN nosuch", func(t *testing.T, h *lab.Host, cfg *Config) { cfg.TUN = "nosuch" }},
		{"unknown interface", "interface nosuch", func(t *testing.T, h *lab.Host, cfg *Config) { cfg.Interfaces = []string{"nosuch"} }},
		{"last interface cannot be attached to", "interface nosuch", func(t *testing.T, h *lab.Host, cfg *Config) {
			cfg.Interfaces = []string{"eth0", "nosuch"}
		}},
		{"foreign address", "address 192.0.2.1 of a service is on no interface", func(t *testing.T, h *lab.Host, cfg *Config) {
			cfg.Services[0].Addrs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
		}},
		{"address on lo", "address 127.0.0.1 of a service is on lo: set Interfaces", func(t *testing.T, h *lab.Host, cfg *Config) {
			cfg.Services[0].Addrs = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
		}},
		{"table in use", "table 6081 has a route to 192.0.2.0/24 that is not ours", func(t *testing.T, h *lab.Host, cfg *Config) {
			eth0, err := h.Netlink().LinkByName("eth0")
			require.NoError(t, err)
			p := netip.MustParsePrefix("192.0.2.0/24")
			require.NoError(t, h.Netlink().RouteAdd(&netlink.Route{
				Table: defaultTable + 1, LinkIndex: eth0.Attrs().Index, Scope: netlink.SCOPE_LINK,
				Dst: prefixNet(p),
			}))
		}},
		{"another router's table", "table 6080 serves another router's interface carom1", func(t *testing.T, h *lab.Host, cfg *Config) {
			openTUN(t, h, "carom1")
			n, err := open(h, Config{TUN: "carom1", Services: services(h)})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, n.Close()) })
			require.NoError(t, n.SetAliases([]netip.Addr{netip.MustParseAddr("10.1.0.99")}))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			openTUN(t, w.a, "carom0")
			cfg := Config{TUN: "carom0", Services: services(w.a)}
			c.change(t, w.a, &cfg)
			before := dump(t, w.a)
			_, err := open(w.a, cfg)
			require.ErrorContains(t, err, c.err)
			requireSame(t, before, dump(t, w.a))
		})
	}
}

func TestTwoRoutersOnOneHost(t *testing.T) {
	w := newWorld(t)
	before := dump(t, w.a)
	for i, name := range []string{"carom0", "carom1"} {
		openTUN(t, w.a, name)
		n, err := open(w.a, Config{TUN: name, Services: services(w.a), Table: 7000 + 4*i})
		require.NoError(t, err)
		require.NoError(t, n.SetAliases([]netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, byte(100 + i)})}))
		defer func() { require.NoError(t, n.Close()) }()
	}
	require.NotEqual(t, before, dump(t, w.a))
}

const childEnv = "CAROM_HOSTNET_CHILD"

// runChild is the process that TestStartAfterKill kills.
func runChild() {
	fail := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	_, err := tun.Open(tun.Config{Name: "carom0"})
	fail(err)
	own, err := netip.ParseAddr(os.Getenv(childEnv))
	fail(err)
	n, err := Open(Config{
		TUN: "carom0", noTCX: os.Getenv(childEnv+"_NO_TCX") == "1", ByRouting: os.Getenv(childEnv+"_NO_TCX") == "routing",
		Services: []Service{
			{Protocol: protocolTCP, Port: port, Addrs: []netip.Addr{own}, Reply: dpr.ReplyRewritten},
			{Protocol: protocolTCP, Port: port + 1, Addrs: []netip.Addr{own}, Reply: dpr.ReplyTunnelled},
		},
	})
	fail(err)
	fail(n.SetAliases([]netip.Addr{netip.MustParseAddr("10.1.0.3"), netip.MustParseAddr("fd01::3")}))
	n.Beat()
	fmt.Println("ready")
	for range time.Tick(50 * time.Millisecond) {
		n.Beat()
	}
}

// startChild starts a process that captures on h, and beats, but reads nothing.
func startChild(t *testing.T, h *lab.Host, noTCX string) *exec.Cmd {
	t.Helper()
	child := exec.Command("/proc/self/exe")
	child.Env = append(os.Environ(), childEnv+"="+h.Addr4().String(), childEnv+"_NO_TCX="+noTCX)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, h.Start(child))
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	return child
}

// A stopped process holds TUN and program; only the heartbeat shows its state.
func TestStoppedProcessLeavesConnectionsToTheKernel(t *testing.T) {
	w := newWorld(t)
	serveEcho(t, w.a, ":80")
	child := startChild(t, w.a, "")
	require.NoError(t, child.Process.Signal(unix.SIGSTOP))
	echo(t, dial(t, w.client, netip.AddrPortFrom(w.a.Addr4(), port)), 1000)
	require.NoError(t, child.Process.Kill())
	require.Error(t, child.Wait())
}

func TestStartAfterKill(t *testing.T) {
	for _, noTCX := range []string{"", "1"} {
		t.Run("noTCX="+noTCX, func(t *testing.T) {
			w := newWorld(t)
			before := dump(t, w.a)
			child := startChild(t, w.a, noTCX)
			require.NoError(t, child.Process.Kill())
			require.Error(t, child.Wait())

			left := dump(t, w.a)
			require.NotEqual(t, before, left, "a killed process leaves rules behind")
			require.NotEmpty(t, tables(t, w.a))
			// They do no harm: the host serves, and reaches the owner of the alias.
			serveEcho(t, w.a, ":80")
			serveEcho(t, w.b, ":80")
			if noTCX == "" { // the filter of old kernels stays, and fails open in a while
				echo(t, dial(t, w.client, netip.AddrPortFrom(w.a.Addr4(), port)), 1000)
			}
			echo(t, dial(t, w.a, netip.AddrPortFrom(w.b.Addr4(), port)), 1000)
			echo(t, dial(t, w.a, netip.AddrPortFrom(w.b.Addr6(), port)), 1000)

			e := startEngine(t, w.a, Config{Services: services(w.a), noTCX: noTCX != ""}, nil)
			e.net.Beat()
			echo(t, dial(t, w.client, netip.AddrPortFrom(w.a.Addr4(), port)), 1000)
			e.onlySYN(t)
			require.NoError(t, e.net.Close())
			require.NoError(t, e.queue.Close())
			after := dump(t, w.a)
			if noTCX != "" { // whether the qdisc was there before, nobody can tell
				after = slices.DeleteFunc(after, func(s string) bool { return s == "qdisc eth0 clsact" })
			}
			requireSame(t, before, after)
		})
	}
}

func TestRunRepairs(t *testing.T) {
	w := newWorld(t)
	e := startEngine(t, w.a, Config{Services: inEachMode(w.a)}, nil)
	require.NoError(t, e.net.SetAliases(addrs(w.b)))
	want := dump(t, w.a)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.net.Run(ctx) }()
	nl := w.a.Netlink()
	restored := func(why string) {
		t.Helper()
		require.Eventually(t, func() bool { return slices.Equal(want, dump(t, w.a)) }, limit, 20*time.Millisecond, why)
	}

	for _, f := range families {
		rules, err := nl.RuleList(f.id)
		require.NoError(t, err)
		for _, r := range rules {
			if r.Protocol == protocol {
				require.NoError(t, nl.RuleDel(&r))
			}
		}
	}
	restored("rules removed")

	link, err := nl.LinkByName("carom0")
	require.NoError(t, err)
	require.NoError(t, nl.AddrDel(link, &netlink.Addr{IPNet: hostNet(w.b.Addr4())}))
	restored("address removed")
	require.NoError(t, nl.LinkSetDown(link))
	require.NoError(t, nl.LinkSetUp(link))
	restored("TUN was down")

	require.NoError(t, w.a.AddRoute(netip.MustParsePrefix("0.0.0.0/0"), w.b.Addr4()))
	require.Eventually(t, func() bool {
		return strings.Count(strings.Join(dump(t, w.a), "\n"), "Dst: 0.0.0.0/0") == 2
	}, limit, 20*time.Millisecond, "new routes are followed")
	cancel()
	require.NoError(t, <-done)
}

func TestProbe(t *testing.T) {
	lab.Require(t)
	require.NoError(t, Probe())
}
