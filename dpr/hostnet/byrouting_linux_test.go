package hostnet

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr/tun"
)

// Connections that a host serves itself go through the engine, too, and nothing else.
func TestByRoutingLocal(t *testing.T) {
	w := newWorld(t)
	e := startEngine(t, w.a, Config{Services: services(w.a), ByRouting: true}, nil)
	require.True(t, e.net.ByRouting())
	serveEcho(t, w.a, netip.AddrPortFrom(w.a.Addr4(), port).String()) // bound while captured

	serveEcho(t, w.a, ":8080")
	echo(t, dial(t, w.client, netip.AddrPortFrom(w.a.Addr4(), 8080)), 10_000)
	echo(t, dial(t, w.client, netip.AddrPortFrom(w.a.Addr6(), 8080)), 10_000)
	require.Empty(t, e.take(), "no service")
	echo(t, dial(t, w.a, netip.AddrPortFrom(w.a.Addr4(), port)), 10_000)
	require.Empty(t, e.take(), "not from the network")

	c := dial(t, w.client, netip.AddrPortFrom(w.a.Addr4(), port))
	echo(t, c, 200_000)
	finish(t, c)
	seen := tcpFlags(t, e.take())
	require.Equal(t, "S", seen[0])
	require.Greater(t, len(seen), 3, "not only the SYN")
}

func TestByRoutingRedirects(t *testing.T) {
	for name, modes := range map[string][]Service{"direct": nil, "rewritten": {}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			served := services(w.b)
			if modes != nil {
				served = rewritten(w.b)
			}
			b := startEngine(t, w.b, Config{Services: served, ByRouting: true}, nil)
			a := startEngine(t, w.a, Config{Services: services(w.a), ByRouting: true}, func() *tun.Queue { return b.queue })
			require.NoError(t, b.net.SetAliases(addrs(w.a)))
			require.NoError(t, a.net.SetAliases(addrs(w.b))) // as peers have each other's
			serveEcho(t, w.b, ":80")
			echo(t, dial(t, w.client, netip.AddrPortFrom(w.a.Addr4(), port)), 300_000)
			require.NotEmpty(t, a.take())
			if modes != nil {
				answerDatagrams(t, w.b, ":1003")
				ask(t, w.client, netip.AddrPortFrom(w.a.Addr4(), 1003), 1, 1000)
				require.NotEmpty(t, a.take())
			}
			echo(t, dial(t, w.b, netip.AddrPortFrom(w.a.Addr4(), port)), 10_000) // hairpin
			require.NotEmpty(t, a.take())
		})
	}
}

// Linux refuses rules for a range of ports that ends at the last one.
func TestByRoutingLastPort(t *testing.T) {
	w := newWorld(t)
	err := w.a.Do(func() error {
		dev, err := tun.Open(tun.Config{Name: "carom0"})
		require.NoError(t, err)
		defer dev.Close()
		_, err = Open(Config{
			TUN: dev.Name, ByRouting: true,
			Services: []Service{{Protocol: protocolTCP, Port: 60000, PortEnd: 65535, Addrs: addrs(w.a)}},
		})
		return err
	})
	require.ErrorContains(t, err, "65534: end the service's range there")
}

// An interface that forwards for the engine's sake forwards nothing else.
func TestByRoutingForwardsNothingElse(t *testing.T) {
	w := newWorld(t)
	startEngine(t, w.a, Config{Services: services(w.a), ByRouting: true}, nil)
	beyond := netip.MustParseAddr("198.51.100.1")
	require.NoError(t, w.client.AddRoute(netip.PrefixFrom(beyond, 32), w.a.Addr4()))
	require.NoError(t, w.a.AddRoute(netip.PrefixFrom(beyond, 32), w.b.Addr4()))
	link := openLink(t, w.b, unix.ETH_P_IP)
	send(t, w.client, packet(t, w.client.Addr4(), beyond, 253, payload([]byte("forwarded?"))))
	send(t, w.client, packet(t, w.client.Addr4(), w.b.Addr4(), 253, payload([]byte("direct"))))
	for {
		p := link.receive(t).NetworkLayer()
		require.NotEqual(t, beyond.String(), p.NetworkFlow().Dst().String())
		if p.NetworkFlow().Dst().String() == w.b.Addr4().String() {
			return
		}
	}
}

func TestByRoutingLeavesNothing(t *testing.T) {
	w := newWorld(t)
	openTUN(t, w.a, "carom0")
	before := dump(t, w.a)
	n, err := open(w.a, Config{TUN: "carom0", Services: rewritten(w.a), ByRouting: true})
	require.NoError(t, err)
	require.NoError(t, n.SetAliases(addrs(w.b)))
	full := dump(t, w.a)
	require.NotEqual(t, before, full)
	require.NoError(t, n.SetServices(services(w.a)[:1]))
	require.NotEqual(t, full, dump(t, w.a))
	require.NoError(t, n.SetServices(rewritten(w.a)))
	requireSame(t, full, dump(t, w.a))
	_, err = n.Stats()
	require.NoError(t, err)
	n.Beat()
	require.NoError(t, n.Close())
	requireSame(t, before, dump(t, w.a))
}

func TestByRoutingAfterKill(t *testing.T) {
	w := newWorld(t)
	before := dump(t, w.a)
	child := startChild(t, w.a, "routing")
	require.NoError(t, child.Process.Kill())
	require.Error(t, child.Wait())
	require.NotEqual(t, before, dump(t, w.a))
	serveEcho(t, w.a, ":80")
	echo(t, dial(t, w.client, netip.AddrPortFrom(w.a.Addr4(), port)), 1000) // the kernel serves
	for _, byRouting := range []bool{true, false} {
		e := startEngine(t, w.a, Config{Services: services(w.a), ByRouting: byRouting}, nil)
		require.Equal(t, byRouting, len(e.net.fences()) > 0, "nothing else is forwarded")
		e.net.Beat()
		echo(t, dial(t, w.client, netip.AddrPortFrom(w.a.Addr4(), port)), 1000)
		require.NotEmpty(t, e.take())
		require.NoError(t, e.net.Close())
		require.NoError(t, e.queue.Close())
	}
	require.NoError(t, w.a.Do(func() error {
		s, err := openSetting(ipv4Setting("eth0", "forwarding"))
		require.Equal(t, "0", s.old, "as it was before")
		return errors.Join(err, s.file.Close())
	}))
	// What else the dead one changed of settings nobody can tell.
	settings := func(s string) bool { return len(s) > 0 && s[0] == '/' }
	requireSame(t, slices.DeleteFunc(before, settings), slices.DeleteFunc(dump(t, w.a), settings))
}

// Without BPF for tc Open captures by routing by itself.
func TestByRoutingWhereBPFCannot(t *testing.T) {
	w := newWorld(t)
	openTUN(t, w.a, "carom0")
	before := dump(t, w.a)
	cfg, err := Config{TUN: "carom0", Services: services(w.a)}.withDefaults()
	require.NoError(t, err)
	cfg.attachError = ebpf.ErrNotSupported
	n := newNet(cfg)
	require.NoError(t, w.a.Do(func() error {
		for _, step := range n.steps() {
			if err := step(); err != nil {
				return err
			}
		}
		return nil
	}))
	require.True(t, n.ByRouting())
	require.NoError(t, n.Close())
	requireSame(t, before, dump(t, w.a))
}
