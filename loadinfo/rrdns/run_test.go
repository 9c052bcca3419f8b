package rrdns

import (
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
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
	return serve(t, server(t, cfg))
}

func serve(t testing.TB, s *Server) (addr string, stop func()) {
	t.Helper()
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

// What is no query at all is counted, too, and answered where it can be; what is an answer is
// not, or two servers would go on for ever.
func TestForeignDatagrams(t *testing.T) {
	s := server(t, Config{Board: boardOf(t, time.Hour, 3, nil)})
	addr, stop := serve(t, s)
	defer stop()
	c, err := net.Dial("udp", addr)
	require.NoError(t, err)
	defer c.Close()
	query, err := question(zone, dns.TypeA).Pack()
	require.NoError(t, err)
	response, update := slices.Clone(query), slices.Clone(query)
	response[2] |= 0x80
	update[2] = dns.OpcodeUpdate << 3
	for _, tt := range []struct {
		msg   []byte
		rcode int // -1: no answer
	}{
		{nil, -1}, {query[:11], -1}, {response, -1}, {query[:12], dns.RcodeFormatError},
		{query[:len(query)-1], dns.RcodeFormatError}, {update, dns.RcodeNotImplemented},
		{slices.Concat(query, make([]byte, 1000)), dns.RcodeSuccess}, // what is behind it does not count
	} {
		_, err := c.Write(tt.msg)
		require.NoError(t, err)
		_, err = c.Write(query) // which is answered after it, or before
		require.NoError(t, err)
		got := map[int]int{}
		for want := map[bool]int{true: 1, false: 2}[tt.rcode < 0]; want > 0; want-- {
			require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
			buf := make([]byte, 1500)
			_, err := c.Read(buf)
			require.NoError(t, err)
			got[int(buf[3]&0xf)]++
		}
		want := map[int]int{dns.RcodeSuccess: 1}
		if tt.rcode >= 0 {
			want[tt.rcode]++
		}
		require.Equal(t, want, got, "%x", tt.msg)
	}
	require.Equal(t, Stats{Answered: 8, Invalid: 5}, s.Stats())
}

// A client may ask many questions by one connection without waiting for answers (RFC 7766,
// section 6.2.1.1), and gets all of them.
func TestPipelining(t *testing.T) {
	addr, stop := start(t, Config{Board: boardOf(t, time.Hour, 3, nil)})
	defer stop()
	c, err := dns.Dial("tcp", addr)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
	const n = 500
	go func() {
		for id := range uint16(n) {
			q := question(zone, dns.TypeA)
			q.Id = id
			_ = c.WriteMsg(q)
		}
	}()
	for id := range uint16(n) {
		m, err := c.ReadMsg()
		require.NoError(t, err)
		require.Equal(t, id, m.Id)
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
