package node_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/node"
)

// A configuration that cannot work is refused in words that name the field and what
// to do, and the host stays as it was.
func TestOpenRefuses(t *testing.T) {
	w := newWorld(t, false, "a")
	a := w.hosts["a"]
	foreign := netip.MustParseAddr("192.0.2.1")
	svc := func(change func(*node.Service)) func(*node.Config) {
		return func(c *node.Config) { change(&c.Services[0]) }
	}
	taken, err := a.ListenPacket("udp", "10.1.0.1:7000")
	require.NoError(t, err)
	defer taken.Close()
	before := dump(t, a.Host)
	for _, c := range []struct {
		name   string
		change func(*node.Config)
		words  []string
	}{
		{"no address", func(c *node.Config) { c.Addr = netip.Addr{} }, []string{"Addr", "give"}},
		{"loopback", func(c *node.Config) { c.Addr = netip.MustParseAddr("127.0.0.1") }, []string{"Addr", "127.0.0.1", "give"}},
		{"link-local", func(c *node.Config) { c.Addr = netip.MustParseAddr("fe80::1%eth0") }, []string{"Addr", "fe80::1", "give"}},
		{"foreign address", func(c *node.Config) { c.Addr, c.Services[0].Addrs = foreign, nil }, []string{"Addr", "192.0.2.1", "give"}},
		{"long ID", func(c *node.Config) { c.ID = strings.Repeat("x", 65) }, []string{"ID", "1 to 64"}},
		{"no services", func(c *node.Config) { c.Services = nil }, []string{"Services", "give"}},
		{"service without a name", svc(func(s *node.Service) { s.Name = "" }), []string{"Services[0]", "Name", "give"}},
		{"service without a port", svc(func(s *node.Service) { s.Port = 0 }), []string{"web", "Port", "give"}},
		{"range that ends early", svc(func(s *node.Service) { s.PortEnd = 79 }), []string{"web", "PortEnd 79", "Port 80"}},
		{"protocol", svc(func(s *node.Service) { s.Proto = 1 }), []string{"web", "Proto", "TCP", "UDP"}},
		{"foreign address of a service", svc(func(s *node.Service) { s.Addrs = []netip.Addr{foreign} }), []string{"192.0.2.1", "Interface"}},
		{"group as address of a service", svc(func(s *node.Service) { s.Addrs = []netip.Addr{netip.MustParseAddr("224.0.0.1")} }),
			[]string{"web", "224.0.0.1", "unicast"}},
		{"weight of a service", svc(func(s *node.Service) { s.Weight = 1 << 16 }), []string{"web", "Weight 65536", "65535"}},
		{"two services of one name", func(c *node.Config) {
			c.Services = append(c.Services, node.Service{Name: service, Port: 81})
		}, []string{"web", "twice"}},
		{"two services on one port", func(c *node.Config) {
			c.Services = append(c.Services, node.Service{Name: "more", Port: 70, PortEnd: 90})
		}, []string{"web", "more", "port 80", "give"}},
		{"service on the tunnel's port", func(c *node.Config) {
			c.Services[0] = node.Service{Name: "dns", Proto: dpr.UDP, Port: 6000, PortEnd: 6100}
		}, []string{"dns", "TunnelPort", "6080"}},
		{"one port for two", func(c *node.Config) { c.TunnelPort, c.ReportPort = 7, 7 }, []string{"TunnelPort", "ReportPort", "give"}},
		{"tunnel port taken", func(c *node.Config) { c.TunnelPort = 7000 }, []string{"TunnelPort 7000", "10.1.0.1", "another process", "choose"}},
		{"report port taken", func(c *node.Config) { c.ReportPort = 7000 }, []string{"ReportPort 7000", "another process", "choose"}},
		{"report to nowhere", func(c *node.Config) { c.Report = []netip.AddrPort{{}} }, []string{"Report[0]", "give"}},
		{"report to no port", func(c *node.Config) { c.Report = []netip.AddrPort{netip.AddrPortFrom(foreign, 0)} }, []string{"Report[0]", "port", "give"}},
		{"short key", func(c *node.Config) { c.Keys[0].Secret = []byte("short") }, []string{"Keys", "key 1", "5 bytes", "16"}},
		{"key 0", func(c *node.Config) { c.Keys[0].ID = 0 }, []string{"Keys", "ID 0", "use 1 to 255"}},
		{"one key twice", func(c *node.Config) { c.Keys = append(c.Keys, c.Keys[0]) }, []string{"Keys", "two keys", "ID 1"}},
		{"period", func(c *node.Config) { c.Period = time.Millisecond }, []string{"Period 1ms", "50ms"}},
		{"weight", func(c *node.Config) { c.Weight = 1 << 16 }, []string{"Weight 65536", "65535"}},
		{"queues", func(c *node.Config) { c.Queues = 257 }, []string{"Queues 257", "256"}},
		{"flows", func(c *node.Config) { c.MaxFlows = -1 }, []string{"MaxFlows", "1 to "}},
		{"timeouts", func(c *node.Config) { c.Timeouts.UDP = -1 }, []string{"Timeouts", "udp", "between"}},
		{"interface", func(c *node.Config) { c.Interface = "nosuch" }, []string{"Interface", "nosuch", "give"}},
		{"alias prefix", func(c *node.Config) { c.AliasPrefixes = []netip.Prefix{{}} }, []string{"AliasPrefixes[0]", "give"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := a.role("").config()
			cfg.Logger = slog.New(slog.DiscardHandler)
			c.change(&cfg)
			var n *node.Node
			err := a.Do(func() (err error) {
				n, err = node.Open(cfg)
				return err
			})
			if n != nil { // Run is what takes it away
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				require.NoError(t, n.Run(ctx))
			}
			require.Error(t, err)
			t.Log(err)
			for _, word := range c.words {
				require.Contains(t, err.Error(), word)
			}
			requireSame(t, before, dump(t, a.Host))
		})
	}
}

// Where this process lacks a capability Open says which one, and what works without
// it; where it can do without, it does.
func TestOpenWithoutCapabilities(t *testing.T) {
	w := newWorld(t, false, "a")
	a := w.hosts["a"]
	a.serve(t, port)
	before := dump(t, a.Host)
	// An ordinary user may neither open /dev/net/tun nor write settings.
	const files = unix.CAP_DAC_OVERRIDE
	for _, c := range []struct {
		name  string
		caps  []uintptr
		words []string
	}{
		{"none", nil, []string{"CAP_NET_ADMIN", "CAP_BPF", "/dev/net/tun", "CAP_NET_RAW", "without it"}},
		{"no CAP_BPF", []uintptr{files, unix.CAP_NET_ADMIN, unix.CAP_NET_RAW}, []string{"CAP_BPF", "without it no packet is captured"}},
		{"no CAP_NET_ADMIN", []uintptr{files, unix.CAP_BPF, unix.CAP_NET_RAW}, []string{"CAP_NET_ADMIN", "without it nothing can be captured"}},
		{"no CAP_NET_RAW", []uintptr{files, unix.CAP_NET_ADMIN, unix.CAP_BPF, unix.CAP_PERFMON}, []string{"CAP_NET_RAW", "all else works", ready}},
	} {
		t.Run(c.name, func(t *testing.T) {
			said := a.unprivileged(t, c.caps)
			t.Log(said)
			for _, word := range c.words {
				require.Contains(t, said, word)
			}
			requireSame(t, before, dump(t, a.Host))
		})
	}
}

// What the kernel has against plain servers is in the log.
func TestOpenWarnsOfUnsuitedServers(t *testing.T) {
	w := newWorld(t, false, "a")
	a := w.hosts["a"]
	require.NoError(t, a.SetSysctl("net.ipv4.ip_local_port_range", "32768 65535"))
	cfg := a.role("").config()
	cfg.Servers = []node.Server{{ID: "plain", Services: map[string][]netip.AddrPort{
		service: {netip.MustParseAddrPort("10.1.0.255:80")},
	}}}
	var log bytes.Buffer
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	var n *node.Node
	require.NoError(t, a.Do(func() (err error) {
		n, err = node.Open(cfg)
		return err
	}))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, n.Run(ctx))
	require.Contains(t, log.String(), "net.ipv4.ip_local_reserved_ports=61000-65534")
	require.Contains(t, log.String(), "at=10.1.0.255:80")
}
