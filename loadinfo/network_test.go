package loadinfo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// network is a broadcast domain in memory: what is sent to the address all goes to
// every socket, the sender's too.
type network struct {
	mu    sync.Mutex
	socks map[netip.AddrPort]*sock
	drop  func(from, to netip.AddrPort) bool
	heard func(from netip.AddrPort, msg []byte) // sees what is sent
}

var all = netip.MustParseAddrPort("203.0.113.255:6082")

type datagram struct {
	from netip.AddrPort
	data []byte
}

type sock struct {
	net    *network
	addr   netip.AddrPort
	queue  chan datagram
	closed chan struct{}
	fail   chan error // errors for Read
}

func newNetwork() *network { return &network{socks: map[netip.AddrPort]*sock{}} }

func (n *network) listen(i int) *sock {
	s := &sock{
		net: n, addr: netip.AddrPortFrom(node(i).Addr(), DefaultPort),
		queue: make(chan datagram, 1024), closed: make(chan struct{}), fail: make(chan error, 1024),
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.socks[s.addr] = s
	return s
}

func (s *sock) ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error) {
	select {
	case <-s.closed:
		return 0, netip.AddrPort{}, net.ErrClosed
	case err := <-s.fail:
		return 0, netip.AddrPort{}, err
	case d := <-s.queue:
		return copy(b, d.data), d.from, nil
	}
}

func (s *sock) WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error) {
	s.net.mu.Lock()
	defer s.net.mu.Unlock()
	if s.net.heard != nil {
		s.net.heard(s.addr, b)
	}
	reached := false
	for addr, peer := range s.net.socks {
		if to != all && to != addr {
			continue
		}
		reached = true
		if s.net.drop == nil || !s.net.drop(s.addr, addr) {
			peer.queue <- datagram{s.addr, bytes.Clone(b)}
		}
	}
	if !reached {
		return 0, errors.New("no route to host")
	}
	return len(b), nil
}

func (s *sock) Close() error {
	s.net.mu.Lock()
	defer s.net.mu.Unlock()
	if s.net.socks[s.addr] == s {
		delete(s.net.socks, s.addr)
	}
	select {
	case <-s.closed:
	default:
		close(s.closed)
	}
	return nil
}

// station is one running host.
type station struct {
	board *Board
	cast  *Broadcaster
	stop  func()
}

// run starts host i of the network, named h<i>, serving www.
func run(t *testing.T, n *network, i int, change func(*BroadcasterConfig)) *station {
	t.Helper()
	board := withSelf(t, BoardConfig{}, Self{
		ID: fmt.Sprint("h", i), Node: node(i), Services: []OwnService{{Name: "www"}},
	})
	cfg := BroadcasterConfig{Board: board, Conn: n.listen(i), To: []netip.AddrPort{all}, Logger: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&cfg)
	}
	cast, err := NewBroadcaster(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- cast.Run(ctx) }()
	return &station{board, cast, func() {
		cancel()
		require.NoError(t, <-done)
	}}
}

func (s *station) states() string { return states(s.board, time.Now()) }

// pass lets d of the bubble's time go by.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}
