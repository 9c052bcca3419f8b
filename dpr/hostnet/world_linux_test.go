package hostnet

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/tun"
	"github.com/carom-dpr/carom/internal/lab"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		runChild()
		return
	}
	goleak.VerifyTestMain(m)
}

const port = 80 // of the service that is captured

// world is a client and two hosts, a and b, on one segment.
type world struct {
	lab          *lab.Lab
	client, a, b *lab.Host
}

func newWorld(t *testing.T) *world {
	t.Helper()
	lab.Require(t)
	l, err := lab.New(lab.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	w := &world{lab: l}
	for _, h := range []struct {
		host   **lab.Host
		name   string
		v4, v6 string
	}{
		{&w.client, "client", "10.1.0.1/24", "fd01::1/64"},
		{&w.a, "a", "10.1.0.2/24", "fd01::2/64"},
		{&w.b, "b", "10.1.0.3/24", "fd01::3/64"},
	} {
		*h.host, err = l.AddHost(h.name, netip.MustParsePrefix(h.v4), netip.MustParsePrefix(h.v6))
		require.NoError(t, err)
		// The strictest setting, and the default of some distributions.
		require.NoError(t, (*h.host).SetSysctl("net.ipv4.conf.all.rp_filter", "1"))
	}
	return w
}

func addrs(h *lab.Host) []netip.Addr { return []netip.Addr{h.Addr4(), h.Addr6()} }

// services are TCP and UDP on port 80 and an UDP range, on the host's addresses.
func services(h *lab.Host) []Service {
	return []Service{
		{Protocol: protocolTCP, Port: port, Addrs: addrs(h)},
		{Protocol: protocolUDP, Port: 1000, PortEnd: 1009, Addrs: addrs(h)},
	}
}

// engine stands in for the real one: it records what it reads from the TUN and
// writes it to another queue, or back to where it came from.
type engine struct {
	net   *Net
	queue *tun.Queue

	mu   sync.Mutex
	seen []gopacket.Packet
	got  chan struct{} // signalled after each packet
}

// startEngine wires a host and starts an engine on it that hands all packets to
// the queue to; nil means its own. It does not beat by itself, and each of its beats
// is of an hour later, so that no test is too slow for it.
func startEngine(t *testing.T, h *lab.Host, cfg Config, to func() *tun.Queue) *engine {
	t.Helper()
	e := &engine{got: make(chan struct{}, 1)}
	require.NoError(t, h.Do(func() error {
		dev, err := tun.Open(tun.Config{Name: "carom0"})
		if err != nil {
			return err
		}
		e.queue = dev.Queues[0]
		cfg.TUN = dev.Name
		e.net, err = Open(cfg)
		if err != nil {
			return errors.Join(err, dev.Close())
		}
		e.net.beat.origin += uint64(lead)
		return nil
	}))
	if to == nil {
		to = func() *tun.Queue { return e.queue }
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.run(to)
	}()
	t.Cleanup(func() {
		require.NoError(t, e.net.Close())
		require.NoError(t, e.queue.Close())
		<-done
	})
	return e
}

func (e *engine) run(to func() *tun.Queue) {
	pkts := dpr.NewPackets(1, dpr.MaxPacket)
	for {
		n, err := e.queue.Read(pkts)
		if err != nil {
			return
		}
		for i := range pkts[:n] {
			e.record(pkts[i].Bytes())
		}
		if _, err := to().Write(pkts[:n]); err != nil {
			return
		}
	}
}

func (e *engine) record(b []byte) {
	decoder := gopacket.Decoder(layers.LayerTypeIPv4)
	if b[0]>>4 == 6 {
		decoder = layers.LayerTypeIPv6
	}
	e.mu.Lock()
	e.seen = append(e.seen, gopacket.NewPacket(slices.Clone(b), decoder, gopacket.Default))
	e.mu.Unlock()
	select {
	case e.got <- struct{}{}:
	default:
	}
}

// take returns what the engine has read and forgets it.
func (e *engine) take() []gopacket.Packet {
	e.mu.Lock()
	defer e.mu.Unlock()
	seen := e.seen
	e.seen = nil
	return seen
}

// await returns the packets read since the last take once there are n of them.
func (e *engine) await(t *testing.T, n int) []gopacket.Packet {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var all []gopacket.Packet
	for len(all) < n {
		all = append(all, e.take()...)
		if len(all) >= n {
			break
		}
		select {
		case <-e.got:
		case <-ctx.Done():
			require.FailNow(t, "engine has not read enough", "%d of %d packets: %v", len(all), n, all)
		}
	}
	return all
}

// limit ends a test that hangs; no result depends on it.
const limit = time.Minute

// lead is how far the beats of a test's engine are ahead of the clock.
const lead = time.Hour

// tcpFlags returns S, A, F, R of each TCP packet and fails on any other packet.
func tcpFlags(t *testing.T, pkts []gopacket.Packet) []string {
	t.Helper()
	all := []string{}
	for _, p := range pkts {
		tcp, ok := p.TransportLayer().(*layers.TCP)
		require.True(t, ok, "%v", p)
		s := ""
		for _, f := range []struct {
			set  bool
			name string
		}{{tcp.SYN, "S"}, {tcp.ACK, "A"}, {tcp.FIN, "F"}, {tcp.RST, "R"}} {
			if f.set {
				s += f.name
			}
		}
		all = append(all, s)
	}
	return all
}

// onlySYN requires that the engine has read the SYN of a connection and nothing else. A
// client that is answered late repeats it.
func (e *engine) onlySYN(t *testing.T) {
	t.Helper()
	require.Equal(t, []string{"S"}, slices.Compact(tcpFlags(t, e.take())))
}

// serveEcho echoes on every TCP connection to the address until the test ends.
func serveEcho(t *testing.T, h *lab.Host, address string) {
	t.Helper()
	ln, err := h.Listen("tcp", address)
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(limit))
				_, _ = io.Copy(c, c)
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		wg.Wait()
	})
}

func dial(t *testing.T, h *lab.Host, to netip.AddrPort) *net.TCPConn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	c, err := h.DialContext(ctx, "tcp", to.String())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(limit)))
	return c.(*net.TCPConn)
}

// echo sends size bytes and requires them back.
func echo(t *testing.T, c net.Conn, size int) {
	t.Helper()
	sent := make(chan error, 1)
	want := make([]byte, size)
	for i := range want {
		want[i] = byte(i * 7)
	}
	go func() {
		_, err := c.Write(want)
		sent <- err
	}()
	got := make([]byte, size)
	_, err := io.ReadFull(c, got)
	require.NoError(t, errors.Join(err, <-sent))
	require.Equal(t, want, got)
}

// finish ends a connection from the client's side and waits for the server's end.
func finish(t *testing.T, c *net.TCPConn) {
	t.Helper()
	require.NoError(t, c.CloseWrite())
	_, err := c.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, c.Close())
}

// packet builds an IP packet.
func packet(t *testing.T, src, dst netip.Addr, proto layers.IPProtocol, rest ...gopacket.SerializableLayer) []byte {
	t.Helper()
	var ip gopacket.NetworkLayer
	if src.Is4() {
		ip = &layers.IPv4{Version: 4, TTL: 64, Protocol: proto, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
	} else {
		ip = &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: proto, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
	}
	for _, l := range rest {
		if c, ok := l.(interface {
			SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
		}); ok {
			require.NoError(t, c.SetNetworkLayerForChecksum(ip))
		}
	}
	b := gopacket.NewSerializeBuffer()
	all := append([]gopacket.SerializableLayer{ip.(gopacket.SerializableLayer)}, rest...)
	require.NoError(t, gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, all...))
	return b.Bytes()
}

// send sends IP packets from a host through a RawSender.
func send(t *testing.T, h *lab.Host, packets ...[]byte) {
	t.Helper()
	var s *RawSender
	require.NoError(t, h.Do(func() (err error) {
		s, err = NewRawSender()
		return err
	}))
	defer s.Close()
	var pkts []dpr.Packet
	for _, b := range packets {
		pkts = append(pkts, dpr.Packet{Buf: b, Len: len(b)})
	}
	n, err := s.Write(pkts)
	require.NoError(t, err)
	require.Equal(t, len(pkts), n)
}

func addrPort(a net.Addr) netip.AddrPort {
	ap := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
