package hostnet

import (
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
)

// eachFamily runs a test over IPv4 and IPv6, with capture by TCX and by clsact.
func eachFamily(t *testing.T, test func(t *testing.T, w *world, e *engine, a, client netip.Addr)) {
	for _, how := range []struct {
		name  string
		noTCX bool
	}{{"tcx", false}, {"clsact", true}} {
		for i, family := range []string{"IPv4", "IPv6"} {
			t.Run(how.name+"/"+family, func(t *testing.T) {
				w := newWorld(t)
				e := startEngine(t, w.a, Config{Services: services(w.a), noTCX: how.noTCX}, nil)
				e.net.Beat()
				test(t, w, e, addrs(w.a)[i], addrs(w.client)[i])
			})
		}
	}
}

// setAge has the last beat be so old.
func (e *engine) setAge(age time.Duration) {
	e.net.Beat()
	atomic.AddUint64(e.net.beat.at, -uint64(lead+age))
}

// awaitStats returns what the program has counted once that is so: packets from several
// senders may overtake each other, even from one host.
func (e *engine) awaitStats(t *testing.T, what string, so func(Stats) bool) (stats Stats) {
	t.Helper()
	require.Eventually(t, func() bool {
		var err error
		stats, err = e.net.Stats()
		return err == nil && so(stats)
	}, limit, time.Millisecond, what)
	return stats
}

func TestLocalConnectionStaysInKernel(t *testing.T) {
	eachFamily(t, func(t *testing.T, w *world, e *engine, a, client netip.Addr) {
		to := netip.AddrPortFrom(a, port)
		serveEcho(t, w.a, to.String())
		c := dial(t, w.client, to)
		echo(t, c, 1<<20)
		finish(t, c)
		e.onlySYN(t)
		stats, err := e.net.Stats()
		require.NoError(t, err)
		require.Positive(t, stats.CapturedSYN)
		require.Zero(t, stats.CapturedOther)
		require.Greater(t, stats.LocalSocket, uint64(10))
	})
}

func TestOwnConnectionIsNotCaptured(t *testing.T) {
	eachFamily(t, func(t *testing.T, w *world, e *engine, a, client netip.Addr) {
		to := netip.AddrPortFrom(a, port)
		serveEcho(t, w.a, to.String())
		c := dial(t, w.a, to)
		echo(t, c, 1000)
		require.Empty(t, e.take())
	})
}

func TestBlindSYNDoesNotMoveLocalConnection(t *testing.T) {
	eachFamily(t, func(t *testing.T, w *world, e *engine, a, client netip.Addr) {
		to := netip.AddrPortFrom(a, port)
		serveEcho(t, w.a, to.String())
		c := dial(t, w.client, to)
		echo(t, c, 1000)
		e.onlySYN(t)
		before, err := e.net.Stats()
		require.NoError(t, err)
		send(t, w.client, packet(t, client, a, layers.IPProtocolTCP, &layers.TCP{
			SrcPort: layers.TCPPort(addrPort(c.LocalAddr()).Port()), DstPort: port, Seq: 12345, SYN: true, Window: 1000,
		}))
		e.awaitStats(t, "it met the socket", func(s Stats) bool { return s.LocalSocket > before.LocalSocket })
		echo(t, c, 100_000)
		after, err := e.net.Stats()
		require.NoError(t, err)
		require.Equal(t, before.CapturedSYN, after.CapturedSYN)
		require.Empty(t, e.take())
	})
}

func TestSYNCookiesReachTheListener(t *testing.T) {
	eachFamily(t, func(t *testing.T, w *world, e *engine, a, client netip.Addr) {
		require.NoError(t, w.a.SetSysctl("net.ipv4.tcp_syncookies", "2")) // always
		to := netip.AddrPortFrom(a, port)
		serveEcho(t, w.a, to.String())
		c := dial(t, w.client, to)
		echo(t, c, 100_000)
		finish(t, c)
		e.onlySYN(t)
	})
}

func TestPortReuseInTimeWaitIsANewConnection(t *testing.T) {
	eachFamily(t, func(t *testing.T, w *world, e *engine, a, client netip.Addr) {
		to := netip.AddrPortFrom(a, port)
		ln, err := w.a.Listen("tcp", to.String())
		require.NoError(t, err)
		defer ln.Close()
		dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(client, 40000)), Timeout: limit}
		for range 2 {
			require.NoError(t, w.client.Do(func() error {
				c, err := dialer.DialContext(t.Context(), "tcp", to.String())
				if err != nil {
					return err
				}
				defer c.Close()
				s, err := ln.Accept()
				if err != nil {
					return err
				}
				// The server ends first, so the waiting state is its own.
				if err := s.Close(); err != nil {
					return err
				}
				_, err = c.Read(make([]byte, 1))
				require.Error(t, err)
				return nil
			}))
			flags := tcpFlags(t, e.await(t, 1))
			require.Equal(t, "S", flags[0])
		}
	})
}

func TestUnknownFlowGoesToTheEngine(t *testing.T) {
	eachFamily(t, func(t *testing.T, w *world, e *engine, a, client netip.Addr) {
		serveEcho(t, w.a, netip.AddrPortFrom(a, port).String())
		ack := packet(t, client, a, layers.IPProtocolTCP, &layers.TCP{SrcPort: 40001, DstPort: port, Seq: 1, Ack: 1, ACK: true})
		send(t, w.client, ack)
		require.Equal(t, []string{"A"}, tcpFlags(t, e.await(t, 1)))

		e.setAge(time.Second) // too old for what is new, not for what may be redirected
		send(t, w.client, ack)
		require.Equal(t, []string{"A"}, tcpFlags(t, e.await(t, 1)))

		e.setAge(time.Minute)
		c := dial(t, w.client, netip.AddrPortFrom(a, port))
		before, err := e.net.Stats()
		require.NoError(t, err)
		send(t, w.client, ack)
		e.awaitStats(t, "the kernel got it", func(s Stats) bool { return s.FailOpen == before.FailOpen+1 })
		echo(t, c, 1)
		require.Empty(t, e.take())
	})
}

func TestSilentEngineLeavesNewConnectionsToTheKernel(t *testing.T) {
	eachFamily(t, func(t *testing.T, w *world, e *engine, a, client netip.Addr) {
		to := netip.AddrPortFrom(a, port)
		serveEcho(t, w.a, to.String())
		for _, c := range []struct {
			age  time.Duration
			want []string
		}{{-lead, []string{"S"}}, {600 * time.Millisecond, []string{}}, {-lead, []string{"S"}}, {time.Hour, []string{}}} {
			e.setAge(c.age)
			conn := dial(t, w.client, to)
			echo(t, conn, 1000)
			require.Equal(t, c.want, slices.Compact(tcpFlags(t, e.take())), "last beat %v ago", c.age)
		}
	})
}

func TestDatagramsAndTheirFragments(t *testing.T) {
	eachFamily(t, func(t *testing.T, w *world, e *engine, a, client netip.Addr) {
		for _, c := range []struct {
			name          string
			port          uint16
			size, packets int // packets that the engine sees
		}{
			{"first port of the range", 1000, 10, 1},
			{"last port of the range", 1009, 10, 1},
			{"port after the range", 1010, 10, 0},
			{"fragments of a service's datagram", 1000, 4000, 3},
			{"fragments of another's datagram", 1010, 4000, 3},
		} {
			server, err := w.a.ListenPacket("udp", netip.AddrPortFrom(a, c.port).String())
			require.NoError(t, err, c.name)
			require.NoError(t, server.SetDeadline(time.Now().Add(limit)))
			conn, err := w.client.DialContext(t.Context(), "udp", netip.AddrPortFrom(a, c.port).String())
			require.NoError(t, err, c.name)
			_, err = conn.Write(make([]byte, c.size))
			require.NoError(t, err, c.name)
			n, _, err := server.ReadFrom(make([]byte, 9000))
			require.NoError(t, err, c.name)
			require.Equal(t, c.size, n, c.name)
			require.Len(t, e.take(), c.packets, c.name)
			require.NoError(t, server.Close())
			require.NoError(t, conn.Close())
		}
	})
}

// Fragments of a protocol that no service has may be many, such as those of tunnels,
// and are none of the engine's business.
func TestFragmentsOfProtocolsWithoutService(t *testing.T) {
	w := newWorld(t)
	e := startEngine(t, w.a, Config{Services: services(w.a)[:1]}, nil)
	e.net.Beat()
	for i, a := range addrs(w.a) {
		from, to := netip.AddrPortFrom(addrs(w.client)[i], 40000), netip.AddrPortFrom(a, port)
		data := dprtest.Options{ID: 7, Payload: make([]byte, 2000)}
		fragments := func(p []byte) [][]byte { return dprtest.Fragment(p, 1280) }
		packets := slices.Concat(
			fragments(dprtest.UDP(from, to, data)),
			fragments(dprtest.IP(from.Addr(), a, 47, data)),
			fragments(dprtest.TCP(from, to, data)))
		captured := 2
		if a.Is6() {
			data.Extensions = []dprtest.Extension{dprtest.DestOpts(8)}
			packets = append(packets, fragments(dprtest.TCP(from, to, data))...)
			captured += 2
		}
		send(t, w.client, packets...)
		got := e.await(t, captured)
		require.Len(t, got, captured)
		for _, p := range got {
			require.Contains(t, packets[len(packets)-captured:], p.Data())
		}
	}
}

func TestOnlyErrorsAboutRedirectedFlowsAreCaptured(t *testing.T) {
	eachFamily(t, func(t *testing.T, w *world, e *engine, a, client netip.Addr) {
		to := netip.AddrPortFrom(a, port)
		serveEcho(t, w.a, to.String())
		c := dial(t, w.client, to)
		echo(t, c, 1)
		e.take()
		quote := func(sport, dport uint16) []byte {
			quoted := packet(t, a, client, layers.IPProtocolTCP, &layers.TCP{SrcPort: layers.TCPPort(sport), DstPort: layers.TCPPort(dport), ACK: true})
			quoted = quoted[:len(quoted)-12] // 8 bytes of TCP
			if a.Is4() {
				return packet(t, client, a, layers.IPProtocolICMPv4,
					&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 1)}, payload(quoted))
			}
			return packet(t, client, a, layers.IPProtocolICMPv6,
				&layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(1, 3)}, payload(append(make([]byte, 4), quoted...)))
		}
		ping := packet(t, client, a, layers.IPProtocolICMPv4, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0)})
		if a.Is6() {
			ping = packet(t, client, a, layers.IPProtocolICMPv6, &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(128, 0)}, payload(make([]byte, 4)))
		}
		send(t, w.client,
			ping,
			quote(81, 40000), // no service
			quote(port, addrPort(c.LocalAddr()).Port()), // a local connection
			quote(port, 40000))                          // perhaps redirected
		got := e.await(t, 1)
		echo(t, c, 1)
		require.Len(t, append(got, e.take()...), 1)
	})
}

func TestSetServices(t *testing.T) {
	w := newWorld(t)
	e := startEngine(t, w.a, Config{Services: services(w.a)}, nil)
	e.net.Beat()
	serveEcho(t, w.a, ":80")
	serveEcho(t, w.a, ":81")
	captured := func(port uint16) bool {
		c := dial(t, w.client, netip.AddrPortFrom(w.a.Addr4(), port))
		echo(t, c, 1)
		return len(e.take()) > 0
	}
	require.True(t, captured(80))
	require.False(t, captured(81))
	require.NoError(t, e.net.SetServices([]Service{{Protocol: protocolTCP, Port: 81, Addrs: addrs(w.a)}}))
	require.False(t, captured(80))
	require.True(t, captured(81))
	err := e.net.SetServices([]Service{{Protocol: protocolTCP, Port: 82, PortEnd: 81, Addrs: addrs(w.a)}})
	require.ErrorContains(t, err, "Services[0]: ports 82 to 81")
	require.True(t, captured(81), "a refused set changes nothing")
}

// burst sends SYNs to a from ports of the client that nobody uses, and returns what
// the program counted of them and how long they took.
func burst(t *testing.T, w *world, e *engine, a, client netip.Addr, syns int) (Stats, time.Duration) {
	t.Helper()
	var packets [][]byte
	for i := range syns {
		packets = append(packets, packet(t, client, a, layers.IPProtocolTCP,
			&layers.TCP{SrcPort: layers.TCPPort(10000 + i), DstPort: port, Seq: 1, SYN: true, Window: 1000}))
	}
	c := dial(t, w.client, netip.AddrPortFrom(a, port))
	echo(t, c, 1)
	before, err := e.net.Stats()
	require.NoError(t, err)
	start := time.Now()
	send(t, w.client, packets...)
	after := e.awaitStats(t, "all have come", func(s Stats) bool {
		return s.CapturedSYN+s.LimitedSYN-before.CapturedSYN-before.LimitedSYN >= uint64(syns)
	})
	return Stats{CapturedSYN: after.CapturedSYN - before.CapturedSYN, LimitedSYN: after.LimitedSYN - before.LimitedSYN}, time.Since(start)
}

func TestSYNsAboveTheRateStayWithTheKernel(t *testing.T) {
	const syns, rate = 300, 5 // a minute's worth
	for i, family := range []string{"IPv4", "IPv6"} {
		t.Run(family, func(t *testing.T) {
			w := newWorld(t)
			e := startEngine(t, w.a, Config{Services: services(w.a), SYNRate: rate}, nil)
			e.net.Beat()
			a, client := addrs(w.a)[i], addrs(w.client)[i]
			serveEcho(t, w.a, netip.AddrPortFrom(a, port).String())
			got, took := burst(t, w, e, a, client, syns)
			require.Positive(t, got.LimitedSYN)
			require.LessOrEqual(t, float64(got.CapturedSYN), 1+rate*(took+synBurst).Seconds())

			// Whatever the bucket holds, clients connect, and other packets come up.
			for range 10 {
				echo(t, dial(t, w.client, netip.AddrPortFrom(a, port)), 1000)
			}
			e.take()
			send(t, w.client, packet(t, client, a, layers.IPProtocolTCP,
				&layers.TCP{SrcPort: 9999, DstPort: port, Seq: 1, Ack: 1, ACK: true}))
			require.Contains(t, tcpFlags(t, e.await(t, 1)), "A")
		})
	}
}

func TestNegativeSYNRateIsNoLimit(t *testing.T) {
	w := newWorld(t)
	e := startEngine(t, w.a, Config{Services: services(w.a), SYNRate: -1}, nil)
	e.net.Beat()
	serveEcho(t, w.a, netip.AddrPortFrom(w.a.Addr4(), port).String())
	got, _ := burst(t, w, e, w.a.Addr4(), w.client.Addr4(), 300)
	require.Zero(t, got.LimitedSYN)
	require.Equal(t, uint64(300), got.CapturedSYN)
}

// answersAt returns what is heard at the client's address, as it comes.
func answersAt(t *testing.T, e *engine, client netip.Addr) <-chan []byte {
	t.Helper()
	r, err := e.net.OpenAnswers(client)
	require.NoError(t, err)
	heard := make(chan []byte, 10)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			b := make([]byte, 256)
			n, err := r.Read(b)
			if err != nil {
				return
			}
			heard <- b[:n]
		}
	}()
	t.Cleanup(func() {
		require.NoError(t, r.Close())
		<-done
	})
	return heard
}

// awaitAnswer returns the next answer.
func awaitAnswer(t *testing.T, heard <-chan []byte) []byte {
	t.Helper()
	select {
	case b := <-heard:
		return b
	case <-time.After(limit):
		require.Fail(t, "nothing was heard")
		return nil
	}
}

func TestAnswersToProbesAreHeardAtTheTUN(t *testing.T) {
	eachFamily(t, func(t *testing.T, w *world, e *engine, a, client netip.Addr) {
		heard := answersAt(t, e, a)
		answer := func(seq uint32, from netip.Addr, sport, dport layers.TCPPort) []byte {
			return packet(t, from, a, layers.IPProtocolTCP,
				&layers.TCP{SrcPort: sport, DstPort: dport, Seq: seq, Ack: 1, SYN: true, ACK: true})
		}
		send(t, w.client,
			answer(1, client, port, dpr.ProbePort), // not where a service is dialled
			answer(2, a, port+1, dpr.ProbePort),
			answer(3, a, port, dpr.ProbePort+1))
		want := answer(4, a, port, dpr.ProbePort)
		send(t, w.client, want)
		require.Equal(t, want, awaitAnswer(t, heard))

		// It outlives an interface that is down for a while.
		tun, err := w.a.Netlink().LinkByName("carom0")
		require.NoError(t, err)
		require.NoError(t, w.a.Netlink().LinkSetDown(tun))
		require.NoError(t, w.a.Netlink().LinkSetUp(tun))
		send(t, w.client, want)
		require.Equal(t, want, awaitAnswer(t, heard))
		require.Empty(t, e.take(), "the engine has nothing to do with it")
	})
}

// An address that is on no captured interface may be reached through any.
func TestAnswersToProbesFromElsewhereAreHeard(t *testing.T) {
	w := newWorld(t)
	e := startEngine(t, w.a, Config{Services: services(w.a)}, nil)
	e.net.Beat()
	for i, elsewhere := range []netip.Addr{netip.MustParseAddr("10.9.9.9"), netip.MustParseAddr("fd09::9")} {
		heard := answersAt(t, e, elsewhere)
		a := addrs(w.a)[i]
		send(t, w.client, packet(t, addrs(w.client)[i], a, layers.IPProtocolTCP,
			&layers.TCP{SrcPort: port, DstPort: dpr.ProbePort, Seq: 1, Ack: 1, SYN: true, ACK: true}))
		awaitAnswer(t, heard)
	}
}
