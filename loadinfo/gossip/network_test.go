package gossip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/loadinfo"
)

// network is an internet in memory: datagrams and streams between addresses, which
// a test may cut.
type network struct {
	mu    sync.Mutex
	socks map[netip.AddrPort]*sock
	// cut says whether what goes from one to the other is lost.
	cut   func(udp bool, from, to netip.AddrPort) bool
	heard func(from, to netip.AddrPort, b []byte) // sees what is sent

	streamed atomic.Int64 // bytes, of all streams
}

func newNetwork() *network { return &network{socks: map[netip.AddrPort]*sock{}} }

func (n *network) setCut(f func(udp bool, from, to netip.AddrPort) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut = f
}

// sock is both sockets of a host.
type sock struct {
	net    *network
	addr   netip.AddrPort
	queue  chan datagram
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

type datagram struct {
	from netip.AddrPort
	data []byte
}

func addrOf(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), DefaultPort)
}

func (n *network) listen(addr netip.AddrPort) *sock {
	s := &sock{
		net: n, addr: addr, queue: make(chan datagram, 4096), conns: make(chan net.Conn, 64), closed: make(chan struct{}),
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.socks[addr] = s
	return s
}

func (s *sock) ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error) {
	select {
	case <-s.closed:
		return 0, netip.AddrPort{}, net.ErrClosed
	case d := <-s.queue:
		return copy(b, d.data), d.from, nil
	}
}

func (s *sock) WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error) {
	s.net.mu.Lock()
	defer s.net.mu.Unlock()
	if s.net.heard != nil {
		s.net.heard(s.addr, to, b)
	}
	peer := s.net.socks[to]
	if peer == nil || s.net.socks[s.addr] != s || s.net.cut != nil && s.net.cut(true, s.addr, to) {
		return len(b), nil
	}
	select {
	case peer.queue <- datagram{s.addr, bytes.Clone(b)}:
	default: // its buffer is full
	}
	return len(b), nil
}

func (s *sock) Close() error {
	s.once.Do(func() {
		s.net.mu.Lock()
		defer s.net.mu.Unlock()
		if s.net.socks[s.addr] == s {
			delete(s.net.socks, s.addr)
		}
		close(s.closed)
	})
	return nil
}

func (s *sock) Accept() (net.Conn, error) {
	select {
	case <-s.closed:
		return nil, net.ErrClosed
	case c := <-s.conns:
		return c, nil
	}
}

func (s *sock) Addr() net.Addr { return net.TCPAddrFromAddrPort(s.addr) }

// dial opens a stream; a host that is not there, or cut off, does not answer.
func (s *sock) dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	s.net.mu.Lock()
	peer := s.net.socks[to]
	if s.net.socks[s.addr] != s {
		peer = nil
	}
	if peer != nil && s.net.cut != nil && (s.net.cut(false, s.addr, to) || s.net.cut(false, to, s.addr)) {
		peer = nil
	}
	s.net.mu.Unlock()
	if peer == nil {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	near, far := net.Pipe()
	select {
	case peer.conns <- named{far, s.addr, s.net}:
		return named{near, to, s.net}, nil
	case <-peer.closed:
		return nil, errors.New("connection refused")
	}
}

type named struct {
	net.Conn
	peer netip.AddrPort
	net  *network
}

func (n named) Write(b []byte) (int, error) {
	n.net.streamed.Add(int64(len(b)))
	return n.Conn.Write(b)
}

func (n named) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(n.peer) }

// station is one running host.
type station struct {
	i     int
	sock  *sock
	board *loadinfo.Board
	g     *Gossip
	log   *safeBuffer
	stop  func()
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

type host struct {
	id     string // h<i> if empty
	addr   int    // i if 0
	keys   *loadinfo.Keyring
	change func(*Config)
}

// run starts host i, which serves www and knows the host of address 1 as its seed.
func run(t *testing.T, n *network, i int, h host) *station {
	t.Helper()
	if h.id == "" {
		h.id = fmt.Sprint("h", i)
	}
	if h.addr == 0 {
		h.addr = i
	}
	board := loadinfo.NewBoard(loadinfo.BoardConfig{})
	require.NoError(t, board.SetSelf(loadinfo.Self{
		ID: h.id, Node: netip.AddrPortFrom(addrOf(h.addr).Addr(), 6080), Services: []loadinfo.OwnService{{Name: "www"}},
	}))
	s := &station{i: i, sock: n.listen(addrOf(h.addr)), board: board, log: new(safeBuffer)}
	cfg := Config{
		Board: board, Conn: s.sock, Listener: s.sock, Dial: s.sock.dial, Keys: h.keys,
		Seeds: []string{addrOf(1).String()}, Logger: slog.New(slog.NewTextHandler(s.log, nil)),
	}
	if h.change != nil {
		h.change(&cfg)
	}
	var err error
	s.g, err = New(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.g.Run(ctx) }()
	s.stop = func() {
		cancel()
		require.NoError(t, <-done)
	}
	return s
}

// kill takes a host off the network without a word; stop ends it later.
func (s *station) kill() {
	s.sock.net.mu.Lock()
	defer s.sock.net.mu.Unlock()
	delete(s.sock.net.socks, s.sock.addr)
}

// states are those of the members as this host sees them. Whose report is late is stale
// until the next one, which gossip has happen to some host in a quarter of an hour: it
// counts as up.
func (s *station) states() string {
	var list []string
	for _, m := range s.board.Members(time.Now()) {
		state := m.State
		if state == loadinfo.Stale {
			state = loadinfo.Up
		}
		list = append(list, m.ID+":"+state.String())
	}
	return strings.Join(list, " ")
}

func stopAll(hosts ...*station) {
	var stopping sync.WaitGroup
	for _, h := range hosts {
		stopping.Go(h.stop)
	}
	stopping.Wait()
	pass(time.Minute) // for what waits for a peer in memberlist
}

// pass lets d of the bubble's time go by.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// within lets time go by until ok, at most d, and returns how long it took.
func within(t *testing.T, d time.Duration, ok func() bool) time.Duration {
	t.Helper()
	begin := time.Now()
	for !ok() {
		require.LessOrEqual(t, time.Since(begin), d, "too late")
		pass(10 * time.Millisecond)
	}
	return time.Since(begin)
}

func ring(t testing.TB, ids ...uint8) *loadinfo.Keyring {
	t.Helper()
	var keys []loadinfo.Key
	for _, id := range ids {
		keys = append(keys, loadinfo.Key{ID: id, Secret: []byte(fmt.Sprintf("the secret of key %03d", id))})
	}
	k, err := loadinfo.NewKeyring(keys...)
	require.NoError(t, err)
	return k
}

// all lists the states of a whole cluster of hosts that are up.
func allUp(from, to int) string {
	var list []string
	for i := from; i <= to; i++ {
		list = append(list, fmt.Sprintf("h%d:up", i))
	}
	return strings.Join(list, " ")
}
