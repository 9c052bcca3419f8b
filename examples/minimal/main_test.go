//go:build linux

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/carom-dpr/carom/internal/lab"
)

// The commands of the package comment, by netlink. The program runs in child
// processes, which are this test's own executable.
const childVariable = "CAROM_MINIMAL_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

var service = netip.MustParseAddr("192.0.2.80")

// limit ends a test that hangs; no result depends on it.
const limit = time.Minute

func TestRedirectsHTTP(t *testing.T) {
	lab.Require(t)
	l, err := lab.New(lab.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	add := func(name, addr string) *lab.Host {
		h, err := l.AddHost(name, netip.MustParsePrefix(addr))
		require.NoError(t, err)
		return h
	}
	client, entry, serving := add("client", "10.0.0.101/24"), add("entry", "10.0.0.1/24"), add("serving", "10.0.0.2/24")

	start(t, entry, serving)
	addRoute(t, entry, service, "tun0")
	require.NoError(t, entry.SetSysctl("net.ipv4.ip_forward", "1"))

	addAddr(t, serving, "lo", service)
	start(t, serving, entry)
	addAddr(t, serving, "tun0", netip.MustParseAddr("192.0.0.8"))
	require.NoError(t, serving.SetSysctl("net.ipv4.conf.tun0.rp_filter", "2"))
	serve(t, serving)

	require.NoError(t, client.AddRoute(host(service), entry.Addr4()))
	c := &http.Client{Timeout: limit, Transport: &http.Transport{DialContext: client.DialContext}}
	defer c.CloseIdleConnections()
	answer, err := c.Get("http://192.0.2.80/")
	require.NoError(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.Equal(t, "10.0.0.101 asked 192.0.2.80:80 of serving", string(body))
	tun, err := entry.Netlink().LinkByName("tun0")
	require.NoError(t, err)
	require.Positive(t, tun.Attrs().Statistics.TxPackets, "the client's packets passed the entry host's engine")
	require.Zero(t, tun.Attrs().Statistics.RxPackets, "and the answer went past it")
}

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// start runs the program on a host until the test ends, and sets its interface up.
func start(t *testing.T, h, peer *lab.Host) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-addr", h.Addr4().String(), "-peer", peer.Addr4().String(),
		"-service", service.String())
	cmd.Env = append(os.Environ(), childVariable+"=1")
	out, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, h.Start(cmd))
	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, cmd.Wait())
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(line, "interface tun0\n"), line)
	link, err := h.Netlink().LinkByName("tun0")
	require.NoError(t, err)
	require.NoError(t, h.Netlink().LinkSetUp(link))
}

func addAddr(t *testing.T, h *lab.Host, iface string, a netip.Addr) {
	t.Helper()
	link, err := h.Netlink().LinkByName(iface)
	require.NoError(t, err)
	addr, err := netlink.ParseAddr(host(a).String())
	require.NoError(t, err)
	require.NoError(t, h.Netlink().AddrAdd(link, addr))
}

func addRoute(t *testing.T, h *lab.Host, to netip.Addr, iface string) {
	t.Helper()
	link, err := h.Netlink().LinkByName(iface)
	require.NoError(t, err)
	dst, err := netlink.ParseIPNet(host(to).String())
	require.NoError(t, err)
	require.NoError(t, h.Netlink().RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst, Scope: netlink.SCOPE_LINK}))
}

func serve(t *testing.T, h *lab.Host) {
	t.Helper()
	ln, err := h.Listen("tcp4", ":80")
	require.NoError(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprintf(w, "%s asked %v of %s", client, r.Context().Value(http.LocalAddrContextKey), h.Name())
	})}
	done := make(chan error, 1)
	go func() { done <- server.Serve(ln) }()
	t.Cleanup(func() {
		require.NoError(t, server.Shutdown(context.Background()))
		require.ErrorIs(t, <-done, http.ErrServerClosed)
	})
}
