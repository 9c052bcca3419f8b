package rrdns

import (
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// start runs a server on the loopback interface.
func start(t testing.TB, cfg Config) (addr string, stop func()) {
	t.Helper()
	s := server(t, cfg)
	conn, listener, err := Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, conn, listener) }()
	return conn.LocalAddr().String(), func() {
		cancel()
		require.NoError(t, <-done)
	}
}

func TestGoResolver(t *testing.T) {
	defer goleak.VerifyNone(t)
	addr, stop := start(t, Config{Board: boardOf(t, time.Hour, 100, nil), Max: 100})
	defer stop()
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}}
	ips, err := r.LookupNetIP(t.Context(), "ip4", zone)
	require.NoError(t, err)
	require.Len(t, ips, 100, "by TCP")
	ips, err = r.LookupNetIP(t.Context(), "ip", zone)
	require.NoError(t, err)
	require.Len(t, ips, 200)
	_, err = r.LookupNetIP(t.Context(), "ip", "nobody."+zone)
	var failed *net.DNSError
	require.ErrorAs(t, err, &failed)
	require.True(t, failed.IsNotFound)
}

func TestDig(t *testing.T) {
	dig, err := exec.LookPath("dig")
	if err != nil && os.Getenv("CAROM_MUST_RUN") == "" {
		t.Skip("dig is not installed")
	}
	require.NoError(t, err)
	addr, stop := start(t, Config{Board: boardOf(t, time.Hour, 3, nil)})
	defer stop()
	host, port, _ := strings.Cut(addr, ":")
	for args, want := range map[string]string{
		"A":                    "198.51.100.1",
		"A +tcp":               "198.51.100.1",
		"AAAA +noedns":         "2001:db8::1",
		"A +edns=1 +noednsneg": "status: BADVERS",
		"A +dnssec":            "flags: do;",
		"SOA":                  "hostmaster.www.example.org.",
		"NS":                   "ns.www.example.org.",
		"A +cookie":            "status: NOERROR",
		"AXFR":                 "Transfer failed",
	} {
		out, err := exec.CommandContext(t.Context(), dig, append([]string{"@" + host, "-p", port, "+norec", zone}, strings.Fields(args)...)...).CombinedOutput()
		require.NoError(t, err, "%s: %s", args, out)
		require.Contains(t, string(out), want, args)
		require.NotContains(t, string(out), "Warning", args)
	}
}

func TestRunEnds(t *testing.T) {
	defer goleak.VerifyNone(t)
	s := server(t, Config{Board: board(t, 1, nil)})
	conn, listener, err := Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	require.NoError(t, err)
	conn.Close()
	require.ErrorIs(t, s.Run(t.Context(), conn, listener), errSocket)
	_, err = listener.Accept()
	require.ErrorIs(t, err, net.ErrClosed)

	conn, listener, err = Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, s.Run(ctx, conn, listener), "done before it began")
}

func TestConnections(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := limitConns(inner, 1)
	var clients []net.Conn
	for range 2 {
		c, err := net.Dial("tcp", inner.Addr().String())
		require.NoError(t, err)
		defer c.Close()
		clients = append(clients, c)
	}
	first, err := l.Accept()
	require.NoError(t, err)
	second := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			c.Close()
		}
		second <- err
	}()
	require.Empty(t, second)
	first.Close()
	first.Close()
	require.NoError(t, <-second)
	require.NoError(t, l.Close())
	_, err = l.Accept()
	require.Error(t, err)
	_ = clients
}

// BenchmarkLoopback counts queries over UDP on the loopback interface, client and
// server together.
func BenchmarkLoopback(b *testing.B) {
	addr, stop := start(b, Config{Board: boardOf(b, time.Hour, 100, nil), Rate: 1_000_000_000})
	defer stop()
	q, err := question(zone, dns.TypeA).Pack()
	require.NoError(b, err)
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		c, err := net.Dial("udp", addr)
		require.NoError(b, err)
		defer c.Close()
		buf := make([]byte, 1500)
		for pb.Next() {
			_, _ = c.Write(q)
			_ = c.SetReadDeadline(time.Now().Add(time.Second))
			_, _ = c.Read(buf)
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "queries/s")
}
