package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// gossiping is the host's configuration with gossip in the place of broadcast, by way of
// the first host, and with a name server.
func (h *siteHost) gossiping(more string) string {
	text := strings.Replace(h.settings(more), "report: [10.2.0.1:6082, 10.2.0.2:6082]", "report: 10.2.0.1:6082\ntransport: gossip", 1)
	return text + "dns: {name: www.example.org, ttl: 1s}\n" + keys
}

// One word has the routers find each other by gossip, and clients then find them by
// their name, at any of them.
func TestGossipAndDNS(t *testing.T) {
	s := newSite(t)
	a, b := s.hosts[0], s.hosts[1]
	before := a.wiring()
	a.run(a.gossiping(", weight: 0"))
	b.run(b.gossiping(""))
	a.awaitPeers(1)
	b.awaitPeers(1)
	s.servedBy(httpClient(s.client), a.Addr4(), "b")

	both := []netip.Addr{a.Addr4(), b.Addr4(), a.Addr6(), b.Addr6()}
	slices.SortFunc(both, netip.Addr.Compare)
	for _, h := range s.hosts { // a host whose reports are late is not named meanwhile
		require.Eventually(t, func() bool { return slices.Equal(both, s.lookUp(t, h)) }, limit, 10*time.Millisecond, "asked of %s", h.Name())
	}
	m, err := a.metrics()
	require.NoError(t, err)
	require.Positive(t, m[`carom_dns_queries_total{result="answered"}`])

	// The seeds can change while it runs; by what reports travel cannot.
	require.NoError(t, os.WriteFile(a.config, []byte(strings.Replace(a.gossiping(""), "report: 10.2.0.1", "report: 10.2.0.2", 1)), 0o600))
	a.hangUp("success")
	require.NoError(t, os.WriteFile(a.config, []byte(a.settings("")+keys), 0o600))
	a.hangUp("failure")

	b.stop() // takes leave
	require.Eventually(t, func() bool {
		return !slices.Contains(s.lookUp(t, a), b.Addr4())
	}, limit, 10*time.Millisecond, "who has left is named no more")
	a.stop()
	require.Equal(t, before, a.wiring())
}

// lookUp asks a host's name server, as a client does, and returns what it says in order.
func (s *site) lookUp(t *testing.T, h *siteHost) []netip.Addr {
	t.Helper()
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return s.client.DialContext(ctx, network, netip.AddrPortFrom(h.Addr4(), dnsPort).String())
	}}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	addrs, err := r.LookupNetIP(ctx, "ip", "www.example.org.")
	require.NoError(t, err)
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs
}

// hangUp has the router read its configuration again, with that result.
func (h *siteHost) hangUp(result string) {
	h.t.Helper()
	count := fmt.Sprintf(`carom_config_reloads_total{result=%q}`, result)
	was, err := h.metrics()
	require.NoError(h.t, err)
	require.NoError(h.t, h.router.Process.Signal(unix.SIGHUP))
	require.Eventually(h.t, func() bool {
		m, err := h.metrics()
		return err == nil && m[count] == was[count]+1
	}, limit, time.Millisecond, result)
}
