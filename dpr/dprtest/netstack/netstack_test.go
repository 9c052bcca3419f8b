package netstack

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carom-dpr/carom/dpr"
	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// serve runs a web server on the host until the test ends. GET / answers with
// the host's name, and with the length and the hash of the body it was sent;
// GET /blob answers with blob.
func serve(t testing.TB, h *Host, port uint16, blob []byte) {
	t.Helper()
	l, err := h.Listen(port)
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		sum := sha256.New()
		io.Copy(sum, r.Body)
		w.Header().Set("Host-Name", h.cfg.Name)
		w.Header().Set("Client", r.RemoteAddr)
		w.Write(sum.Sum(nil))
	})
	mux.HandleFunc("/blob", func(w http.ResponseWriter, r *http.Request) { w.Write(blob) })
	srv := &http.Server{Handler: mux}
	done := make(chan struct{})
	go func() { defer close(done); srv.Serve(l) }()
	t.Cleanup(func() { srv.Close(); <-done })
}

// browser returns a client whose connections start at the host.
func browser(t testing.TB, h *Host, keepAlive bool) *http.Client {
	tr := &http.Transport{DialContext: h.DialContext, DisableKeepAlives: !keepAlive, DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: patience}
}

func url(a netip.Prefix, port uint16, path string) string {
	return "http://" + netip.AddrPortFrom(a.Addr(), port).String() + path
}

// post sends the body and returns the name of the host that answered; the answer
// must prove that the body arrived whole.
func post(t testing.TB, c *http.Client, url string, body []byte) string {
	t.Helper()
	resp, err := c.Post(url, "", bytes.NewReader(body))
	require.NoError(t, err)
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	want := sha256.Sum256(body)
	require.Equal(t, want[:], got)
	return resp.Header.Get("Host-Name")
}

func get(t testing.TB, c *http.Client, url string) []byte {
	t.Helper()
	resp, err := c.Get(url)
	require.NoError(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return b
}

// noise returns n bytes that are the same in every run.
func noise(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

func TestHTTP(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			l := newLAN()
			a := start(t, l, Config{Name: "a", Addrs: []netip.Prefix{f.a}})
			c := start(t, l, Config{Name: "c", Addrs: []netip.Prefix{f.c}})
			blob := noise(2 << 20)
			serve(t, a, 80, blob)
			client := browser(t, c, true)
			require.Equal(t, "a", post(t, client, url(f.a, 80, "/"), nil))
			require.Equal(t, "a", post(t, client, url(f.a, 80, "/"), blob))
			require.True(t, bytes.Equal(blob, get(t, client, url(f.a, 80, "/blob"))))
			require.Equal(t, "a", post(t, browser(t, a, false), url(f.a, 80, "/"), blob), "a host reaches itself")
			require.Zero(t, a.Stats().Captured)
		})
	}
}

// A client dials A, A's router hands the connection to B, and B answers from A's
// address without A.
func TestAlias(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			l := newLAN()
			var mss sync.Map // source address to MSS of its SYN-ACK
			var fromA atomic.Int64
			l.tap = func(p *port, pkt []byte) {
				src, seg := split(pkt)
				if p == l.ports[f.a.Addr()] {
					fromA.Add(1)
				}
				if seg.Flags() == header.TCPFlagSyn|header.TCPFlagAck {
					mss.Store(src, int(header.ParseSynOptions(seg.Options(), true).MSS))
				}
			}
			a := start(t, l, Config{Name: "a", Addrs: []netip.Prefix{f.a}, Capture: toPort(80)})
			b := start(t, l, Config{Name: "b", Addrs: []netip.Prefix{f.b}, Overhead: 100})
			c := start(t, l, Config{Name: "c", Addrs: []netip.Prefix{f.c}})
			patch(t, a, b)
			require.NoError(t, b.SetAliases([]netip.Addr{f.a.Addr()}))
			blob := noise(1 << 20)
			serve(t, a, 80, nil)
			serve(t, a, 81, nil)
			serve(t, b, 80, blob)
			client := browser(t, c, false)
			headers := 20 + 20 // of IPv4 and TCP
			if f.a.Addr().Is6() {
				headers = 40 + 20
			}

			require.Equal(t, "b", post(t, client, url(f.a, 80, "/"), blob))
			require.True(t, bytes.Equal(blob, get(t, client, url(f.a, 80, "/blob"))))
			require.Zero(t, fromA.Load(), "the answers bypass A")
			got, _ := mss.LoadAndDelete(f.a.Addr())
			require.Equal(t, 1500-100-headers, got, "MSS of a redirected connection")

			require.Equal(t, "b", post(t, client, url(f.b, 80, "/"), blob))
			got, _ = mss.Load(f.b.Addr())
			require.Equal(t, 1500-headers, got, "MSS of a direct connection")

			require.Equal(t, "a", post(t, browser(t, b, false), url(f.a, 81, "/"), blob), "an alias does not steal")
			require.Equal(t, "b", post(t, browser(t, b, false), url(f.a, 80, "/"), blob), "hairpin: a host redirected to itself")

			require.NoError(t, b.SetAliases(nil))
			ctx, cancel := context.WithCancel(t.Context())
			dropped := b.stack.Stats().IP.InvalidDestinationAddressesReceived.Value()
			go func() {
				defer cancel()
				for b.stack.Stats().IP.InvalidDestinationAddressesReceived.Value() == dropped && t.Context().Err() == nil {
					runtime.Gosched()
				}
			}()
			_, err := c.Dial(ctx, netip.AddrPort{}, netip.AddrPortFrom(f.a.Addr(), 80))
			require.ErrorIs(t, err, context.Canceled, "an alias that was taken away is dropped")
		})
	}
}

// Answers from an alias, and no other packets, go to the host's router.
func TestTunnelledAnswers(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			l := newLAN()
			var foreign atomic.Int32 // packets from A's address that leave by B
			l.tap = func(p *port, pkt []byte) {
				if src, _ := split(pkt); p == l.ports[f.b.Addr()] && src == f.a.Addr() {
					foreign.Add(1)
				}
			}
			a := start(t, l, Config{Name: "a", Addrs: []netip.Prefix{f.a}, Capture: toPort(80)})
			b := start(t, l, Config{Name: "b", Addrs: []netip.Prefix{f.b}, Tunnelled: true})
			c := start(t, l, Config{Name: "c", Addrs: []netip.Prefix{f.c}})
			patch(t, a, b)
			patchTo(t, b, a.Sender())
			require.NoError(t, b.SetAliases([]netip.Addr{f.a.Addr()}))
			blob := noise(1 << 20)
			serve(t, b, 80, blob)
			client := browser(t, c, false)
			require.Equal(t, "b", post(t, client, url(f.a, 80, "/"), blob))
			require.True(t, bytes.Equal(blob, get(t, client, url(f.a, 80, "/blob"))))
			require.Equal(t, "b", post(t, client, url(f.b, 80, "/"), blob), "its own leave by the wire")
			require.Zero(t, foreign.Load())
		})
	}
}

// split returns a packet's source address and its TCP header.
func split(b []byte) (netip.Addr, header.TCP) {
	if b[0]>>4 == 4 {
		return netip.AddrFrom4([4]byte(b[12:])), header.TCP(b[header.IPv4(b).HeaderLength():])
	}
	return netip.AddrFrom16([16]byte(b[8:])), header.TCP(b[40:])
}

// Connections that the router leaves to its own host come back through the TUN.
func TestLocal(t *testing.T) {
	for _, f := range families {
		for _, bypass := range []bool{false, true} {
			t.Run(f.name, func(t *testing.T) {
				l := newLAN()
				a := start(t, l, Config{Name: "a", Addrs: []netip.Prefix{f.a}, Capture: toPort(80), Bypass: bypass})
				c := start(t, l, Config{Name: "c", Addrs: []netip.Prefix{f.c}})
				patch(t, a, a)
				serve(t, a, 80, nil)
				client := browser(t, c, true)
				body := noise(256 << 10)
				require.Equal(t, "a", post(t, client, url(f.a, 80, "/"), body))
				if bypass {
					require.Less(t, a.Stats().Captured, uint64(10), "the SYN alone goes up; a slow stack gets several")
				} else {
					require.Greater(t, a.Stats().Captured, uint64(len(body)/1500))
				}

				require.NoError(t, a.TUN().Close())
				before := a.Stats().Captured
				require.Equal(t, "a", post(t, browser(t, c, false), url(f.a, 80, "/"), body), "without a router the stack serves")
				require.Equal(t, before, a.Stats().Captured)
			})
		}
	}
}

// As on Linux, an unconnected UDP socket answers from the host's own address.
func TestUDP(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			l := newLAN()
			a := start(t, l, Config{Name: "a", Addrs: []netip.Prefix{f.a}, Capture: toPort(53)})
			b := start(t, l, Config{Name: "b", Addrs: []netip.Prefix{f.b}})
			c := start(t, l, Config{Name: "c", Addrs: []netip.Prefix{f.c}})
			patch(t, a, b)
			require.NoError(t, b.SetAliases([]netip.Addr{f.a.Addr()}))
			any := netip.IPv4Unspecified()
			if f.a.Addr().Is6() {
				any = netip.IPv6Unspecified()
			}
			server, err := b.ListenPacket(netip.AddrPortFrom(any, 53))
			require.NoError(t, err)
			defer server.Close()
			client, err := c.ListenPacket(netip.AddrPortFrom(f.c.Addr(), 4000))
			require.NoError(t, err)
			defer client.Close()

			_, err = client.WriteTo([]byte("question"), net.UDPAddrFromAddrPort(netip.AddrPortFrom(f.a.Addr(), 53)))
			require.NoError(t, err)
			var buf [64]byte
			n, from, err := server.ReadFrom(buf[:])
			require.NoError(t, err)
			require.Equal(t, "question", string(buf[:n]))
			require.Equal(t, netip.AddrPortFrom(f.c.Addr(), 4000).String(), from.String())
			_, err = server.WriteTo([]byte("answer"), from)
			require.NoError(t, err)
			n, from, err = client.ReadFrom(buf[:])
			require.NoError(t, err)
			require.Equal(t, "answer", string(buf[:n]))
			require.Equal(t, netip.AddrPortFrom(f.b.Addr(), 53).String(), from.String())
		})
	}
}

// A router's own packets leave past the TUN, or turn back if they are to the
// host itself.
func TestSender(t *testing.T) {
	f := families[0]
	l := newLAN()
	a := start(t, l, Config{Name: "a", Addrs: []netip.Prefix{f.a}, Capture: func([]byte) bool { return true }})
	c := start(t, l, Config{Name: "c", Addrs: []netip.Prefix{f.c}})
	for _, to := range []*Host{a, c} {
		dst := to.cfg.Addrs[0].Addr()
		server, err := to.ListenPacket(netip.AddrPortFrom(dst, 7))
		require.NoError(t, err)
		pkts := []dpr.Packet{datagram(f.b.Addr(), dst, 9, 7, "hello")}
		n, err := a.Sender().Write(pkts)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		var buf [64]byte
		n, from, err := server.ReadFrom(buf[:])
		require.NoError(t, err)
		require.Equal(t, "hello", string(buf[:n]))
		require.Equal(t, "192.0.2.2:9", from.String())
		super := datagram(f.b.Addr(), dst, 9, 7, "hello, world")
		super.GSO.Type, super.GSO.Size = dpr.GSOUDP, 5
		_, err = a.Sender().Write([]dpr.Packet{super})
		require.NoError(t, err)
		for _, want := range []string{"hello", ", wor", "ld"} {
			n, _, err := server.ReadFrom(buf[:])
			require.NoError(t, err)
			require.Equal(t, want, string(buf[:n]))
		}
		require.NoError(t, server.Close())
	}
}

// ipv4Packet builds a packet with room for so many bytes behind its header.
func ipv4Packet(src, dst netip.Addr, protocol tcpip.TransportProtocolNumber, length int) (dpr.Packet, header.IPv4) {
	p := dpr.NewPackets(1, 1500)[0]
	p.Len = header.IPv4MinimumSize + length
	ip := header.IPv4(p.Bytes())
	ip.Encode(&header.IPv4Fields{
		TotalLength: uint16(p.Len), TTL: 64, Protocol: uint8(protocol),
		SrcAddr: fullAddress(netip.AddrPortFrom(src, 0)).Addr, DstAddr: fullAddress(netip.AddrPortFrom(dst, 0)).Addr,
	})
	ip.SetChecksum(^ip.CalculateChecksum())
	return p, ip
}

// datagram builds a UDP packet whose checksum is left to the device.
func datagram(src, dst netip.Addr, sport, dport uint16, payload string) dpr.Packet {
	length := uint16(header.UDPMinimumSize + len(payload))
	p, ip := ipv4Packet(src, dst, header.UDPProtocolNumber, int(length))
	udp := header.UDP(ip.Payload())
	udp.Encode(&header.UDPFields{SrcPort: sport, DstPort: dport, Length: length})
	copy(udp.Payload(), payload)
	udp.SetChecksum(header.PseudoHeaderChecksum(header.UDPProtocolNumber, ip.SourceAddress(), ip.DestinationAddress(), length))
	p.GSO = dpr.GSO{NeedsCsum: true, CsumStart: header.IPv4MinimumSize, CsumOffset: udpChecksum}
	return p
}

// A peer acknowledges little by little, then one segment late, then whole windows
// at once. That left gVisor's CUBIC a congestion window of no packets, for good.
func TestUnevenAcknowledgements(t *testing.T) {
	const (
		mss   = 536 - 12 // of a peer that states none (RFC 9293), less timestamps
		quick = 8        // acknowledgements of a quarter of what is under way
	)
	f := families[0]
	l := newLAN()
	a := start(t, l, Config{Name: "a", Addrs: []netip.Prefix{f.a}})
	wire := l.port(f.c)
	ln, err := a.Listen(80)
	require.NoError(t, err)
	defer ln.Close()
	blob := noise(400 << 10)
	for port := uint16(1000); port < 1004; port++ {
		var echo uint32 // the host's last timestamp
		send := func(flags header.TCPFlags, seq, ack uint32, window uint16) {
			_, err := wire.Write([]dpr.Packet{tcpSegment(f.c.Addr(), f.a.Addr(), header.TCPFields{
				SrcPort: port, DstPort: 80, SeqNum: seq, AckNum: ack, Flags: flags, WindowSize: window,
			}, echo)})
			require.NoError(t, err)
		}
		receive := func(wait time.Duration) (header.TCP, bool) {
			timeout := time.After(wait)
			for {
				select {
				case b := <-wire.in:
					if _, seg := split(b); seg.DestinationPort() == port {
						echo = header.ParseSynOptions(seg.Options(), true).TSVal
						return seg, true
					}
				case <-timeout:
					return nil, false
				}
			}
		}
		send(header.TCPFlagSyn, 0, 0, math.MaxUint16)
		synAck, ok := receive(patience)
		require.True(t, ok)
		first := synAck.SequenceNumber() + 1
		send(header.TCPFlagAck, 1, first, math.MaxUint16)
		conn, err := ln.Accept()
		require.NoError(t, err)
		receive(100 * time.Millisecond) // nothing; CUBIC's least window grows with the connection's age
		written := make(chan struct{})
		go func() {
			defer close(written)
			conn.Write(blob)
			conn.Close()
		}()

		acked, got := 0, 0
		take := func(wait time.Duration) bool {
			seg, ok := receive(wait)
			if ok {
				at := int(seg.SequenceNumber() - first)
				if end := at + len(seg.Payload()); at <= got && end > got {
					got = end
				}
			}
			return ok
		}
		for acks := 0; acked < len(blob); acks++ {
			for got == acked {
				require.True(t, take(patience), "the host sends no more after %d bytes", got)
			}
			wait, window := 5*time.Millisecond, uint16(math.MaxUint16)
			switch {
			case acks <= quick:
				wait = 300 * time.Microsecond
			case acks == quick+1:
				wait = 60 * time.Millisecond
			}
			for end := time.Now().Add(wait); take(time.Until(end)); {
			}
			switch {
			case acks < quick:
				acked += (got-acked)/4 + 1
			case acks == quick:
				acked, window = max(acked, got-mss), mss
			default:
				acked = got
			}
			send(header.TCPFlagAck, 1, first+uint32(acked), window)
		}
		<-written
		send(header.TCPFlagRst|header.TCPFlagAck, 1, first+uint32(acked), 0)
	}
}

// tcpSegment builds a TCP packet without payload that echoes a timestamp.
func tcpSegment(src, dst netip.Addr, fields header.TCPFields, echo uint32) dpr.Packet {
	const optionLen = 2 + header.TCPOptionTSLength
	p, ip := ipv4Packet(src, dst, header.TCPProtocolNumber, header.TCPMinimumSize+optionLen)
	seg := header.TCP(ip.Payload())
	fields.DataOffset = header.TCPMinimumSize + optionLen
	seg.Encode(&fields)
	options := seg.Options()
	options[0], options[1] = header.TCPOptionNOP, header.TCPOptionNOP
	header.EncodeTSOption(1, echo, options[2:])
	pseudo := header.PseudoHeaderChecksum(header.TCPProtocolNumber, ip.SourceAddress(), ip.DestinationAddress(), uint16(len(seg)))
	seg.SetChecksum(^seg.CalculateChecksum(pseudo))
	return p
}

func TestDialLocal(t *testing.T) {
	f := families[0]
	second := netip.MustParsePrefix("192.0.2.10/24")
	l := newLAN()
	a := start(t, l, Config{Name: "a", Addrs: []netip.Prefix{f.a, families[1].a}})
	c := start(t, l, Config{Name: "c", Addrs: []netip.Prefix{f.c, second}})
	ln, err := a.Listen(80)
	require.NoError(t, err)
	defer ln.Close()
	for _, local := range []string{"192.0.2.10:5000", "192.0.2.9:0"} {
		at := netip.MustParseAddrPort(local)
		conn, err := c.Dial(t.Context(), at, netip.AddrPortFrom(f.a.Addr(), 80))
		require.NoError(t, err)
		got := conn.LocalAddr().(*net.TCPAddr).AddrPort()
		require.Equal(t, at.Addr(), got.Addr().Unmap())
		if at.Port() != 0 {
			require.Equal(t, at.Port(), got.Port())
		}
		require.NoError(t, conn.Close())
	}
	_, err = c.Dial(t.Context(), netip.AddrPort{}, netip.AddrPortFrom(f.a.Addr(), 81))
	require.ErrorContains(t, err, "refused")
	_, err = c.Dial(t.Context(), netip.AddrPort{}, netip.AddrPortFrom(families[1].a.Addr(), 80))
	require.ErrorContains(t, err, "unreachable")
	_, err = c.DialContext(t.Context(), "unix", "192.0.2.1:80")
	require.ErrorContains(t, err, "unix")
	_, err = c.DialContext(t.Context(), "tcp", "example.org:80")
	require.ErrorContains(t, err, "example.org")
}

// Close ends whatever waits.
func TestClose(t *testing.T) {
	f := families[0]
	l := newLAN()
	a := start(t, l, Config{Name: "a", Addrs: []netip.Prefix{f.a}})
	c := start(t, l, Config{Name: "c", Addrs: []netip.Prefix{f.c}})
	ln, err := a.Listen(80)
	require.NoError(t, err)
	conn, err := c.Dial(t.Context(), netip.AddrPort{}, netip.AddrPortFrom(f.a.Addr(), 80))
	require.NoError(t, err)
	_, err = ln.Accept()
	require.NoError(t, err)

	var wg sync.WaitGroup
	wg.Go(func() { _, err := ln.Accept(); require.Error(t, err) })
	wg.Go(func() { _, err := conn.Read(make([]byte, 1)); require.Error(t, err) })
	wg.Go(func() { _, err := a.TUN().Read(dpr.NewPackets(1, 1500)); require.Error(t, err) })
	wg.Go(func() {
		_, err := c.Dial(t.Context(), netip.AddrPort{}, netip.AddrPortFrom(f.b.Addr(), 80))
		require.Error(t, err)
	})
	require.NoError(t, a.Close())
	require.NoError(t, c.Close())
	wg.Wait()
}

func TestRunEndsWithItsContext(t *testing.T) {
	l := newLAN()
	h, err := New(Config{Addrs: []netip.Prefix{families[0].a}, Wire: l.port(families[0].a)})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- h.Run(ctx) }()
	cancel()
	require.NoError(t, <-done)
	require.NoError(t, h.Close())
}

func TestConfig(t *testing.T) {
	l := newLAN()
	good := []netip.Prefix{families[0].a}
	for _, c := range []struct {
		name, err string
		config    Config
	}{
		{"wire", "Config.Wire", Config{Addrs: good}},
		{"addresses", "Config.Addrs", Config{Wire: l.port()}},
		{"invalid address", "Config.Addrs", Config{Wire: l.port(), Addrs: []netip.Prefix{{}}}},
		{"same address", "192.0.2.1/24", Config{Wire: l.port(), Addrs: []netip.Prefix{good[0], good[0]}}},
		{"MTU", "Config.MTU 1279", Config{Wire: l.port(), Addrs: good, MTU: 1279}},
		{"overhead", "Config.Overhead 1495", Config{Wire: l.port(), Addrs: good, Overhead: 1495}},
		{"time wait", "Config.TimeWait", Config{Wire: l.port(), Addrs: good, TimeWait: -1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.config.Name = "x"
			_, err := New(c.config)
			require.ErrorContains(t, err, c.err)
			require.ErrorContains(t, err, `host "x"`)
		})
	}
	h := start(t, l, Config{Addrs: good})
	require.Error(t, h.SetAliases([]netip.Addr{good[0].Addr()}))
	require.Error(t, h.SetAliases([]netip.Addr{{}}))
}

func FuzzArrived(f *testing.F) {
	l := newLAN()
	h, err := New(Config{Addrs: []netip.Prefix{families[0].a, families[1].a}, Wire: l.port(), Bypass: true, Capture: func(b []byte) bool { return len(b)%2 == 0 }})
	require.NoError(f, err)
	f.Cleanup(func() { h.Close() })
	p := datagram(families[0].c.Addr(), families[0].a.Addr(), 1, 2, "x")
	f.Add(p.Bytes(), uint16(20), uint16(6))
	f.Add([]byte{0x45, 0, 0, 20, 19: 1}, uint16(65535), uint16(65535))
	f.Add([]byte{0x60, 0, 0, 0, 0, 0, 6, 64, 39: 1, 43: 80}, uint16(0), uint16(0))
	f.Add([]byte{}, uint16(0), uint16(0))
	f.Fuzz(func(t *testing.T, b []byte, start, offset uint16) {
		if len(b) > 9000 {
			return
		}
		pkts := dpr.NewPackets(1, len(b))
		copy(pkts[0].Buf[pkts[0].Off:], b)
		pkts[0].Len = len(b)
		pkts[0].GSO = dpr.GSO{NeedsCsum: true, CsumStart: start, CsumOffset: offset}
		h.arrived(&pkts[0])
		_, _ = h.TUN().Write(pkts)
		h.drain()
	})
}

// BenchmarkShortConnections opens a connection for each request, from several
// clients at once; redirected ones pass A's TUN and B's.
func BenchmarkShortConnections(b *testing.B) {
	for _, redirected := range []bool{false, true} {
		name := map[bool]string{false: "direct", true: "redirected"}[redirected]
		b.Run(name, func(b *testing.B) {
			f := families[0]
			l := newLAN()
			a := start(b, l, Config{Name: "a", Addrs: []netip.Prefix{f.a}, Capture: toPort(80)})
			s := start(b, l, Config{Name: "b", Addrs: []netip.Prefix{f.b}})
			c := start(b, l, Config{Name: "c", Addrs: []netip.Prefix{f.c}})
			patch(b, a, s)
			require.NoError(b, s.SetAliases([]netip.Addr{f.a.Addr()}))
			serve(b, s, 80, nil)
			at := f.b
			if redirected {
				at = f.a
			}
			client := browser(b, c, false)
			b.SetParallelism(8)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					post(b, client, url(at, 80, "/"), nil)
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "conn/s")
		})
	}
}

func BenchmarkTransfer(b *testing.B) {
	f := families[0]
	l := newLAN()
	a := start(b, l, Config{Name: "a", Addrs: []netip.Prefix{f.a}})
	c := start(b, l, Config{Name: "c", Addrs: []netip.Prefix{f.c}})
	blob := noise(16 << 20)
	serve(b, a, 80, blob)
	client := browser(b, c, true)
	b.SetBytes(int64(len(blob)))
	for b.Loop() {
		get(b, client, url(f.a, 80, "/blob"))
	}
}
