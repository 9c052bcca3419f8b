package netstack

import (
	"context"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/carom-dpr/carom/dpr"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds the wait for what must happen.
const patience = time.Minute

// A lan carries packets between its ports by destination address.
type lan struct {
	mu    sync.RWMutex
	ports map[netip.Addr]*port
	tap   func(from *port, pkt []byte) // sees every packet; may be nil
}

// A port is a host's end of a lan.
type port struct {
	lan    *lan
	in     chan []byte
	closed chan struct{}
	once   sync.Once
}

func newLAN() *lan { return &lan{ports: make(map[netip.Addr]*port)} }

func (l *lan) port(addrs ...netip.Prefix) *port {
	p := &port{lan: l, in: make(chan []byte, 512), closed: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range addrs {
		l.ports[a.Addr()] = p
	}
	return p
}

func (p *port) Read(pkts []dpr.Packet) (n int, err error) {
	select {
	case <-p.closed:
		return 0, os.ErrClosed
	case b := <-p.in:
		for {
			pkts[n].Off, pkts[n].Len, pkts[n].GSO = dpr.Headroom, len(b), dpr.GSO{}
			copy(pkts[n].Buf[dpr.Headroom:], b)
			n++
			if n == len(pkts) || len(p.in) == 0 {
				return n, nil
			}
			b = <-p.in
		}
	}
}

func (p *port) Write(pkts []dpr.Packet) (int, error) {
	p.lan.mu.RLock()
	defer p.lan.mu.RUnlock()
	for i := range pkts {
		b := append([]byte(nil), pkts[i].Bytes()...)
		if p.lan.tap != nil {
			p.lan.tap(p, b)
		}
		to := p.lan.ports[destination(b)]
		if to == nil {
			continue
		}
		select {
		case to.in <- b:
		case <-to.closed:
		case <-p.closed:
			return i, os.ErrClosed
		}
	}
	return len(pkts), nil
}

func (p *port) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// start makes a host on the lan and runs it until the test ends.
func start(t testing.TB, l *lan, c Config) *Host {
	t.Helper()
	c.Wire = l.port(c.Addrs...)
	h, err := New(c)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- h.Run(context.Background()) }()
	t.Cleanup(func() {
		require.NoError(t, h.Close())
		require.NoError(t, <-done)
	})
	return h
}

// patch plays the router: whatever from's router would read goes to the TUN of
// another host, or of the same.
func patch(t testing.TB, from, to *Host) { patchTo(t, from, to.TUN()) }

// patchTo hands it to somebody else.
func patchTo(t testing.TB, from *Host, to dpr.Writer) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		pkts := dpr.NewPackets(batch, 2048)
		for {
			n, err := from.TUN().Read(pkts)
			if err != nil {
				return
			}
			if _, err := to.Write(pkts[:n]); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { from.TUN().Close(); <-done })
}

// A family holds addresses of three hosts.
type family struct {
	name    string
	a, b, c netip.Prefix
}

var families = []family{
	{"IPv4", netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("192.0.2.2/24"), netip.MustParsePrefix("192.0.2.9/24")},
	{"IPv6", netip.MustParsePrefix("2001:db8::1/64"), netip.MustParsePrefix("2001:db8::2/64"), netip.MustParsePrefix("2001:db8::9/64")},
}

// toPort returns a predicate for TCP and UDP packets to the port, of either
// family.
func toPort(port uint16) func([]byte) bool {
	return func(b []byte) bool {
		at := 22
		if b[0]>>4 == 6 {
			at = 42
		}
		return len(b) >= at+2 && uint16(b[at])<<8|uint16(b[at+1]) == port
	}
}
