package hostnet

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/tun"
	"github.com/carom-dpr/carom/internal/lab"
)

// rewritten are the host's services with rewritten answers.
func rewritten(h *lab.Host) []Service {
	list := services(h)
	for i := range list {
		list[i].Reply = dpr.ReplyRewritten
	}
	return list
}

// redirectingRewritten is a world whose host a hands everything to b, which rewrites.
func redirectingRewritten(t *testing.T) (w *world, a, b *engine) {
	w = newWorld(t)
	b = startEngine(t, w.b, Config{Services: rewritten(w.b)}, nil)
	a = startEngine(t, w.a, Config{Services: services(w.a)}, func() *tun.Queue { return b.queue })
	require.NoError(t, b.net.SetAliases(addrs(w.a)))
	a.net.Beat()
	b.net.Beat()
	return w, a, b
}

// answerDatagrams serves UDP the plain way: on an unconnected socket that never asks
// which address it was asked at.
func answerDatagrams(t *testing.T, h *lab.Host, address string) {
	t.Helper()
	c, err := h.ListenPacket("udp", address)
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 1<<16)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = c.WriteTo(b[:n], from)
		}
	}()
	t.Cleanup(func() {
		c.Close()
		<-done
	})
}

// ask sends datagrams on a connected socket, which hears its peer's address alone,
// and requires each back.
func ask(t *testing.T, h *lab.Host, to netip.AddrPort, sizes ...int) {
	t.Helper()
	c, err := h.DialContext(t.Context(), "udp", to.String())
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(limit)))
	got := make([]byte, 1<<16)
	for _, size := range sizes {
		sent := []byte(strings.Repeat("x", size))
		_, err = c.Write(sent)
		require.NoError(t, err)
		n, err := c.Read(got)
		require.NoError(t, err)
		require.Equal(t, sent, got[:n])
	}
}

func TestRewrittenServesPlainUDPServers(t *testing.T) {
	for i, family := range []string{"IPv4", "IPv6"} {
		for _, bound := range []bool{false, true} {
			t.Run(family+map[bool]string{false: " wildcard", true: " bound"}[bound], func(t *testing.T) {
				w, a, b := redirectingRewritten(t)
				address := ":1003"
				if bound {
					address = netip.AddrPortFrom(addrs(w.b)[i], 1003).String()
				}
				answerDatagrams(t, w.b, address)
				ask(t, w.client, netip.AddrPortFrom(addrs(w.a)[i], 1003), 1, 1000, 4000)
				require.NotEmpty(t, a.take())
				require.Empty(t, b.take(), "answers leave through the network interface")
				ask(t, w.b, netip.AddrPortFrom(addrs(w.a)[i], 1003), 1, 1000) // hairpin
				ask(t, w.b, netip.AddrPortFrom(addrs(w.b)[i], 1003), 1, 1000) // not even that
			})
		}
	}
}

func TestRewrittenServesABoundTCPServer(t *testing.T) {
	for i, family := range []string{"IPv4", "IPv6"} {
		t.Run(family, func(t *testing.T) {
			w, a, b := redirectingRewritten(t)
			serveEcho(t, w.b, netip.AddrPortFrom(addrs(w.b)[i], port).String())
			dialled := netip.AddrPortFrom(addrs(w.a)[i], port)
			c := dial(t, w.client, dialled)
			const timestamps = 12 // bytes of options that each segment carries
			require.Equal(t, 1500-defaultOverhead-families[i].headers-timestamps, int(tcpInfo(t, c).Snd_mss))
			echo(t, c, 200_000)
			finish(t, c)
			require.NotEmpty(t, a.take())
			require.Empty(t, b.take())

			own := dial(t, w.b, dialled)
			echo(t, own, 100_000)
			finish(t, own)
			require.NotEmpty(t, a.take(), "hairpin")

			direct := dial(t, w.client, netip.AddrPortFrom(addrs(w.b)[i], port))
			echo(t, direct, 1000)
			require.Equal(t, 1500-families[i].headers-timestamps, int(tcpInfo(t, direct).Snd_mss), "only redirected connections announce less")
		})
	}
}

// A client that cannot be sent so long a segment says so to the dialled address; what
// the tunnel brings must reach the socket that is bound to another.
func TestRewrittenICMPErrors(t *testing.T) {
	w, _, _ := redirectingRewritten(t)
	dialled := netip.AddrPortFrom(w.a.Addr4(), 1003)
	c, err := w.b.ListenPacket("udp", netip.AddrPortFrom(w.b.Addr4(), 1003).String())
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(limit)))
	client, err := w.client.DialContext(t.Context(), "udp", dialled.String())
	require.NoError(t, err)
	_, err = client.Write([]byte("x"))
	require.NoError(t, err)
	b := make([]byte, 10)
	_, from, err := c.ReadFrom(b)
	require.NoError(t, err)
	require.NoError(t, client.Close())
	// Connected, so that the error has somewhere to go: this answer meets no socket.
	require.NoError(t, c.Close())
	var answer net.Conn
	require.NoError(t, w.b.Do(func() (err error) {
		own := net.UDPAddrFromAddrPort(netip.AddrPortFrom(w.b.Addr4(), 1003))
		answer, err = net.DialUDP("udp", own, from.(*net.UDPAddr))
		return err
	}))
	defer answer.Close()
	require.NoError(t, answer.SetDeadline(time.Now().Add(limit)))
	_, err = answer.Write([]byte("x"))
	require.NoError(t, err)
	_, err = answer.Read(b)
	require.ErrorContains(t, err, "connection refused")
}

// tables lists nftables' tables in a host, with the number of their chains and sets.
func tables(t *testing.T, h *lab.Host) map[string]int {
	t.Helper()
	all := make(map[string]int)
	require.NoError(t, h.Do(func() error {
		conn, err := nftables.New()
		require.NoError(t, err)
		list, err := conn.ListTables()
		require.NoError(t, err)
		for _, table := range list {
			sets, err := conn.GetSets(table)
			require.NoError(t, err)
			all[table.Name] = len(sets)
		}
		chains, err := conn.ListChains()
		for _, c := range chains {
			all[c.Table.Name]++
		}
		return err
	}))
	return all
}

func flushRuleset(t *testing.T, on *lab.Host) {
	t.Helper()
	require.NoError(t, on.Do(func() error {
		conn, err := nftables.New()
		require.NoError(t, err)
		conn.FlushRuleset()
		return conn.Flush()
	}))
}

func TestRewritingComesAndGoes(t *testing.T) {
	w := newWorld(t)
	openTUN(t, w.b, "carom0")
	before := dump(t, w.b)
	var log bytes.Buffer
	cfg := Config{TUN: "carom0", Services: rewritten(w.b), Log: slog.New(slog.NewTextHandler(&log, nil))}
	n, err := open(w.b, cfg)
	require.NoError(t, err)
	require.Empty(t, tables(t, w.b), "without an alias nothing is redirected here")
	const chains = 4
	require.NoError(t, n.SetAliases(addrs(w.a)))
	require.Equal(t, map[string]int{"carom_6080": chains + 2}, tables(t, w.b), "a set for each family")
	require.NoError(t, n.SetAliases(addrs(w.a)[:1]))
	one := map[string]int{"carom_6080": chains + 1}
	require.Equal(t, one, tables(t, w.b))
	require.Empty(t, log.String(), "nobody else removed it")

	flushRuleset(t, w.b)
	for range 2 {
		require.NoError(t, n.SetAliases(addrs(w.a)[:1]))
		require.Equal(t, one, tables(t, w.b), "what others remove is put back")
		require.Equal(t, 1, strings.Count(log.String(), "inet carom_6080"), "and said once")
	}
	require.NoError(t, n.SetServices(services(w.b)))
	require.Empty(t, tables(t, w.b))
	require.NoError(t, n.SetServices(rewritten(w.b)))
	require.Equal(t, one, tables(t, w.b))
	require.NoError(t, n.Close())
	require.Empty(t, tables(t, w.b))
	requireSame(t, before, dump(t, w.b))
	require.Equal(t, 1, strings.Count(log.String(), "inet carom_6080"))
}

// Run puts the table back as soon as somebody has flushed the ruleset.
func TestFlushedRulesetIsPutBack(t *testing.T) {
	w, _, b := redirectingRewritten(t)
	b.net.repairAfter = time.Hour // it must be told
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.net.Run(ctx) }()
	defer func() { cancel(); require.NoError(t, <-done) }()
	want := tables(t, w.b)
	require.NotEmpty(t, want)
	for range 3 {
		began := time.Now()
		flushRuleset(t, w.b)
		require.Eventually(t, func() bool { return maps.Equal(want, tables(t, w.b)) }, time.Minute, time.Millisecond)
		t.Logf("back after %v", time.Since(began))
	}
}

// requireNFT skips a test where the command nft is not installed.
func requireNFT(t *testing.T) {
	t.Helper()
	_, err := exec.LookPath("nft")
	switch {
	case err == nil:
	case os.Getenv("CAROM_MUST_RUN") == "1":
		t.Fatal(err)
	default:
		t.Skip(err)
	}
}

// Whoever keeps a firewall lists the whole ruleset, and saves and loads it, which a
// rule that nft cannot print would break.
func TestRewritingIsListedByNFT(t *testing.T) {
	requireNFT(t)
	w, _, _ := redirectingRewritten(t)
	var output []byte
	nft := func(in []byte, args ...string) {
		t.Helper()
		require.NoError(t, w.b.Do(func() (err error) {
			cmd := exec.Command("nft", args...)
			cmd.Stdin = bytes.NewReader(in)
			if output, err = cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("nft %s: %w: %s", args, err, output)
			}
			return nil
		}))
	}
	nft(nil, "list", "ruleset")
	ruleset := output
	for _, rule := range []string{"ip saddr @aliases4 tcp sport 80", "ip6 saddr @aliases6 tcp sport 80"} {
		require.Contains(t, string(ruleset), rule)
	}
	nft(ruleset, "--check", "--file", "-")
}

// The rules say no more than the narrowest of the routes allows.
func TestRewrittenMSSFollowsTheRoutes(t *testing.T) {
	w, a, b := redirectingRewritten(t)
	require.NoError(t, w.b.Netlink().RouteAdd(&netlink.Route{
		Dst: prefixNet(netip.MustParsePrefix("198.51.104.0/24")), Gw: w.client.Addr4().AsSlice(), MTU: 1280,
	}))
	require.NoError(t, b.net.SetAliases(addrs(w.a))) // Run does the same when it is told
	serveEcho(t, w.b, ":80")
	c := dial(t, w.client, netip.AddrPortFrom(w.a.Addr4(), port))
	const headers = 40 + 12 // with timestamps
	require.Equal(t, 1280-defaultOverhead-headers, int(tcpInfo(t, c).Snd_mss))
	echo(t, c, 10_000)
	require.NotEmpty(t, a.take())
}
