package node_test

import (
	"crypto/sha256"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/gue"
	"github.com/carom-dpr/carom/internal/lab"
)

// overhead is what the tunnels of a world add to a packet: its cluster has a key.
func overhead(v6 bool) int { return gue.Overhead(v6, true) }

// headers is the length of IP and TCP headers without options.
func headers(v6 bool) int {
	if v6 {
		return 60
	}
	return 40
}

const ethernet = 1500

// Networks of a world with routers: near is the one that all hosts are on otherwise.
const (
	near byte = 1
	far  byte = 3
)

func at(network, last byte, v6 bool) netip.Prefix {
	if v6 {
		return netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 1: network, 15: last}), 64)
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, network, 0, last}), 24)
}

func everywhere(v6 bool) netip.Prefix {
	if v6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

// newRoutedWorld makes a world of a client and the hosts a and b, of which those
// named are far away: behind two routers, between which is a link of the given MTU.
func newRoutedWorld(t *testing.T, v6 bool, link int, away ...string) *world {
	t.Helper()
	lab.Require(t)
	l, err := lab.New(lab.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	const middle, gateway, nearEnd, farEnd = 2, 254, 1, 2
	segments := map[byte]string{near: lab.LAN, far: "far"}
	route := func(h *lab.Host, to netip.Prefix, via netip.Prefix) {
		require.NoError(t, h.AddRoute(to, via.Addr()))
	}
	for _, r := range []struct{ network, other, end, otherEnd byte }{
		{near, far, nearEnd, farEnd},
		{far, near, farEnd, nearEnd},
	} {
		h, err := l.AddRouter("r"+segments[r.network],
			lab.Port{Segment: segments[r.network], Addrs: []netip.Prefix{at(r.network, gateway, v6)}},
			lab.Port{Segment: "middle", Addrs: []netip.Prefix{at(middle, r.end, v6)}, MTU: link})
		require.NoError(t, err)
		route(h, at(r.other, 0, v6), at(middle, r.otherEnd, v6))
	}
	w := &world{lab: l, hosts: make(map[string]*host)}
	for i, name := range []string{"client", "a", "b"} {
		network := near
		if slices.Contains(away, name) {
			network = far
		}
		addr := at(network, byte(i+1), v6)
		h, err := l.AddNode(name, lab.Port{Segment: segments[network], Addrs: []netip.Prefix{addr}})
		require.NoError(t, err)
		route(h, everywhere(v6), at(network, gateway, v6))
		if name == "client" {
			w.client = h
			continue
		}
		w.hosts[name] = &host{Host: h, w: w, addr: addr.Addr()}
		w.reports = append(w.reports, netip.AddrPortFrom(addr.Addr(), 6082))
	}
	return w
}

// limitRoute gives h a route of the given MTU to the address, which is on its link.
func limitRoute(t *testing.T, h *lab.Host, to netip.Addr, mtu int) {
	t.Helper()
	link, err := h.Netlink().LinkByName("eth0")
	require.NoError(t, err)
	require.NoError(t, h.Netlink().RouteReplace(&netlink.Route{
		Dst:       &net.IPNet{IP: to.AsSlice(), Mask: net.CIDRMask(to.BitLen(), to.BitLen())},
		LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK, MTU: mtu,
	}))
}

// redirecting starts servers and nodes on a and b; a sends all its connections to b.
// It returns b's server.
func (w *world) redirecting(t *testing.T, mode dpr.ReplyMode) *server {
	t.Helper()
	a, b := w.hosts["a"], w.hosts["b"]
	a.serve(t, port)
	s := b.serve(t, port)
	a.open(t, a.role("b").config())
	cfg := b.role("").config()
	cfg.Services[0].Reply = mode
	b.open(t, cfg)
	w.await(t)
	return s
}

// end returns the server's end of the client's connection.
func (s *server) end(t *testing.T, c *conn) *conn {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for served := range s.conns {
		if served.RemoteAddr().String() == c.LocalAddr().String() {
			return &conn{TCPConn: served.(*net.TCPConn)}
		}
	}
	require.Fail(t, "the server has no such connection")
	return nil
}

// pathMTU is what the kernel of this end takes for the MTU of the path to the other.
func (c *conn) pathMTU(t *testing.T, v6 bool) (mtu int) {
	t.Helper()
	raw, err := c.SyscallConn()
	require.NoError(t, err)
	level, name := unix.SOL_IP, unix.IP_MTU
	if v6 {
		level, name = unix.SOL_IPV6, unix.IPV6_MTU
	}
	var inner error
	require.NoError(t, raw.Control(func(fd uintptr) { mtu, inner = unix.GetsockoptInt(int(fd), level, name) }))
	require.NoError(t, inner)
	return mtu
}

// tooBigs returns how many ICMP errors about a packet's length the host has received;
// those of IPv4 are not told from other unreachable destinations.
func tooBigs(t *testing.T, h *lab.Host, v6 bool) (n uint64) {
	t.Helper()
	if !v6 {
		return snmp(t, h, "Icmp:", "InDestUnreachs")
	}
	for line := range strings.Lines(readNetwork(t, h, "snmp6")) {
		if words := strings.Fields(line); words[0] == "Icmp6InPktTooBigs" {
			n, err := strconv.ParseUint(words[1], 10, 64)
			require.NoError(t, err)
			return n
		}
	}
	require.Fail(t, "no Icmp6InPktTooBigs")
	return 0
}

// snmp returns a counter of the host's IPv4.
func snmp(t *testing.T, h *lab.Host, group, name string) uint64 {
	t.Helper()
	var names []string
	for line := range strings.Lines(readNetwork(t, h, "snmp")) {
		words := strings.Fields(line)
		if words[0] != group {
			continue
		}
		if names == nil {
			names = words
			continue
		}
		n, err := strconv.ParseUint(words[slices.Index(names, name)], 10, 64)
		require.NoError(t, err)
		return n
	}
	require.Fail(t, "no counter", "%s %s", group, name)
	return 0
}

// maxStall is how long a transfer may stand still: far longer than it takes to notice a
// path, and less than until the eighth repetition of a packet that does not fit it.
const maxStall = 20 * time.Second

// Redirected transfers over paths of all kinds arrive intact and do not stall.
func TestPaths(t *testing.T) {
	const size = 16 * mebibyte
	for name, path := range map[string]struct {
		make func(t *testing.T, v6 bool) *world
		// By v6: the MTU of the tunnel, and what the client and the serving host take
		// for that of the path to the other at last.
		tunnel, upload, download func(v6 bool) int
		// And where its answers are tunnelled.
		tunnelled func(v6 bool) int
		// The client hears of the path from the entry host, or from a router.
		told, routed bool
	}{
		"1500 everywhere": {
			make:     func(t *testing.T, v6 bool) *world { return newWorld(t, v6, "a", "b") },
			tunnel:   less(ethernet),
			upload:   exactly(ethernet),
			download: exactly(ethernet), tunnelled: less(ethernet),
		},
		"serving host on 1280": {
			make: func(t *testing.T, v6 bool) *world {
				w := newWorld(t, v6, "a", "b")
				require.NoError(t, w.hosts["b"].SetMTU("eth0", 1280))
				limitRoute(t, w.hosts["a"].Host, w.hosts["b"].addr, 1280)
				return w
			},
			tunnel:   less(1280),
			upload:   exactly(ethernet),
			download: exactly(1280), tunnelled: atLeast1280(less(1280)),
		},
		"route to the peer of 1280": {
			make: func(t *testing.T, v6 bool) *world {
				w := newWorld(t, v6, "a", "b")
				limitRoute(t, w.hosts["a"].Host, w.hosts["b"].addr, 1280)
				return w
			},
			tunnel:   less(1280),
			upload:   atLeast1280(less(1280)),
			download: exactly(ethernet), tunnelled: less(ethernet),
			told: true,
		},
		"routers with 1400 before the client": {
			make:     func(t *testing.T, v6 bool) *world { return newRoutedWorld(t, v6, 1400, "client") },
			tunnel:   less(ethernet),
			upload:   exactly(1400),
			download: exactly(1400), tunnelled: exactly(1400),
			routed: true,
		},
		"routers with 1400 before the serving host": {
			make:     func(t *testing.T, v6 bool) *world { return newRoutedWorld(t, v6, 1400, "b") },
			tunnel:   less(1400),
			upload:   atLeast1280(less(1400)),
			download: exactly(1400), tunnelled: less(1400),
			told: true,
		},
	} {
		eachWayBack(t, name, func(t *testing.T, v6 bool, mode dpr.ReplyMode) {
			w := path.make(t, v6)
			server := w.redirecting(t, mode)
			a := w.hosts["a"]
			c := servedBy(t, w.client, a.at(port), "b")
			end := server.end(t, c)

			began := time.Now()
			c.upload(t, size)
			logTransfer(t, "upload", size, time.Since(began), time.Duration(server.stalled.Swap(0)), c.info(t))
			began = time.Now()
			stalled := c.downloadWatched(t, size)
			logTransfer(t, "download", size, time.Since(began), stalled, end.info(t))

			status := a.node.Status()
			t.Logf("tunnel MTU %d, path MTUs: client %d, server %d; engine's errors %d, received by client %d",
				status.MTU["b"], c.pathMTU(t, v6), end.pathMTU(t, v6), status.Engine.Errors, tooBigs(t, w.client, v6))
			require.Equal(t, path.tunnel(v6), status.MTU["b"])
			require.Equal(t, path.upload(v6), c.pathMTU(t, v6))
			download := path.download
			if mode == dpr.ReplyTunnelled {
				download = path.tunnelled
			}
			require.Equal(t, download(v6), end.pathMTU(t, v6))
			require.Equal(t, path.told, status.Engine.Errors > 0)
			if !path.routed {
				require.Equal(t, status.Engine.Errors, tooBigs(t, w.client, v6), "each error of the engine comes to the client")
			}
		})
	}
}

// waysBack are the reply modes that need the same servers.
var waysBack = []dpr.ReplyMode{dpr.ReplyDirect, dpr.ReplyTunnelled}

// eachWayBack runs a test in each family for answers that leave directly, and for those
// that are tunnelled.
func eachWayBack(t *testing.T, name string, test func(t *testing.T, v6 bool, mode dpr.ReplyMode)) {
	for _, mode := range waysBack {
		t.Run(name+", "+mode.String(), func(t *testing.T) {
			eachFamily(t, func(t *testing.T, v6 bool) { test(t, v6, mode) })
		})
	}
}

// A path that becomes narrower under a connection does not stop it, and the tunnel
// becomes as wide again as the path does.
func TestPathChanges(t *testing.T) {
	const size = 16 * mebibyte
	eachFamily(t, func(t *testing.T, v6 bool) {
		w := newWorld(t, v6, "a", "b")
		server := w.redirecting(t, dpr.ReplyDirect)
		a, b := w.hosts["a"], w.hosts["b"]
		c := servedBy(t, w.client, a.at(port), "b")
		for _, mtu := range []int{1300, 1280, ethernet} {
			limitRoute(t, a.Host, b.addr, mtu)
			began := time.Now()
			c.upload(t, size)
			logTransfer(t, "upload", size, time.Since(began), time.Duration(server.stalled.Swap(0)), c.info(t))
			eventually(t, "the node has noticed", func() bool {
				return a.node.Status().MTU["b"] == mtu-overhead(v6)
			})
		}
	})
}

func less(link int) func(bool) int { return func(v6 bool) int { return link - overhead(v6) } }

func exactly(mtu int) func(bool) int { return func(bool) int { return mtu } }

// atLeast1280 is an MTU that an ICMP error can name.
func atLeast1280(mtu func(bool) int) func(bool) int {
	return func(v6 bool) int {
		if v6 {
			return max(mtu(v6), 1280)
		}
		return mtu(v6)
	}
}

// logTransfer reports a transfer and fails the test if it stalled.
func logTransfer(t *testing.T, what string, size int, took, stalled time.Duration, sender *unix.TCPInfo) {
	t.Helper()
	t.Logf("%s of %d MiB in %v, longest gap %v; of %d segments %d retransmitted, MSS %d",
		what, size/mebibyte, took.Round(time.Millisecond), stalled.Round(time.Millisecond),
		sender.Segs_out, sender.Total_retrans, sender.Snd_mss)
	require.Less(t, stalled, maxStall)
}

// downloadWatched is download. It returns the longest time that it stood still.
func (c *conn) downloadWatched(t *testing.T, size int64) time.Duration {
	t.Helper()
	require.NoError(t, c.ask(opDownload, size))
	sum, in := sha256.New(), watch(c)
	_, err := io.CopyN(sum, in, size)
	require.NoError(t, err)
	c.requireSum(t, sum.Sum(nil))
	return in.longest
}

// The serving host advertises segments that fit the tunnel to it, and its own clients
// full ones. The entry host changes no handshake, so what goes past it is full, too; what
// the serving host tunnels back fits the tunnel (A15).
func TestAdvertisedMSS(t *testing.T) {
	eachWayBack(t, "redirected", func(t *testing.T, v6 bool, mode dpr.ReplyMode) {
		w := newWorld(t, v6, "a", "b")
		// Without timestamps, a segment is as long as the other end's MSS option says.
		require.NoError(t, w.client.SetSysctl("net.ipv4.tcp_timestamps", "0"))
		server := w.redirecting(t, mode)
		full := uint32(ethernet - headers(v6))
		answers := full
		if mode == dpr.ReplyTunnelled {
			answers -= uint32(overhead(v6))
		}

		c := servedBy(t, w.client, w.hosts["a"].at(port), "b")
		require.Equal(t, full-uint32(overhead(v6)), c.info(t).Snd_mss, "redirected: MTU - overhead - headers")
		require.Equal(t, answers, server.end(t, c).info(t).Snd_mss, "redirected: the answers")

		c = servedBy(t, w.client, w.hosts["b"].at(port), "b")
		require.Equal(t, full, c.info(t).Snd_mss, "local")
		require.Equal(t, full, server.end(t, c).info(t).Snd_mss)
	})
}
