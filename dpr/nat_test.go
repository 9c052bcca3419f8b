package dpr_test

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/internal/header"
)

// h3 is a plain server, and these are its endpoints and the addresses of this host
// that it answers to.
var (
	plain   = netip.MustParseAddrPort("203.0.113.3:8080")
	plain6  = netip.MustParseAddrPort("[2001:db8:a::3]:8080")
	resolv  = netip.MustParseAddrPort("203.0.113.3:5353")
	resolv6 = netip.MustParseAddrPort("[2001:db8:a::3]:5353")
	entry   = netip.MustParseAddr("203.0.113.1")
	entry6  = netip.MustParseAddr("2001:db8:a::1")
)

func natPeers() []dpr.Peer {
	return []dpr.Peer{{ID: "h2"}, {ID: "h3", Servers: map[string][]netip.AddrPort{"web": {plain, plain6}, "dns": {resolv, resolv6}}}}
}

// A natBench sends new flows to the plain server.
type natBench struct{ *bench }

func newNAT(t *testing.T, cfg dpr.Config) natBench {
	t.Helper()
	cfg.NAT.Sources = []netip.Addr{entry, entry6}
	b := newBench(t, cfg)
	require.NoError(t, b.SetPeers(natPeers()))
	b.choose("h3")
	return natBench{b}
}

// A side is what one family's flow looks like.
type side struct {
	client, dialled, server netip.AddrPort
	source                  netip.Addr
}

var (
	web4 = side{client, vip, plain, entry}
	web6 = side{client6, vip6, plain6, entry6}
	ask4 = side{client, dns, resolv, entry}
	ask6 = side{client6, dns6, resolv6, entry6}
)

// leaves returns the end that the server knows the client's flow by.
func (b natBench) leaves(s side) netip.AddrPort {
	b.t.Helper()
	for f := range b.Flows(b.now) {
		if f.Client == s.client && f.Dialled == s.dialled {
			require.Equal(b.t, s.server, f.Server)
			require.Equal(b.t, s.source, f.Source.Addr())
			return f.Source
		}
	}
	require.Fail(b.t, "no such flow")
	return netip.AddrPort{}
}

// requireBytes expects a packet that leaves as one of this host's own.
func (b natBench) requireBytes(p dpr.Packet, want []byte) {
	b.t.Helper()
	require.Equal(b.t, dpr.Transmit, p.Verdict)
	require.Equal(b.t, want, p.Bytes(), dprtest.Diff(want, p.Bytes()))
}

// out sends a segment of the client, and expects the same from this host's end.
func (b natBench) out(s side, o dprtest.Options) {
	b.t.Helper()
	p := b.from(dprtest.TCP(s.client, s.dialled, o))
	o.TTL = 63
	b.requireBytes(p, dprtest.TCP(b.leaves(s), s.server, o))
	require.NoError(b.t, dprtest.Check(p.Bytes()))
}

// in sends a segment of the server, and expects the same from the dialled end.
func (b natBench) in(s side, o dprtest.Options) {
	b.t.Helper()
	p := b.from(dprtest.TCP(s.server, b.leaves(s), o))
	o.TTL = 63
	b.requireBytes(p, dprtest.TCP(s.dialled, s.client, o))
	require.NoError(b.t, dprtest.Check(p.Bytes()))
}

type seg = dprtest.Options

// The client's numbers begin at 1000, the server's at 7000.
func (b natBench) connect(s side) {
	b.t.Helper()
	b.out(s, seg{Flags: syn, Seq: 1000, MSS: 1200})
	b.in(s, seg{Flags: syn | ack, Seq: 7000, Ack: 1001, MSS: 1200})
	b.out(s, seg{Flags: ack, Seq: 1001, Ack: 7001})
}

func (b natBench) state() (only dpr.State) {
	b.t.Helper()
	n := 0
	for f := range b.Flows(b.now) {
		only = f.State
		n++
	}
	require.Equal(b.t, 1, n)
	return only
}

func (b natBench) ports(server netip.AddrPort, proto dpr.Proto) dpr.NATPorts {
	b.t.Helper()
	for _, p := range b.Stats().NAT {
		if p.Server == server && p.Proto == proto {
			return p
		}
	}
	require.Fail(b.t, "no such server")
	return dpr.NATPorts{}
}

func TestNATConnection(t *testing.T) {
	for _, s := range []side{web4, web6} {
		t.Run(s.client.Addr().String(), func(t *testing.T) {
			b := newNAT(t, dpr.Config{Confirm: true})
			b.connect(s)
			require.Equal(t, dpr.Established, b.state())
			require.Equal(t, 1, b.open("h3", "web"))
			b.choose("h2") // the choice is bound to the flow
			b.out(s, seg{Flags: ack | dprtest.PSH, Seq: 1001, Ack: 7001, Payload: make([]byte, 501), DF: true})
			b.in(s, seg{Flags: ack, Seq: 7001, Ack: 1502, Payload: make([]byte, 1300), DF: true, TOS: 0x2e<<2 | 1})
			b.out(s, seg{Flags: finAck, Seq: 1502, Ack: 8301})
			require.Equal(t, dpr.Closing, b.state())
			require.Zero(t, b.open("h3", "web"))
			require.Zero(t, b.Live("h3", "web").Load())
			b.in(s, seg{Flags: ack, Seq: 8301, Ack: 1503})
			b.in(s, seg{Flags: finAck, Seq: 8301, Ack: 1503})
			require.Equal(t, dpr.Closing, b.state())
			b.out(s, seg{Flags: ack, Seq: 1503, Ack: 8302})
			require.Equal(t, dpr.Closed, b.state())
			b.pass(11 * time.Second)
			require.Zero(t, b.flows())
			require.Empty(t, b.Questions(nil), "a plain server answers none")
		})
	}
}

func TestNATDatagrams(t *testing.T) {
	for _, s := range []side{ask4, ask6} {
		b := newNAT(t, dpr.Config{})
		query := seg{Payload: []byte("query")}
		p := b.from(dprtest.UDP(s.client, s.dialled, query))
		query.TTL = 63
		b.requireBytes(p, dprtest.UDP(b.leaves(s), s.server, query))
		answer := seg{Payload: []byte("an answer")}
		p = b.from(dprtest.UDP(s.server, b.leaves(s), answer))
		answer.TTL = 63
		b.requireBytes(p, dprtest.UDP(s.dialled, s.client, answer))
		require.Equal(t, dpr.UDPNew, b.state())
		b.pass(29 * time.Second)
		require.Equal(t, 1, b.flows(), "the answer refreshed it")
	}
}

// Flows that no plain server can take are served here, and what nobody knows is the
// kernel's.
func TestNATLeavesAlone(t *testing.T) {
	b := newNAT(t, dpr.Config{})
	require.NoError(t, b.SetPeers([]dpr.Peer{{ID: "h3", Servers: map[string][]netip.AddrPort{"web": {plain}}}}))
	require.Equal(t, dpr.Local, b.from(tcpFrom(client6, syn, 1, 0)).Verdict, "no server of the family")
	require.Equal(t, dpr.Local, b.from(datagram(client, 1, dprtest.Options{})).Verdict, "no server of the service")
	require.Zero(t, b.Stats().NoPort)
	b.out(web4, seg{Flags: syn, Seq: 1000})
	at := b.leaves(web4)
	for name, data := range map[string][]byte{
		"a port that no flow has": dprtest.TCP(plain, netip.AddrPortFrom(entry, at.Port()^1), seg{Flags: ack}),
		"another server":          dprtest.TCP(netip.AddrPortFrom(plain.Addr(), 81), at, seg{Flags: ack}),
		"another protocol":        dprtest.UDP(plain, at, seg{}),
		"another address":         dprtest.TCP(plain, netip.AddrPortFrom(vip.Addr(), at.Port()), seg{Flags: ack}),
		"about nothing of ours":   dprtest.TooBig(router, dprtest.TCP(netip.AddrPortFrom(entry, at.Port()^1), plain, seg{Flags: ack}), 1300, 8),
	} {
		p := b.from(data)
		require.Equal(t, dpr.Pass, p.Verdict, name)
		require.Equal(t, data, p.Bytes(), name)
	}
	require.Equal(t, dpr.Drop, b.fromPeer("h3", dprtest.TCP(plain, at, seg{Flags: ack})).Verdict, "A38: a peer has no say in it")
	// Addresses that are authenticated cannot be changed (A53).
	b = newNAT(t, dpr.Config{})
	auth := func(flags dprtest.Flags) []byte {
		return dprtest.TCP(client6, vip6, seg{Flags: flags, Seq: 1000, Extensions: []dprtest.Extension{dprtest.Auth(1, 1)}})
	}
	require.Equal(t, dpr.Local, b.from(auth(syn)).Verdict)
	b = newNAT(t, dpr.Config{})
	b.out(web6, seg{Flags: syn, Seq: 1000})
	require.Equal(t, dpr.Drop, b.from(auth(ack)).Verdict)
	require.Equal(t, uint64(1), b.Stats().Drops[dpr.Reason(header.BadExtension)])
}

func TestA14QuotesAreTranslated(t *testing.T) {
	for _, s := range []side{web4, web6} {
		at := router
		if s.client.Addr().Is6() {
			at = router6
		}
		b := newNAT(t, dpr.Config{})
		b.connect(s)
		leaves := b.leaves(s)
		for _, quote := range []int{8, 16, 18, 20, 500} {
			segment := seg{Flags: ack, Seq: 1001, Payload: make([]byte, 1401), DF: true}
			there := dprtest.TCP(leaves, s.server, segment)
			here := dprtest.TCP(s.client, s.dialled, segment)
			p := b.from(dprtest.TooBig(at, there, 1300, quote))
			require.Equal(t, dpr.Transmit, p.Verdict)
			b.requireError(p, dprtest.TooBig(s.dialled.Addr(), here, 1300, quote), s.client.Addr())

			there = dprtest.TCP(s.dialled, s.client, segment)
			here = dprtest.TCP(s.server, leaves, segment)
			p = b.from(dprtest.TooBig(at, there, 1300, quote))
			b.requireError(p, dprtest.TooBig(s.source, here, 1300, quote), s.server.Addr())
		}
		// One that came in with a wrong checksum is not made right (A04).
		bad := dprtest.TooBig(at, dprtest.TCP(leaves, s.server, seg{Flags: ack, DF: true}), 1300, 8)
		bad[len(bad)-1] ^= 1
		p := b.from(bad)
		require.Equal(t, dpr.Transmit, p.Verdict)
		require.Error(t, dprtest.Check(p.Bytes()))
	}
	// The server's host says that nobody listens.
	b := newNAT(t, dpr.Config{})
	b.from(dprtest.UDP(client, dns, seg{Payload: []byte("query")}))
	there := dprtest.UDP(b.leaves(ask4), resolv, seg{Payload: []byte("query")})
	p := b.from(dprtest.PortUnreachable(resolv.Addr(), there, 500))
	b.requireError(p, dprtest.PortUnreachable(vip.Addr(), dprtest.UDP(client, dns, seg{Payload: []byte("query")}), 500), client.Addr())
}

// requireError expects an ICMP error like want, which has come a hop further.
func (b natBench) requireError(p dpr.Packet, want []byte, to netip.Addr) {
	b.t.Helper()
	if to.Is4() {
		lowered := packet(want)
		ip := lowered.Bytes()
		sum := uint32(binary.BigEndian.Uint16(ip[10:])) + 0x100
		ip[8]--
		binary.BigEndian.PutUint16(ip[10:], uint16(sum+sum>>16))
		want = ip
	} else {
		want[7]--
	}
	b.requireBytes(p, want)
	require.NoError(b.t, dprtest.Check(p.Bytes()))
}

func TestA01NoChecksumStaysNoneUnderNAT(t *testing.T) {
	b := newNAT(t, dpr.Config{})
	none := seg{Checksum: dprtest.None, Payload: []byte("query")}
	p := b.from(dprtest.UDP(client, dns, none))
	none.TTL = 63
	b.requireBytes(p, dprtest.UDP(b.leaves(ask4), resolv, none))
	p = b.from(dprtest.UDP(resolv, b.leaves(ask4), seg{Checksum: dprtest.None}))
	b.requireBytes(p, dprtest.UDP(dns, client, seg{Checksum: dprtest.None, TTL: 63}))
	// A05: over IPv6 there must be one.
	b.from(dprtest.UDP(client6, dns6, seg{}))
	require.Equal(t, dpr.Drop, b.from(dprtest.UDP(resolv6, b.leaves(ask6), seg{Checksum: dprtest.None})).Verdict)
	require.Equal(t, uint64(1), b.Stats().Drops[dpr.NoChecksum])
}

func TestA02ComputedZeroIsSentAsOnes(t *testing.T) {
	for _, s := range []side{ask4, ask6} {
		b := newNAT(t, dpr.Config{})
		b.from(dprtest.UDP(s.client, s.dialled, seg{}))
		leaves := b.leaves(s)
		offset := len(dprtest.UDP(s.client, s.dialled, seg{})) - 2
		seen := 0
		for word := range 1 << 16 { // one of them makes the sum come out as ones
			payload := binary.BigEndian.AppendUint16(nil, uint16(word))
			want := dprtest.UDP(leaves, s.server, seg{Payload: payload, TTL: 63})
			if binary.BigEndian.Uint16(want[offset:]) != 0xffff {
				continue
			}
			seen++
			b.requireBytes(b.from(dprtest.UDP(s.client, s.dialled, seg{Payload: payload})), want)
		}
		require.NotZero(t, seen)
	}
	// One that arrives as ones is valid.
	b := newNAT(t, dpr.Config{})
	for word := range 1 << 16 {
		in := dprtest.UDP(client, dns, seg{Payload: binary.BigEndian.AppendUint16(nil, uint16(word))})
		if binary.BigEndian.Uint16(in[26:]) == 0xffff {
			p := b.from(in)
			require.NoError(t, dprtest.Check(p.Bytes()))
			return
		}
	}
	t.Fatal("no such word")
}

func TestA03HeaderChecksumMayBeZero(t *testing.T) {
	b := newNAT(t, dpr.Config{})
	b.out(web4, seg{Flags: syn, Seq: 1000})
	seen := false
	for id := range 1 << 16 {
		want := dprtest.TCP(b.leaves(web4), plain, seg{Flags: ack, Seq: 1001, ID: uint16(id), TTL: 63})
		if binary.BigEndian.Uint16(want[10:]) == 0 {
			b.requireBytes(b.from(dprtest.TCP(client, vip, seg{Flags: ack, Seq: 1001, ID: uint16(id)})), want)
			seen = true
			break
		}
	}
	require.True(t, seen)
}

func TestA04PartialChecksumsUnderNAT(t *testing.T) {
	for _, s := range []side{web4, web6} {
		b := newNAT(t, dpr.Config{})
		b.connect(s)
		headers := len(dprtest.TCP(s.client, s.dialled, seg{}))
		o := seg{Flags: ack, Seq: 1001, Payload: make([]byte, 20036), Checksum: dprtest.Partial}
		kind := dpr.GSOTCP4
		if s.client.Addr().Is6() {
			kind = dpr.GSOTCP6
		}
		gso := dpr.GSO{Type: kind, NeedsCsum: true, CsumStart: uint16(headers - 20), CsumOffset: 16, HdrLen: uint16(headers), Size: 1400}
		run := func(data []byte) dpr.Packet {
			p := packet(data)
			p.GSO = gso
			pkts := []dpr.Packet{p}
			b.Process(pkts, b.now)
			require.Equal(t, gso, pkts[0].GSO)
			return pkts[0]
		}
		p := run(dprtest.TCP(s.client, s.dialled, o))
		back := o
		o.TTL = 63
		b.requireBytes(p, dprtest.TCP(b.leaves(s), s.server, o))
		p = run(dprtest.TCP(s.server, b.leaves(s), back))
		b.requireBytes(p, dprtest.TCP(s.dialled, s.client, o))
		// Without the flag the value counts as it is: a wrong one stays as wrong.
		for _, kind := range []dprtest.Checksum{dprtest.Wrong} {
			bad := seg{Flags: ack, Seq: 1001, Checksum: kind}
			p := b.from(dprtest.TCP(s.client, s.dialled, bad))
			bad.TTL = 63
			b.requireBytes(p, dprtest.TCP(b.leaves(s), s.server, bad))
		}
	}
}

func TestA15SegmentSizesAreLoweredBothWays(t *testing.T) {
	for _, tt := range []struct {
		s        side
		mtu      int
		in, want uint16
	}{
		{web4, 1400, 1460, 1360}, {web4, 1400, 500, 500}, {web4, 0, 1460, 1460}, {web4, 0, 8960, 1460}, {web4, 1400, 0, 0},
		{web6, 1400, 1440, 1340}, {web6, 1400, 500, 500},
	} {
		b := newNAT(t, dpr.Config{})
		peers := natPeers()
		peers[1].MTU = tt.mtu
		require.NoError(t, b.SetPeers(peers))
		odd := []byte{3, 3, 7} // and then the option would lie at an odd offset
		p := b.from(dprtest.TCP(tt.s.client, tt.s.dialled, seg{Flags: syn, Seq: 1000, MSS: tt.in, TCPOptions: odd}))
		b.requireBytes(p, dprtest.TCP(b.leaves(tt.s), tt.s.server, seg{Flags: syn, Seq: 1000, MSS: tt.want, TCPOptions: odd, TTL: 63}))
		p = b.from(dprtest.TCP(tt.s.server, b.leaves(tt.s), seg{Flags: syn | ack, Ack: 1001, MSS: tt.in}))
		b.requireBytes(p, dprtest.TCP(tt.s.dialled, tt.s.client, seg{Flags: syn | ack, Ack: 1001, MSS: tt.want, TTL: 63}))
	}
	b := newNAT(t, dpr.Config{}) // at an odd offset
	option := func(mss uint16) []byte { return append([]byte{1, 2, 4}, byte(mss>>8), byte(mss)) }
	p := b.from(dprtest.TCP(client, vip, seg{Flags: syn, Seq: 1000, TCPOptions: option(8960)}))
	b.requireBytes(p, dprtest.TCP(b.leaves(web4), plain, seg{Flags: syn, Seq: 1000, TCPOptions: option(1460), TTL: 63}))
}

func TestA36UrgentDataUnderNAT(t *testing.T) {
	b := newNAT(t, dpr.Config{})
	b.connect(web4)
	in := dprtest.TCP(client, vip, seg{Flags: ack | dprtest.URG, Seq: 1001, Payload: []byte("!")})
	binary.BigEndian.PutUint16(in[38:], 1) // with a checksum that is wrong by it
	p := b.from(in)
	want := dprtest.TCP(b.leaves(web4), plain, seg{Flags: ack | dprtest.URG, Seq: 1001, Payload: []byte("!"), TTL: 63})
	binary.BigEndian.PutUint16(want[38:], 1)
	b.requireBytes(p, want)
}

func TestNATTooBig(t *testing.T) {
	b := newNAT(t, dpr.Config{})
	peers := natPeers()
	peers[1].MTU = 1300
	require.NoError(t, b.SetPeers(peers))
	b.connect(web4)
	in := dprtest.TCP(client, vip, seg{Flags: ack, Seq: 1001, Payload: make([]byte, 1300), DF: true})
	p := b.from(in)
	require.Equal(t, dpr.Reply, p.Verdict)
	require.NoError(t, dprtest.Check(p.Bytes()))
	require.Equal(t, uint16(1300), binary.BigEndian.Uint16(p.Bytes()[26:]))
	require.Equal(t, in[:100], p.Bytes()[28:128], "quotes what the client has sent")
	whole := dprtest.UDP(client, dns, seg{Payload: make([]byte, 2000), ID: 7})
	pieces := []dpr.Packet{b.from(whole)}
	pieces = append(pieces, b.extra()...)
	require.Len(t, pieces, 2)
	want := dprtest.UDP(b.leaves(ask4), resolv, seg{Payload: make([]byte, 2000), ID: 7})
	require.Equal(t, want[20:], reassemble(t, pieces))
	for _, p := range pieces {
		require.Equal(t, dpr.Transmit, p.Verdict)
		require.Equal(t, resolv.Addr().AsSlice(), p.Bytes()[16:20])
	}
}

// A packet that does not fit the interface by which it leaves: its sender is told, in
// the words of its own side.
func TestNATTooBigForTheWayOut(t *testing.T) {
	for _, s := range []side{web4, web6} {
		b := newNAT(t, dpr.Config{})
		b.connect(s)
		leaves := b.leaves(s)
		segment := seg{Flags: ack, Seq: 1001, Payload: make([]byte, 1300), DF: true, TTL: 63}
		p := b.from(dprtest.TCP(s.client, s.dialled, seg{Flags: ack, Seq: 1001, Payload: make([]byte, 1300), DF: true}))
		require.True(t, b.TooBig(&p, 1290, b.now))
		b.requireTold(p, s.dialled.Addr(), dprtest.TCP(s.client, s.dialled, segment), s.client.Addr())
		segment.Seq = 7001
		p = b.from(dprtest.TCP(s.server, leaves, seg{Flags: ack, Seq: 7001, Payload: make([]byte, 1300), DF: true}))
		require.True(t, b.TooBig(&p, 1290, b.now))
		b.requireTold(p, s.source, dprtest.TCP(s.server, leaves, segment), s.server.Addr())
	}
}

// requireTold expects an error about a packet that came back from this host's own way
// out, where the header's checksum alone may be that of the packet on its way.
func (b natBench) requireTold(p dpr.Packet, from netip.Addr, quoted []byte, to netip.Addr) {
	b.t.Helper()
	require.Equal(b.t, dpr.Transmit, p.Verdict)
	require.NoError(b.t, dprtest.Check(p.Bytes()))
	var h, quote header.Packet
	require.Equal(b.t, header.OK, h.Parse(p.Bytes()))
	require.Equal(b.t, [2]netip.Addr{from, to}, [2]netip.Addr{h.Source().Addr(), h.Destination().Addr()})
	body := header.ICMP(p.Bytes()[h.L4:]).Body()
	require.Equal(b.t, header.OK, quote.ParseQuote(body))
	require.Equal(b.t, quoted[:60], body[:60])
}

func TestA07FragmentsUnderNAT(t *testing.T) {
	for _, s := range []side{ask4, ask6} {
		for _, order := range [][]int{{0, 1, 2}, {1, 2, 0}, {2, 0, 1}} {
			b := newNAT(t, dpr.Config{})
			o := seg{Payload: make([]byte, 3000), ID: 0x1234}
			whole := dprtest.UDP(s.client, s.dialled, o)
			there := func() []byte { return dprtest.UDP(b.leaves(s), s.server, o) }
			b.requireFragments(whole, there, order)
			answer := dprtest.UDP(s.server, b.leaves(s), o)
			back := func() []byte { return dprtest.UDP(s.dialled, s.client, o) }
			b.requireFragments(answer, back, order)
			require.Equal(t, 1, b.flows())
		}
	}
}

// requireFragments sends the fragments of a datagram, and expects those of another.
func (b natBench) requireFragments(in []byte, out func() []byte, order []int) {
	b.t.Helper()
	frags := dprtest.Fragment(in, 1300)
	var got [][]byte
	for _, i := range order {
		if p := b.from(frags[i]); p.Verdict != dpr.Hold {
			require.Equal(b.t, dpr.Transmit, p.Verdict)
			got = append(got, p.Bytes())
		}
		for _, p := range b.extra() {
			require.Equal(b.t, dpr.Transmit, p.Verdict)
			got = append(got, p.Bytes())
		}
	}
	want := dprtest.Fragment(out(), 1300)
	require.Len(b.t, got, len(want))
	for _, f := range want {
		if f[0]>>4 == 6 {
			f[7]--
			copy(f[44:48], got[0][44:48]) // the builder's number depends on the addresses
		} else {
			f[8]--
			sum := uint32(binary.BigEndian.Uint16(f[10:])) + 0x100
			binary.BigEndian.PutUint16(f[10:], uint16(sum+sum>>16))
		}
		require.True(b.t, slices.ContainsFunc(got, func(g []byte) bool { return slices.Equal(f, g) }))
	}
}

func TestA39Hairpin(t *testing.T) {
	b := newNAT(t, dpr.Config{})
	self := side{netip.AddrPortFrom(plain.Addr(), 41000), vip, plain, entry} // the server's host is the client
	b.connect(self)
	require.Equal(t, dpr.Established, b.state())
	b.out(self, seg{Flags: ack, Seq: 1001, Ack: 7001, Payload: []byte("to myself")})
	b.in(self, seg{Flags: ack, Seq: 7001, Ack: 1010, Payload: []byte("from myself")})
}

func TestNATConfigErrors(t *testing.T) {
	for want, nat := range map[string]dpr.NAT{
		"NAT.First 62000 lies behind Last 61000": {First: 62000, Last: 61000},
		"must be a unicast address":              {Sources: []netip.Addr{{}}},
		"one address of each family":             {Sources: []netip.Addr{entry, vip.Addr()}},
	} {
		_, err := dpr.New(dpr.Config{NAT: nat})
		require.ErrorContains(t, err, want)
	}
	b := newBench(t, dpr.Config{NAT: dpr.NAT{Sources: []netip.Addr{entry}}})
	for want, list := range map[string][]netip.AddrPort{
		"give a unicast address and a port": {netip.AddrPortFrom(plain.Addr(), 0)},
		"no address of its family":          {plain6},
		"is on this host":                   {netip.AddrPortFrom(entry, 80)},
		"one of each family":                {plain, resolv},
	} {
		err := b.SetPeers([]dpr.Peer{{ID: "h3", Servers: map[string][]netip.AddrPort{"web": list}}})
		require.ErrorContains(t, err, want)
	}
	b = newBench(t, dpr.Config{NAT: dpr.NAT{Sources: []netip.Addr{vip.Addr()}, First: 50, Last: 60}})
	require.ErrorContains(t, b.SetPeers([]dpr.Peer{{ID: "h3", Servers: map[string][]netip.AddrPort{"web": {plain}}}}),
		`service "dns": its ports lie within NAT.First 50 and Last 60`)
}

// Packets of many flows from both sides, on several goroutines, with too few ports.
func TestNATFromSeveralGoroutines(t *testing.T) {
	b := newNAT(t, dpr.Config{MaxFlows: 50, NAT: dpr.NAT{First: 61000, Last: 61039}})
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			pkts := dpr.NewPackets(1, 2048)
			for i := range 3000 {
				from := netip.AddrPortFrom(client.Addr(), uint16(1000+(i*7+worker)%97))
				data := dprtest.UDP(from, dns, seg{})
				if i%3 == 0 {
					data = dprtest.UDP(resolv, netip.AddrPortFrom(entry, uint16(61000+i%40)), seg{})
				}
				pkts[0].Off, pkts[0].Peer = dpr.Headroom, 0
				pkts[0].Len = copy(pkts[0].Buf[dpr.Headroom:], data)
				b.Process(pkts, b.now.Add(time.Duration(i)*100*time.Millisecond))
				if i%100 == 0 {
					b.Tick(b.now.Add(time.Duration(i) * 100 * time.Millisecond))
				}
			}
		})
	}
	wg.Wait()
	b.pass(time.Hour)
	require.Zero(t, b.flows())
	require.Equal(t, dpr.NATPorts{Server: resolv, Proto: dpr.UDP, Free: 40}, b.ports(resolv, dpr.UDP))
}
