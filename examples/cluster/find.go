package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/carom-dpr/carom/loadinfo"
	"github.com/carom-dpr/carom/loadinfo/gossip"
	"github.com/carom-dpr/carom/loadinfo/rrdns"
)

const (
	// clusterName is what clients look up with -dns.
	clusterName = "www.carom.test."
	dnsPort     = 53
	// dnsTTL is short, so that a run of a few seconds sees several answers.
	dnsTTL = time.Second
)

// seeds are the hosts by which gossip finds the others: the first two.
func seeds(peers []netip.AddrPort) (list []string) {
	for _, p := range peers[:min(2, len(peers))] {
		list = append(list, p.String())
	}
	return list
}

// gossiping returns a node's transport.
func gossiping(cfg gossip.Config) func(*loadinfo.Board, *loadinfo.Keyring) (loadinfo.Transport, error) {
	return func(b *loadinfo.Board, ring *loadinfo.Keyring) (loadinfo.Transport, error) {
		cfg.Board, cfg.Keys = b, ring
		g, err := gossip.New(cfg)
		if err != nil {
			return nil, errors.Join(err, cfg.Conn.Close(), cfg.Listener.Close())
		}
		return g, nil
	}
}

// answer answers for the cluster's name until ctx is done, and closes both sockets.
func answer(ctx context.Context, b *loadinfo.Board, conn net.PacketConn, ln net.Listener) error {
	s, err := rrdns.New(rrdns.Config{Board: b, Name: clusterName, TTL: dnsTTL})
	if err != nil {
		return errors.Join(err, conn.Close(), ln.Close())
	}
	return s.Run(ctx, conn, ln)
}

// A finder finds hosts by the cluster's name. It keeps an answer as long as it may, and
// takes its addresses in turn.
type finder struct {
	resolver *net.Resolver
	network  string // ip4 or ip6

	mu    sync.Mutex
	addrs []netip.Addr
	next  int
	until time.Time
}

// newFinder returns a finder that asks the servers in turn. dial connects to one, by
// the network that it is given.
func newFinder(servers []netip.AddrPort, dial func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error)) *finder {
	f := &finder{network: "ip4"}
	if servers[0].Addr().Is6() {
		f.network = "ip6"
	}
	next := 0
	f.resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		next++ // find holds the lock
		return dial(ctx, network, servers[next%len(servers)])
	}}
	return f
}

// find returns the index of a host in the list of those that there are.
func (f *finder) find(ctx context.Context, hosts []netip.AddrPort) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); !now.Before(f.until) {
		addrs, err := f.resolver.LookupNetIP(ctx, f.network, clusterName)
		if err != nil {
			return 0, err
		}
		f.addrs, f.until = addrs, now.Add(dnsTTL)
	}
	f.next++
	addr := f.addrs[f.next%len(f.addrs)].Unmap()
	i := slices.IndexFunc(hosts, func(h netip.AddrPort) bool { return h.Addr() == addr })
	if i < 0 {
		return 0, fmt.Errorf("%s has the address %v, which is no host's", clusterName, addr)
	}
	return i, nil
}
