package hostnet

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	nlsocket "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr/tun"
	"github.com/carom-dpr/carom/internal/lab"
)

// redirecting is a world whose host a hands everything to b, which has its alias.
func redirecting(t *testing.T) (w *world, a, b *engine) {
	w = newWorld(t)
	b = startEngine(t, w.b, Config{Services: services(w.b)}, nil)
	a = startEngine(t, w.a, Config{Services: services(w.a)}, func() *tun.Queue { return b.queue })
	require.NoError(t, b.net.SetAliases(addrs(w.a)))
	a.net.Beat()
	b.net.Beat()
	return w, a, b
}

func TestAliasServesRedirectedConnections(t *testing.T) {
	for i, family := range []string{"IPv4", "IPv6"} {
		t.Run(family, func(t *testing.T) {
			w, a, b := redirecting(t)
			serveEcho(t, w.b, ":80")
			dialled := netip.AddrPortFrom(addrs(w.a)[i], port)
			c := dial(t, w.client, dialled)
			info := tcpInfo(t, c)
			const timestamps = 12 // bytes of options that each segment carries
			require.Equal(t, 1500-defaultOverhead-families[i].headers-timestamps, int(info.Snd_mss),
				"the server must announce a segment size that leaves room for the tunnel")
			echo(t, c, 200_000)
			require.Equal(t, dialled, addrPort(c.RemoteAddr()))
			seen := a.take()
			super := func(p gopacket.Packet) bool { return len(p.Data()) > 1500 }
			require.True(t, slices.ContainsFunc(seen, super), "super-frames arrive whole")
			for _, p := range seen {
				require.Equal(t, dialled.Addr().String(), p.NetworkLayer().NetworkFlow().Dst().String(), "answers do not pass the entry host")
			}
			require.Empty(t, b.take(), "answers leave through the network interface")

			// The client still knows the address by its owner's MAC.
			require.Equal(t, mac(t, w.a), neighbour(t, w.client, dialled.Addr()))
			finish(t, c)
		})
	}
}

func TestAliasDoesNotStealTheAddress(t *testing.T) {
	for i, family := range []string{"IPv4", "IPv6"} {
		t.Run(family, func(t *testing.T) {
			w, _, b := redirecting(t)
			// Not a service of a, so a itself must answer; b's server must not.
			owner := netip.AddrPortFrom(addrs(w.a)[i], 8080)
			serveEcho(t, w.a, owner.String())
			c := dial(t, w.b, owner)
			echo(t, c, 1000)
			require.Equal(t, addrs(w.b)[i], addrPort(c.LocalAddr()).Addr(), "the alias is no source of b's own connections")
			require.Empty(t, b.take())
		})
	}
}

// A host of the cluster that dials another may get itself as the server.
func TestHairpin(t *testing.T) {
	for i, family := range []string{"IPv4", "IPv6"} {
		t.Run(family, func(t *testing.T) {
			w, a, _ := redirecting(t)
			serveEcho(t, w.b, ":80")
			c := dial(t, w.b, netip.AddrPortFrom(addrs(w.a)[i], port))
			echo(t, c, 100_000)
			require.NotEmpty(t, a.take())
		})
	}
}

// While an alias is being added it is in the table local for an instant.
func TestNobodyAnswersARPForAnAlias(t *testing.T) {
	w := newWorld(t)
	e := startEngine(t, w.b, Config{Services: services(w.b)}, nil)
	nobody := netip.MustParseAddr("10.1.0.77")
	link := openLink(t, w.client, unix.ETH_P_ARP)
	request := func(a netip.Addr) {
		own, err := net.ParseMAC(mac(t, w.client))
		require.NoError(t, err)
		link.send(t, &layers.Ethernet{SrcMAC: own, DstMAC: layers.EthernetBroadcast, EthernetType: layers.EthernetTypeARP},
			&layers.ARP{
				AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4,
				Operation: layers.ARPRequest, SourceHwAddress: own, SourceProtAddress: w.client.Addr4().AsSlice(),
				DstHwAddress: make([]byte, 6), DstProtAddress: a.AsSlice(),
			})
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				request(nobody)
			}
		}
	}()
	for range 50 {
		require.NoError(t, e.net.SetAliases([]netip.Addr{nobody}))
		require.NoError(t, e.net.SetAliases(nil))
	}
	require.NoError(t, e.net.SetAliases([]netip.Addr{nobody}))
	close(stop)
	<-stopped
	request(w.b.Addr4()) // is answered after all of them
	for {
		arp, ok := link.receive(t).Layer(layers.LayerTypeARP).(*layers.ARP)
		require.True(t, ok)
		if arp.Operation != layers.ARPReply {
			continue
		}
		require.Equal(t, w.b.Addr4().String(), net.IP(arp.SourceProtAddress).String())
		break
	}
	ignore, err := w.b.Sysctl("net.ipv4.conf.eth0.arp_ignore")
	require.NoError(t, err)
	require.Equal(t, "0", ignore)
}

func TestSetAliases(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, w.b.AddRoute(netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr("10.1.0.254")))
	e := startEngine(t, w.b, Config{
		Services:      services(w.b),
		AliasPrefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd01::/64")},
	}, nil)
	empty := dump(t, w.b)
	good := []netip.Addr{w.a.Addr4(), w.a.Addr6(), netip.MustParseAddr("10.1.9.9")}
	require.NoError(t, e.net.SetAliases(good))
	full := dump(t, w.b)
	require.NotEqual(t, empty, full)
	require.NoError(t, e.net.SetAliases(good))
	requireSame(t, full, dump(t, w.b), "setting the same again changes nothing")

	for _, c := range []struct{ addr, reason string }{
		{"10.1.0.3", "an address of this host"},
		{"fd01::3", "an address of this host"},
		{"::ffff:10.1.0.3", "an address of this host"},
		{"10.1.0.254", "a gateway"},
		{"192.0.2.1", "outside AliasPrefixes"},
		{"127.0.0.1", "not a global unicast address"},
		{"fe80::1", "not a global unicast address"},
		{"224.0.0.1", "not a global unicast address"},
	} {
		err := e.net.SetAliases(append(good, netip.MustParseAddr(c.addr)))
		require.ErrorContains(t, err, "refused: "+c.reason, c.addr)
		require.ErrorContains(t, err, netip.MustParseAddr(c.addr).Unmap().String())
		requireSame(t, full, dump(t, w.b), "the others are set")
	}
	require.NoError(t, e.net.SetAliases(good[:1]))
	require.NoError(t, e.net.SetAliases(nil))
	requireSame(t, empty, dump(t, w.b))
}

// Answers from an alias must go where the main table says, whatever it holds, and
// a table that is right must be left alone, or Run would never come to rest.
func TestEveryKindOfRouteIsRepeated(t *testing.T) {
	w := newWorld(t)
	nl := w.b.Netlink()
	eth0, err := nl.LinkByName("eth0")
	require.NoError(t, err)
	index := eth0.Attrs().Index
	dst := func(s string) *net.IPNet { return prefixNet(netip.MustParsePrefix(s)) }
	hops := func(a, b string) []*netlink.NexthopInfo {
		return []*netlink.NexthopInfo{{LinkIndex: index, Gw: net.ParseIP(a)}, {LinkIndex: index, Gw: net.ParseIP(b), Hops: 2}}
	}
	for _, r := range []netlink.Route{
		{Dst: dst("0.0.0.0/0"), Gw: net.ParseIP("10.1.0.254")},
		{Dst: dst("0.0.0.0/0"), Gw: net.ParseIP("10.1.0.253"), Priority: 100},
		{Dst: dst("198.51.100.0/24"), MultiPath: hops("10.1.0.251", "10.1.0.252")},
		{Dst: dst("198.51.101.0/24"), Type: unix.RTN_BLACKHOLE},
		{Dst: dst("198.51.102.0/24"), Type: unix.RTN_UNREACHABLE, Priority: 7},
		{Dst: dst("198.51.103.0/24"), Gw: net.ParseIP("192.0.2.1"), LinkIndex: index, Flags: int(netlink.FLAG_ONLINK)},
		{Dst: dst("198.51.104.0/24"), Gw: net.ParseIP("10.1.0.254"), MTU: 1280},
		{Dst: dst("198.51.105.0/24"), Gw: net.ParseIP("10.1.0.254"), AdvMSS: 600, Src: net.ParseIP("10.1.0.3")},
		{Dst: dst("198.51.106.0/24"), Gw: net.ParseIP("10.1.0.254"), Tos: 16, InitCwnd: 20, MTU: 1400, MTULock: true},
		{Dst: dst("::/0"), Gw: net.ParseIP("fd01::fe")},
		{Dst: dst("2001:db8:1::/48"), MultiPath: hops("fd01::f1", "fd01::f2")},
		{Dst: dst("2001:db8:2::/48"), Type: unix.RTN_BLACKHOLE},
		{Dst: dst("2001:db8:3::/48"), Gw: net.ParseIP("fe80::1"), LinkIndex: index, Priority: 5, MTU: 1300},
	} {
		require.NoError(t, nl.RouteAdd(&r), "%v", r)
	}
	e := startEngine(t, w.b, Config{Services: services(w.b)}, nil)
	require.NoError(t, e.net.SetAliases(addrs(w.a)))
	for _, f := range families {
		var tables [2][]string
		for i, table := range []int{unix.RT_TABLE_MAIN, defaultTable + 1} {
			routes, err := e.net.routes(f.id, table)
			require.NoError(t, err)
			for _, r := range routes {
				mss := r.AdvMSS
				r.Table, r.Protocol, r.AdvMSS = 0, 0, 0
				tables[i] = append(tables[i], fmt.Sprint(r, r.MTU, r.Priority, r.Tos, r.Type, r.InitCwnd))
				want := 1500
				if r.MTU > 0 {
					want = r.MTU
				}
				want -= defaultOverhead + f.headers
				switch {
				case table == unix.RT_TABLE_MAIN || r.Type != unix.RTN_UNICAST:
				case r.Dst.String() == "198.51.105.0/24":
					require.Equal(t, 600, mss, "a smaller size than ours stays")
				default:
					require.Equal(t, want, mss, "%v", r)
				}
			}
		}
		require.ElementsMatch(t, tables[0], tables[1])
	}

	var notices *nlsocket.NetlinkSocket
	require.NoError(t, w.b.Do(func() (err error) {
		notices, err = nlsocket.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
		return err
	}))
	defer notices.Close()
	require.NoError(t, e.net.SetAliases(addrs(w.a)))
	last := netlink.Route{Dst: dst("203.0.113.0/24"), Gw: net.ParseIP("10.1.0.254")}
	require.NoError(t, nl.RouteAdd(&last))
	messages, _, err := notices.Receive()
	require.NoError(t, err)
	require.Contains(t, string(messages[0].Data), string([]byte{203, 0, 113, 0}), "the first change seen is the one made after")
}

func tcpInfo(t *testing.T, c *net.TCPConn) (info *unix.TCPInfo) {
	t.Helper()
	raw, err := c.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	}))
	require.NoError(t, err)
	return info
}

func mac(t *testing.T, h *lab.Host) string {
	t.Helper()
	link, err := h.Netlink().LinkByName("eth0")
	require.NoError(t, err)
	return link.Attrs().HardwareAddr.String()
}

// neighbour returns the link address that a host has for an address.
func neighbour(t *testing.T, h *lab.Host, a netip.Addr) string {
	t.Helper()
	list, err := h.Netlink().NeighList(0, netlink.FAMILY_ALL)
	require.NoError(t, err)
	for _, n := range list {
		if addrOf(n.IP) == a {
			return n.HardwareAddr.String()
		}
	}
	return ""
}

func prefixNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
