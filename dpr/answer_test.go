package dpr_test

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
)

// Where a host that serves flows for another, which is dialled at vip, is dialled itself.
var (
	own  = netip.MustParseAddr("198.51.100.2")
	own6 = netip.MustParseAddr("2001:db8:f::2")
)

// newServing returns the engine of such a host, on Ethernet, with GUE over IPv6 and four
// bytes of it.
func newServing(t *testing.T, reply dpr.ReplyMode) *bench {
	t.Helper()
	addrs := []netip.Addr{own, own6, vip.Addr(), vip6.Addr()}
	e, err := dpr.New(dpr.Config{Services: []dpr.Service{
		{Name: "web", Proto: dpr.TCP, Port: 80, Addrs: addrs, Reply: reply},
		{Name: "dns", Proto: dpr.UDP, Port: 53, Addrs: addrs, Reply: reply},
	}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	require.NoError(t, e.SetPeers([]dpr.Peer{
		{ID: "other", Addrs: []netip.Addr{netip.MustParseAddr("198.51.100.3")}},
		{ID: "entry", Addrs: []netip.Addr{vip.Addr(), vip6.Addr()}, MTU: tunnelMTU},
	}))
	return &bench{t: t, Engine: e, now: time.Now()}
}

const tunnelMTU = 1500 - 48 - 4

// A pair is a client and what it dials, of one family.
type pair struct{ client, tcp, udp netip.AddrPort }

var pairs = map[string]pair{"IPv4": {client, vip, dns}, "IPv6": {client6, vip6, dns6}}

func eachPair(t *testing.T, test func(t *testing.T, p pair)) {
	for name, p := range pairs {
		t.Run(name, func(t *testing.T) { test(t, p) })
	}
}

func hopLimit(b []byte) byte {
	if b[0]>>4 == 4 {
		return b[8]
	}
	return b[7]
}

// The serving host hands its server's answers to the host that was dialled, and nothing
// else that its kernel sends.
func TestServingHostTunnelsAnswers(t *testing.T) {
	eachPair(t, func(t *testing.T, x pair) {
		b := newServing(t, dpr.ReplyTunnelled)
		answer := dprtest.TCP(x.tcp, x.client, dprtest.Options{Flags: ack, Seq: 1, Payload: make([]byte, 100), TTL: 64, DF: true})
		p := b.from(answer)
		b.requireForward(p, "entry")
		require.Equal(t, byte(63), hopLimit(p.Bytes()))
		b.requireForward(b.from(dprtest.UDP(x.udp, x.client, dprtest.Options{Payload: []byte("answer")})), "entry")
		require.Zero(t, b.flows())

		for name, other := range map[string][]byte{
			"another port": dprtest.TCP(netip.AddrPortFrom(x.tcp.Addr(), 81), x.client, dprtest.Options{Flags: ack}),
			"its own":      dprtest.TCP(netip.AddrPortFrom(own, 80), client, dprtest.Options{Flags: ack}),
			"its own IPv6": dprtest.TCP(netip.AddrPortFrom(own6, 80), client6, dprtest.Options{Flags: ack}),
		} {
			require.Equal(t, dpr.Pass, b.from(other).Verdict, name)
		}
		require.NoError(t, b.SetPeers(nil))
		require.Equal(t, dpr.Pass, b.from(answer).Verdict, "the host that was dialled is gone")
	})
}

// What does not fit the tunnel is told to this host's own kernel.
func TestServingHostLearnsWhatFits(t *testing.T) {
	eachPair(t, func(t *testing.T, x pair) {
		b := newServing(t, dpr.ReplyTunnelled)
		p := b.from(dprtest.TCP(x.tcp, x.client, dprtest.Options{Flags: ack, Payload: make([]byte, 1460), DF: true}))
		require.Equal(t, dpr.Local, p.Verdict)
		require.NoError(t, dprtest.Check(p.Bytes()))
		src, dst := addresses(p.Bytes())
		require.Equal(t, []netip.Addr{x.client.Addr(), x.tcp.Addr()}, []netip.Addr{src, dst})
		mtu := p.Bytes()[20+4:]
		if src.Is6() {
			mtu = p.Bytes()[40+4:]
		}
		require.EqualValues(t, tunnelMTU, binary.BigEndian.Uint32(mtu))

		super := packet(dprtest.TCP(x.tcp, x.client, dprtest.Options{Flags: ack, Payload: make([]byte, 20_000), DF: true, Checksum: dprtest.Partial}))
		super.GSO = dpr.GSO{Type: dpr.GSOTCP4, NeedsCsum: true, Size: 1300}
		pkts := []dpr.Packet{super}
		b.Process(pkts, b.now)
		require.Equal(t, dpr.Forward, pkts[0].Verdict, "its segments fit")
	})
	b := newServing(t, dpr.ReplyTunnelled)
	first := b.from(dprtest.UDP(dns, client, dprtest.Options{Payload: make([]byte, 3000), ID: 1}))
	require.Equal(t, dpr.Forward, first.Verdict)
	rest := b.extra()
	require.Len(t, rest, 2)
	for _, p := range append(rest, first) {
		b.requireForward(p, "entry")
		require.LessOrEqual(t, p.Len, tunnelMTU)
	}
}

// The entry host transmits the answers of flows that it has handed to their sender.
func TestEntryHostTransmitsAnswers(t *testing.T) {
	eachPair(t, func(t *testing.T, x pair) {
		b := newBench(t, dpr.Config{Confirm: true})
		b.requireForward(b.from(tcpFrom(x.client, syn, 1000, 0)), "h2")
		b.requireForward(b.from(datagram(x.client, 10, dprtest.Options{})), "h2")
		for _, answer := range [][]byte{
			dprtest.TCP(x.tcp, x.client, dprtest.Options{Flags: syn | ack, Seq: 9, Ack: 1001, TTL: 63}),
			dprtest.UDP(x.udp, x.client, dprtest.Options{Payload: []byte("answer"), TTL: 63}),
		} {
			p := b.fromPeer("h2", answer)
			require.Equal(t, dpr.Transmit, p.Verdict)
			require.NoError(t, dprtest.Check(p.Bytes()))
			require.Equal(t, byte(62), hopLimit(p.Bytes()))
			require.Equal(t, dpr.Drop, b.fromPeer("h3", answer).Verdict, "of a peer that does not serve it")
			require.Equal(t, dpr.Pass, b.from(answer).Verdict, "from the network")
		}
		elsewhere := netip.AddrPortFrom(x.client.Addr(), 5)
		require.Equal(t, dpr.Drop, b.fromPeer("h2", dprtest.TCP(x.tcp, elsewhere, dprtest.Options{Flags: ack})).Verdict)
		require.EqualValues(t, 3, b.Stats().Drops[dpr.Unsolicited])
		require.EqualValues(t, 2, b.Stats().Verdicts[dpr.Transmit])
		require.Equal(t, dpr.Drop, b.fromPeer("h2", dprtest.TCP(netip.AddrPortFrom(x.tcp.Addr(), 81), x.client, dprtest.Options{Flags: ack})).Verdict)
		require.EqualValues(t, 1, b.Stats().Drops[dpr.NotService])
		b.choose("self")
		b.from(tcpFrom(elsewhere, syn, 1, 0))
		require.Equal(t, dpr.Drop, b.fromPeer("h2", dprtest.TCP(x.tcp, elsewhere, dprtest.Options{Flags: ack})).Verdict, "served here")
	})
}

// No packet travels in a circle: what came from a peer goes to none, whatever its hops.
func TestAnswersEndAtTheEntryHost(t *testing.T) {
	eachPair(t, func(t *testing.T, x pair) {
		b := newBench(t, dpr.Config{})
		require.NoError(t, b.SetPeers([]dpr.Peer{{ID: "h2"}, {ID: "h3", Addrs: []netip.Addr{own, own6}}}))
		b.from(tcpFrom(x.client, syn, 1000, 0))
		last := dprtest.TCP(x.tcp, x.client, dprtest.Options{Flags: ack, TTL: 1})
		p := b.fromPeer("h2", last)
		require.Equal(t, dpr.Drop, p.Verdict)
		require.EqualValues(t, 1, b.Stats().Drops[dpr.HopLimit])
		both := newServing(t, dpr.ReplyTunnelled)
		for range 70 {
			require.Equal(t, dpr.Drop, both.fromPeer("other", dprtest.TCP(x.tcp, x.client, dprtest.Options{Flags: ack})).Verdict)
		}
	})
}

// The flow follows the server's half: its data opens the connection, its reset ends it.
func TestEntryHostFollowsTheServer(t *testing.T) {
	eachPair(t, func(t *testing.T, x pair) {
		b := newBench(t, dpr.Config{Confirm: true})
		answer := func(flags dprtest.Flags, toSeq uint32, n int) dpr.Packet {
			return b.fromPeer("h2", dprtest.TCP(x.tcp, x.client, dprtest.Options{Flags: flags, Seq: 10, Ack: toSeq, Payload: make([]byte, n)}))
		}
		in := func(s dpr.State) int { return b.Stats().Flows[s] }
		b.from(tcpFrom(x.client, syn, 1000, 0))
		answer(syn|ack, 1001, 0)
		require.Equal(t, 1, in(dpr.Embryonic))
		b.from(tcpFrom(x.client, ack, 1001, 0))
		answer(ack, 1001, 0)
		require.Equal(t, 1, in(dpr.Unconfirmed), "an ACK may answer a forger's")
		answer(ack, 1001, 10)
		require.Equal(t, 1, in(dpr.Established))
		answer(rstAck, 1001+1<<20, 0)
		require.Equal(t, 1, in(dpr.Established), "a reset that is not for it")
		answer(rstAck, 1001, 0)
		require.Equal(t, 1, in(dpr.Closed))
		require.Zero(t, b.open("h2", "web"))
		b.from(tcpFrom(x.client, ack, 1001, 5))
		require.Equal(t, 1, in(dpr.Unconfirmed), "the client goes on")
		require.Equal(t, 1, b.open("h2", "web"))
		answer(finAck, 1001, 0)
		require.Equal(t, 1, in(dpr.Established))
		b.from(tcpFrom(x.client, finAck, 1006, 0))
		for range 3 { // a half-closed transfer
			b.pass(3 * time.Minute)
			require.Equal(t, dpr.Transmit, answer(ack, 1007, 100).Verdict)
		}
		require.Equal(t, 1, in(dpr.Closing))

		b.from(datagram(x.client, 10, dprtest.Options{}))
		require.Equal(t, 1, in(dpr.UDPNew))
		b.fromPeer("h2", dprtest.UDP(x.udp, x.client, dprtest.Options{}))
		require.Equal(t, 1, in(dpr.UDPFlow))
	})
}

// An answer to a probe is for this host itself, whose kernel has the probe's end.
func TestAnswersToProbesArrive(t *testing.T) {
	eachPair(t, func(t *testing.T, x pair) {
		b := newBench(t, dpr.Config{})
		prober := netip.AddrPortFrom(x.client.Addr(), dpr.ProbePort)
		for flags, want := range map[dprtest.Flags]dpr.Verdict{syn | ack: dpr.Local, rstAck: dpr.Local, ack: dpr.Drop, syn: dpr.Drop} {
			require.Equal(t, want, b.fromPeer("h2", dprtest.TCP(x.tcp, prober, dprtest.Options{Flags: flags})).Verdict, flags.String())
		}
	})
}

// Fragments of an answer pass both hosts, in any order at the one that was dialled.
func TestFragmentsOfAnswers(t *testing.T) {
	eachPair(t, func(t *testing.T, x pair) {
		frags := dprtest.Fragment(dprtest.UDP(x.udp, x.client, dprtest.Options{Payload: make([]byte, 3000), ID: 7}), 1300)
		serving := newServing(t, dpr.ReplyTunnelled)
		for _, f := range frags {
			serving.requireForward(serving.from(f), "entry")
		}
		for _, order := range [][]int{{0, 1, 2}, {1, 2, 0}, {2, 0, 1}} {
			b := newBench(t, dpr.Config{})
			b.from(datagram(x.client, 10, dprtest.Options{}))
			sent := 0
			for _, i := range order {
				for _, p := range append([]dpr.Packet{b.fromPeer("h2", frags[i])}, b.extra()...) {
					if p.Verdict != dpr.Hold {
						require.Equal(t, dpr.Transmit, p.Verdict)
						require.NoError(t, dprtest.Check(p.Bytes()))
						sent++
					}
				}
			}
			require.Equal(t, 3, sent, "order %v", order)
		}
		b := newBench(t, dpr.Config{})
		require.Equal(t, dpr.Drop, b.fromPeer("h2", frags[0]).Verdict, "of no flow")
		require.Equal(t, dpr.Hold, b.fromPeer("h2", frags[1]).Verdict)
	})
}

// A client that is a host of the cluster dials from an address that is dialled itself.
func TestFragmentsBetweenHosts(t *testing.T) {
	for name, x := range map[string]struct{ peer, dialled netip.Addr }{"IPv4": {own, vip.Addr()}, "IPv6": {own6, vip6.Addr()}} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, dpr.Config{})
			require.NoError(t, b.SetServices([]dpr.Service{
				{Name: "dns", Proto: dpr.UDP, Port: 53, Addrs: []netip.Addr{x.dialled, x.peer}},
			}))
			require.NoError(t, b.SetPeers([]dpr.Peer{{ID: "h2"}, {ID: "h3", Addrs: []netip.Addr{x.peer}}}))
			question := dprtest.UDP(netip.AddrPortFrom(x.peer, 999), netip.AddrPortFrom(x.dialled, 53), dprtest.Options{Payload: make([]byte, 3000), ID: 7})
			for _, f := range dprtest.Fragment(question, 1300) {
				b.requireForward(b.from(f), "h2")
			}
			answer := dprtest.UDP(netip.AddrPortFrom(x.dialled, 53), netip.AddrPortFrom(x.peer, 999), dprtest.Options{Payload: make([]byte, 3000), ID: 7})
			for _, f := range dprtest.Fragment(answer, 1300) {
				require.Equal(t, dpr.Transmit, b.fromPeer("h2", f).Verdict)
			}
			// And what h3 was asked at its own address, and hands to this host.
			redirected := dprtest.UDP(netip.AddrPortFrom(x.dialled, 999), netip.AddrPortFrom(x.peer, 53), dprtest.Options{Payload: make([]byte, 3000), ID: 8})
			for _, f := range dprtest.Fragment(redirected, 1300) {
				require.Equal(t, dpr.Local, b.fromPeer("h3", f).Verdict)
			}
		})
	}
}

// An ICMP error of the serving host about a client's packet goes the way of an answer,
// and one about an answer comes to the serving host.
func TestICMPErrorsOfTunnelledFlows(t *testing.T) {
	eachPair(t, func(t *testing.T, x pair) {
		question := datagram(x.client, 10, dprtest.Options{})
		refused := dprtest.PortUnreachable(x.udp.Addr(), question, dprtest.LongQuote)
		serving := newServing(t, dpr.ReplyTunnelled)
		serving.requireForward(serving.from(refused), "entry")
		stranger := dprtest.PortUnreachable(x.client.Addr(), question, dprtest.LongQuote)
		require.Equal(t, dpr.Pass, serving.from(stranger).Verdict, "not from who was asked")

		b := newBench(t, dpr.Config{})
		require.Equal(t, dpr.Drop, b.fromPeer("h2", refused).Verdict, "of no flow")
		b.from(question)
		p := b.fromPeer("h2", refused)
		require.Equal(t, dpr.Transmit, p.Verdict)
		require.NoError(t, dprtest.Check(p.Bytes()))
		require.Equal(t, dpr.Drop, b.fromPeer("h3", refused).Verdict)
		require.EqualValues(t, 2, b.Stats().Drops[dpr.Unsolicited])

		answer := dprtest.UDP(x.udp, x.client, dprtest.Options{})
		from := router
		if x.client.Addr().Is6() {
			from = router6
		}
		about := dprtest.TooBig(from, answer, 1300, dprtest.ShortQuote)
		b.requireForward(b.from(about), "h2")
		require.Equal(t, dpr.Local, serving.fromPeer("entry", about).Verdict)
	})
}

// The host that was dialled may have the narrower way to the client. Its peer is told.
func TestAnswerTooBigToTransmit(t *testing.T) {
	eachPair(t, func(t *testing.T, x pair) {
		b := newBench(t, dpr.Config{})
		b.from(tcpFrom(x.client, syn, 1000, 0))
		p := b.fromPeer("h2", dprtest.TCP(x.tcp, x.client, dprtest.Options{Flags: ack, Payload: make([]byte, 1300), DF: true}))
		require.Equal(t, dpr.Transmit, p.Verdict)
		require.True(t, b.TooBig(&p, 1280, b.now))
		b.requireForward(p, "h2")
		serving := newServing(t, dpr.ReplyTunnelled)
		require.Equal(t, dpr.Local, serving.fromPeer("entry", p.Bytes()).Verdict)
		_, dst := addresses(p.Bytes())
		require.Equal(t, x.tcp.Addr(), dst)
	})
}

// Both segment sizes of a handshake are lowered to what the tunnel carries, never raised,
// wherever the option lies.
func TestA15SegmentSizes(t *testing.T) {
	nop, mss := byte(1), func(v uint16) []byte { return []byte{2, 4, byte(v >> 8), byte(v)} }
	eachPair(t, func(t *testing.T, x pair) {
		most := uint16(tunnelMTU - 40)
		if x.client.Addr().Is6() {
			most = tunnelMTU - 60
		}
		for name, tt := range map[string]struct {
			options []byte
			want    []byte
		}{
			"1460":           {mss(1460), mss(most)},
			"8960":           {mss(8960), mss(most)},
			"none":           {nil, nil},
			"500":            {mss(500), mss(500)},
			"at an odd byte": {append([]byte{nop}, mss(1460)...), append([]byte{nop}, mss(most)...)},
		} {
			for _, checksum := range []dprtest.Checksum{dprtest.Right, dprtest.Wrong} {
				build := func(from, to netip.AddrPort, flags dprtest.Flags, ttl byte, options []byte) []byte {
					return dprtest.TCP(from, to, dprtest.Options{Flags: flags, Seq: 7, TCPOptions: options, Checksum: checksum, TTL: ttl})
				}
				b := newServing(t, dpr.ReplyTunnelled)
				p := b.fromPeer("entry", build(x.client, x.tcp, syn, 64, tt.options))
				require.Equal(t, dpr.Local, p.Verdict)
				require.Empty(t, dprtest.Diff(build(x.client, x.tcp, syn, 64, tt.want), p.Bytes()), "SYN, %s", name)
				p = b.from(build(x.tcp, x.client, syn|ack, 64, tt.options))
				b.requireForwardRaw(p, "entry")
				require.Empty(t, dprtest.Diff(build(x.tcp, x.client, syn|ack, 63, tt.want), p.Bytes()), "SYN-ACK, %s", name)

				direct := newServing(t, dpr.ReplyDirect)
				in := build(x.client, x.tcp, syn, 64, tt.options)
				p = direct.fromPeer("entry", in)
				require.Equal(t, in, p.Bytes(), "the answers do not pass the tunnel")
			}
		}
	})
}

// requireForwardRaw is requireForward for packets whose checksum came in wrong.
func (b *bench) requireForwardRaw(p dpr.Packet, peer string) {
	b.t.Helper()
	require.Equal(b.t, dpr.Forward, p.Verdict)
	require.Equal(b.t, b.PeerID(peer), p.Peer)
}
