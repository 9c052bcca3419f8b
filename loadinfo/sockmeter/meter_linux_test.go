package sockmeter

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// families are the ways to reach a listener: the listener's network and address,
// the dialler's network and host.
var families = []struct{ name, network, addr, dial, host string }{
	{"IPv4", "tcp4", "127.0.0.1:0", "tcp4", "127.0.0.1"},
	{"IPv6", "tcp6", "[::1]:0", "tcp6", "::1"},
	{"v4-mapped", "tcp", "[::]:0", "tcp4", "127.0.0.1"},
	{"dual", "tcp", "[::]:0", "tcp6", "::1"},
}

// endings are the ways in which the server's socket leaves ESTABLISHED.
var endings = []struct {
	name string
	end  func(client, server *net.TCPConn)
}{
	{"client closes", func(c, s *net.TCPConn) { c.Close() }},
	{"server closes", func(c, s *net.TCPConn) { s.Close() }},
	{"client half-closes", func(c, s *net.TCPConn) { c.CloseWrite() }},
	{"server half-closes", func(c, s *net.TCPConn) { s.CloseWrite() }},
	{"client resets", func(c, s *net.TCPConn) { c.SetLinger(0); c.Close() }},
	{"server resets", func(c, s *net.TCPConn) { s.SetLinger(0); s.Close() }},
	{"server closes with data unread", func(c, s *net.TCPConn) { c.Write([]byte("x")); s.Close() }},
	{"both close", func(c, s *net.TCPConn) { c.Close(); s.Close() }},
}

func web(port uint16) []Service { return []Service{{Name: "web", Port: port}} }

func TestExactCountsEveryEnding(t *testing.T) {
	ns := newNamespace(t)
	m := ns.open(Config{Mode: Exact})
	for _, f := range families {
		for _, e := range endings {
			t.Run(f.name+"/"+e.name, func(t *testing.T) {
				l := ns.listen(f.network, f.addr)
				port := portOf(l)
				ns.do(func() { require.NoError(t, m.SetServices(web(port))) })
				client, server := ns.connect(l, f.dial, f.host)
				ns.settle(m, "web", port, 1)
				e.end(client, server)
				ns.settle(m, "web", port, 0)
			})
		}
	}
}

func TestExactCountsTheAcceptQueue(t *testing.T) {
	ns := newNamespace(t)
	l := ns.listen("tcp4", "127.0.0.1:0")
	m := ns.open(Config{Mode: Exact, Services: web(portOf(l))})
	ns.do(func() {
		c, err := net.Dial("tcp4", l.Addr().String())
		require.NoError(t, err)
		defer c.Close()
		ns.settle(m, "web", portOf(l), 1)
		require.NoError(t, l.Close())
		ns.settle(m, "web", portOf(l), 0)
	})
}

// Thousands of connections with random lives, while audits run without pause: an
// audit must never find anything to correct.
func TestExactUnderLoadBesideAudits(t *testing.T) {
	const workers, rounds, alive = 4, 600, 16
	ns := newNamespace(t)
	l := ns.listen("tcp", "[::]:0")
	port := portOf(l)
	m := ns.open(Config{Mode: Exact, Services: web(port), Logger: slog.New(slog.DiscardHandler)})

	corrected, stop := auditWithoutPause(m)
	servers := acceptAll(l)
	var wg sync.WaitGroup
	kept := make([][]net.Conn, workers)
	for w := range workers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(w)))
			ns.do(func() { kept[w] = churn(rng, l, rounds, alive) })
		})
	}
	wg.Wait()
	left := 0
	for _, conns := range kept {
		left += len(conns)
	}
	ns.settle(m, "web", port, int32(left))
	for _, conns := range kept {
		for _, c := range conns {
			c.Close()
		}
	}
	require.NoError(t, l.Close())
	servers.Wait()
	ns.settle(m, "web", port, 0)
	require.Zero(t, stop(), "audits failed")
	require.Zero(t, *corrected, "an audit changed a right counter")
}

// auditWithoutPause audits in a loop until stop, which returns the failures.
func auditWithoutPause(m *Meter) (corrected *int, stop func() int) {
	corrected = new(int)
	ctx, cancel := context.WithCancel(context.Background())
	failed := make(chan int)
	go func() {
		n := 0
		for ctx.Err() == nil {
			c, err := m.Audit()
			*corrected += c
			if err != nil {
				n++
			}
		}
		failed <- n
	}()
	return corrected, func() int { cancel(); return <-failed }
}

// acceptAll serves every connection until its client ends it.
func acceptAll(l net.Listener) *sync.WaitGroup {
	wg := new(sync.WaitGroup)
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				var b [1]byte
				for {
					if _, err := c.Read(b[:]); err != nil {
						return
					}
				}
			})
		}
	})
	return wg
}

// churn opens connections and ends random ones, and returns those left.
func churn(rng *rand.Rand, l net.Listener, rounds, alive int) (conns []net.Conn) {
	for range rounds {
		host := [...]string{"127.0.0.1", "::1"}[rng.IntN(2)]
		c, err := net.Dial("tcp", dialAddr(l, host))
		if err != nil {
			panic(err)
		}
		conns = append(conns, c)
		for len(conns) > alive {
			i := rng.IntN(len(conns))
			if rng.IntN(3) == 0 {
				conns[i].(*net.TCPConn).SetLinger(0)
			}
			conns[i].Close()
			conns[i] = conns[len(conns)-1]
			conns = conns[:len(conns)-1]
		}
	}
	return conns
}

func TestNamespacesAreToldApart(t *testing.T) {
	a, b := newNamespace(t), newNamespace(t)
	la := a.listen("tcp4", "127.0.0.1:0")
	lb := b.listen("tcp4", la.Addr().String())
	before, _ := b.connect(lb, "tcp4", "127.0.0.1")
	ma := a.open(Config{Mode: Exact, Services: web(portOf(la))})
	mb := b.open(Config{Mode: Exact, Services: web(portOf(lb))})
	require.Zero(t, ma.Counter("web").Load())

	for range 5 {
		a.connect(la, "tcp4", "127.0.0.1")
	}
	a.settle(ma, "web", portOf(la), 5)
	b.settle(mb, "web", portOf(lb), 1)
	before.Close()
	b.settle(mb, "web", portOf(lb), 0)
	a.settle(ma, "web", portOf(la), 5)

	// From another namespace the sockets cannot be adopted; the audit still asks
	// the right one.
	b.do(func() { require.NoError(t, ma.SetServices([]Service{{Name: "other", Port: portOf(la)}})) })
	require.EqualValues(t, 5, ma.Counter("other").Load())
}

func TestConnectionsFromBefore(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			ns := newNamespace(t)
			l := ns.listen(f.network, f.addr)
			port := portOf(l)
			old, _ := ns.connect(l, f.dial, f.host)
			ns.connect(l, f.dial, f.host)
			m := ns.open(Config{Mode: Exact, Services: web(port)})
			require.EqualValues(t, 2, m.Counter("web").Load(), "seeded when Open returns")
			if m.kernel.iter == nil {
				t.Skipf("needs a socket iterator: %v", m.kernel.noIter)
			}

			old.Close()
			ns.settle(m, "web", port, 1)
			young, _ := ns.connect(l, f.dial, f.host)
			ns.settle(m, "web", port, 2)
			young.Close()
			ns.settle(m, "web", port, 1)

			// A successor, as after a restart, meets sockets that already have the
			// callback flag.
			next := ns.open(Config{Mode: Exact, Services: web(port)})
			ns.settle(next, "web", port, 1)
			ns.connect(l, f.dial, f.host)
			ns.settle(next, "web", port, 2)
			ns.settle(m, "web", port, 2)
		})
	}
}

// Older kernels have no iterator that can watch a socket: audits make up for it.
func TestWithoutIterator(t *testing.T) {
	ns := newNamespace(t)
	l := ns.listen("tcp4", "127.0.0.1:0")
	port := portOf(l)
	old, _ := ns.connect(l, "tcp4", "127.0.0.1")
	m := ns.open(Config{Mode: Exact, Logger: slog.New(slog.DiscardHandler)})
	if m.kernel.iter != nil {
		require.NoError(t, m.kernel.iter.Close())
		m.kernel.iter = nil
	}
	require.NoError(t, m.SetServices(web(port)))
	ns.settle(m, "web", port, 1)
	young, _ := ns.connect(l, "tcp4", "127.0.0.1")
	ns.settle(m, "web", port, 2)
	young.Close()
	ns.settle(m, "web", port, 1)

	old.Close()
	for end := time.Now().Add(patience); m.Counter("web").Load() != 0 && time.Now().Before(end); {
		_, err := m.Audit()
		require.NoError(t, err)
	}
	ns.settle(m, "web", port, 0)
}

func TestSetServices(t *testing.T) {
	ns := newNamespace(t)
	l, l2 := ns.listen("tcp4", "127.0.0.1:0"), ns.listen("tcp4", "127.0.0.1:0")
	m := ns.open(Config{Mode: Exact, Services: web(portOf(l))})
	set := func(services ...Service) {
		ns.do(func() { require.NoError(t, m.SetServices(services)) })
	}
	c, _ := ns.connect(l, "tcp4", "127.0.0.1")
	ns.connect(l, "tcp4", "127.0.0.1")
	ns.connect(l2, "tcp4", "127.0.0.1")
	counter := m.Counter("web")
	require.Nil(t, m.Counter("db"))

	set(Service{Name: "web", Port: portOf(l)}, Service{Name: "db", Port: portOf(l2)})
	require.EqualValues(t, 2, counter.Load())
	require.EqualValues(t, 1, m.Counter("db").Load())

	set(Service{Name: "db", Port: portOf(l)})
	require.Nil(t, m.Counter("web"))
	require.EqualValues(t, 2, m.Counter("db").Load(), "a port that moved takes its connections along")
	require.Zero(t, counter.Load())
	c.Close()
	ns.settle(m, "db", portOf(l), 1)

	set()
	set(Service{Name: "web", Port: 1, PortEnd: 65535})
	require.Same(t, counter, m.Counter("web"), "a name keeps its counter")
	_, err := m.Audit()
	require.NoError(t, err)
	require.Equal(t, allEstablished(ns), counter.Load(), "a range that holds the clients' ports too")

	require.Error(t, m.SetServices([]Service{{Name: "x"}}))
	require.Same(t, counter, m.Counter("web"), "an error changes nothing")
}

// allEstablished counts the established sockets of all ports, slowly.
func allEstablished(ns *namespace) (n int32) {
	d, err := nsDiag(ns)
	require.NoError(ns.t, err)
	defer d.close()
	require.NoError(ns.t, d.dump(stateEstablished, 0, func(socket) { n++ }))
	return n
}

func nsDiag(ns *namespace) (d *diag, err error) {
	ns.do(func() { d, err = openDiag() })
	return d, err
}

func TestTooManyNames(t *testing.T) {
	ns := newNamespace(t)
	m := ns.open(Config{Mode: Poll})
	for i := range maxServices {
		require.NoError(t, m.SetServices([]Service{{Name: fmt.Sprint(i), Port: 80}}))
	}
	require.ErrorIs(t, m.SetServices([]Service{{Name: "one more", Port: 80}}), errTooMany)
	require.NotNil(t, m.Counter("254"))
}

func TestAuditCorrectsDrift(t *testing.T) {
	for _, drift := range []int32{-3, 7} {
		t.Run(fmt.Sprint(drift), func(t *testing.T) {
			ns := newNamespace(t)
			l := ns.listen("tcp4", "127.0.0.1:0")
			m := ns.open(Config{Mode: Exact, Services: web(portOf(l))})
			ns.connect(l, "tcp4", "127.0.0.1")
			ns.settle(m, "web", portOf(l), 1)
			m.Counter("web").Add(drift)
			n, err := m.Audit()
			require.NoError(t, err)
			require.EqualValues(t, max(drift, -drift), n)
			ns.settle(m, "web", portOf(l), 1)
		})
	}
}

func TestPoll(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			ns := newNamespace(t)
			l := ns.listen(f.network, f.addr)
			m := ns.open(Config{Mode: Poll, Services: web(portOf(l)), Period: time.Millisecond})
			require.Equal(t, Poll, m.Mode())
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- m.Run(ctx) }()
			c, _ := ns.connect(l, f.dial, f.host)
			ns.settle(m, "web", portOf(l), 1)
			c.Close()
			ns.settle(m, "web", portOf(l), 0)
			cancel()
			require.NoError(t, <-done)
		})
	}
}

func TestAutoFallsBack(t *testing.T) {
	ns := newNamespace(t)
	l := ns.listen("tcp4", "127.0.0.1:0")
	ns.connect(l, "tcp4", "127.0.0.1")
	c := Config{Services: web(portOf(l)), Cgroup: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}
	m := ns.open(c)
	require.Equal(t, Poll, m.Mode())
	require.EqualValues(t, 1, m.Counter("web").Load())

	c.Mode = Exact
	_, err := Open(c)
	require.ErrorContains(t, err, c.Cgroup)
}

func TestClosed(t *testing.T) {
	ns := newNamespace(t)
	l := ns.listen("tcp4", "127.0.0.1:0")
	m := ns.open(Config{Mode: Exact, Services: web(portOf(l))})
	c, _ := ns.connect(l, "tcp4", "127.0.0.1")
	ns.settle(m, "web", portOf(l), 1)
	counter := m.Counter("web")
	require.NoError(t, m.Close())
	require.NoError(t, m.Close())
	c.Close()
	require.EqualValues(t, 1, counter.Load(), "a counter outlives its meter")
	_, err := m.Audit()
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorIs(t, m.SetServices(nil), os.ErrClosed)
	_, err = m.Listening(netip.Addr{}, 80)
	require.ErrorIs(t, err, os.ErrClosed)
}

func TestListening(t *testing.T) {
	v4, v6 := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")
	other4, other6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for _, c := range []struct {
		name, network, addr string
		yes, no             []netip.Addr
	}{
		{"IPv4 wildcard", "tcp4", "0.0.0.0:0", []netip.Addr{v4, other4, {}}, []netip.Addr{v6, other6}},
		{"IPv4 address", "tcp4", "127.0.0.1:0", []netip.Addr{v4, {}}, []netip.Addr{other4, v6}},
		{"IPv6 wildcard", "tcp6", "[::]:0", []netip.Addr{v6, other6, {}}, []netip.Addr{v4}},
		{"IPv6 address", "tcp6", "[::1]:0", []netip.Addr{v6, {}}, []netip.Addr{other6, v4}},
		{"both wildcards in one", "tcp", "[::]:0", []netip.Addr{v4, other4, v6, other6, {}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns := newNamespace(t)
			m := ns.open(Config{Mode: Poll})
			l := ns.listen(c.network, c.addr)
			check := func(want bool, addr netip.Addr) {
				got, err := m.Listening(addr, portOf(l))
				require.NoError(t, err)
				require.Equal(t, want, got, addr)
			}
			for _, a := range c.yes {
				check(true, a)
				if a.IsValid() {
					check(true, netip.AddrFrom16(a.As16())) // v4-mapped means IPv4
				}
			}
			for _, a := range c.no {
				check(false, a)
			}
			l.Close()
			check(false, netip.Addr{})
		})
	}
}

// Reading a count is one load: a benchmark to see it, and the cost that counting
// adds to a connection.
func BenchmarkConnections(b *testing.B) {
	for _, mode := range []Mode{Poll, Exact} {
		b.Run(mode.String(), func(b *testing.B) {
			l, err := net.Listen("tcp4", "127.0.0.1:0")
			require.NoError(b, err)
			m, err := Open(Config{Mode: mode, Services: web(portOf(l))})
			if err != nil {
				b.Skip(err)
			}
			defer m.Close()
			servers := acceptAll(l)
			for b.Loop() {
				c, err := net.Dial("tcp4", l.Addr().String())
				require.NoError(b, err)
				require.NoError(b, c.(*net.TCPConn).SetLinger(0))
				c.Close()
			}
			l.Close()
			servers.Wait()
		})
	}
}
