package dpr_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/internal/header"
)

// Each kind of connection that real captures show, as its client sends it.
func TestKindsOfConnections(t *testing.T) {
	segment := func(flags dprtest.Flags, seq uint32, payload int) []byte { return tcp(flags, seq, payload) }
	with := func(o dprtest.Options) []byte { return dprtest.TCP(client, vip, o) }
	var isns [][]byte
	for i := range uint32(20) {
		isns = append(isns, segment(syn, 0x9e3779b9*i, 0))
	}
	sack := []byte{1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 9}
	for name, tt := range map[string]struct {
		pkts  [][]byte
		state dpr.State
	}{
		"SYNs with many numbers, then a connection": {append(isns, segment(syn, 1000, 0), segment(ack, 1001, 0), segment(finAck, 1001, 0)), dpr.Closing},
		"SYNs with many numbers":                    {isns, dpr.Embryonic},
		"split handshake":                           {[][]byte{segment(syn, 1000, 0), segment(syn|ack, 1000, 0), segment(ack, 1001, 4)}, dpr.Established},
		"data in the SYN":                           {[][]byte{segment(syn, 1000, 86), segment(ack, 1087, 0), segment(finAck, 1087, 0)}, dpr.Closing},
		"RST with data":                             {[][]byte{segment(syn, 1, 0), segment(ack, 2, 0), segment(rstAck, 2, 13)}, dpr.Closed},
		"FIN without ACK":                           {[][]byte{segment(syn, 1000, 0), segment(dprtest.FIN, 1000, 0)}, dpr.Embryonic},
		"forged FIN ahead of the data":              {[][]byte{segment(syn, 1000, 0), segment(ack, 1001, 0), segment(finAck, 1001+1<<20, 0)}, dpr.Established},
		"FIN before the handshake's end":            {[][]byte{segment(syn, 1000, 0), segment(dprtest.FIN, 1000, 0), segment(finAck, 1000, 0)}, dpr.Closing},
		"data beyond any window it announced":       {[][]byte{segment(syn, 1000, 0), segment(ack, 101001, 11)}, dpr.Established},
		"keepalive":                                 {[][]byte{segment(syn, 1000, 0), segment(ack, 1001, 20), segment(ack, 1020, 0), segment(ack, 1020, 0)}, dpr.Established},
		"selective acknowledgements":                {[][]byte{segment(syn, 1000, 0), with(dprtest.Options{Flags: ack, Seq: 1001, TCPOptions: sack})}, dpr.Established},
		"urgent byte":                               {[][]byte{segment(syn, 1000, 0), segment(ack|dprtest.URG, 1001, 1)}, dpr.Established},
		"explicit congestion": {[][]byte{
			with(dprtest.Options{Flags: syn | dprtest.ECE | dprtest.CWR, Seq: 1}), with(dprtest.Options{Flags: ack | dprtest.ECE, Seq: 2, TOS: 2}),
		}, dpr.Established},
		"checksum left to the card": {[][]byte{with(dprtest.Options{Flags: syn, Checksum: dprtest.Partial})}, dpr.Embryonic},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, dpr.Config{})
			for _, in := range tt.pkts {
				p := b.from(in)
				require.Equal(t, dpr.Forward, p.Verdict)
				require.True(t, lowered(in, p.Bytes()), dprtest.Diff(in, p.Bytes()))
			}
			require.Equal(t, 1, b.Stats().Flows[tt.state])
			require.Equal(t, 1, b.flows())
			require.Equal(t, uint64(1), b.Stats().Services["web"].RedirectedOut)
			want := 1
			if tt.state == dpr.Closing || tt.state == dpr.Closed {
				want = 0
			}
			require.Equal(t, want, b.open("h2", "web"))
		})
	}
}

func TestMalformedPacketsAreDroppedByReason(t *testing.T) {
	set := func(data []byte, at int, value ...byte) []byte {
		copy(data[at:], value)
		return data
	}
	v6 := func(ext ...dprtest.Extension) []byte {
		return dprtest.TCP(client6, vip6, dprtest.Options{Flags: syn, Extensions: ext})
	}
	many := slices.Repeat([]dprtest.Extension{dprtest.AtomicFragment(1)}, 100)
	first := dprtest.Fragment(dprtest.TCP(client6, vip6, dprtest.Options{
		Flags: syn, Extensions: []dprtest.Extension{dprtest.DestOpts(64)}, Payload: make([]byte, 100),
	}), 96)
	options := func(opts ...byte) []byte {
		return dprtest.TCP(client, vip, dprtest.Options{Flags: syn, IPOptions: opts})
	}
	for name, tt := range map[string]struct {
		pkt  []byte
		want header.Reason
	}{
		"A49: total length 0":                   {set(tcp(ack, 1, 3000), 2, 0, 0), header.BadTotalLen},
		"A49: total length beyond the bytes":    {set(tcp(ack, 1, 0), 2, 0, 41), header.Short},
		"A51: IPv6 header of 39 bytes":          {v6()[:39], header.Short},
		"A51: header length of 16":              {set(tcp(syn, 1, 0), 0, 0x44), header.BadHeaderLen},
		"A51: TCP header of 16 bytes":           {set(tcp(syn, 1, 0), 32, 0x40), header.BadTCPOffset},
		"A51: UDP length beyond the packet":     {set(datagram(client, 8, dprtest.Options{}), 24, 0, 99), header.BadUDPLen},
		"A52: option of length 0":               {options(7, 0, 0, 0), header.BadOption},
		"A52: option of length 1":               {options(7, 1, 0, 0), header.BadOption},
		"A52: option beyond the header":         {options(1, 7, 8, 0), header.BadOption},
		"A52: loose source route":               {options(131, 7, 4, 1, 2, 3, 4), header.SourceRoute},
		"A52: strict source route":              {options(137, 7, 4, 1, 2, 3, 4), header.SourceRoute},
		"A53: 100 fragment headers":             {v6(many...), header.ExtLimit},
		"A53: first fragment without its chain": {first[0], header.FirstFragmentShort},
		"first eight bytes of a TCP header":     {dprtest.Fragment(tcp(syn, 1, 0), 28)[0], header.FirstFragmentShort},
		"next eight bytes of a TCP header":      {dprtest.Fragment(tcp(syn, 1, 0), 28)[1], header.BadFragment},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, dpr.Config{})
			require.Equal(t, dpr.Drop, b.from(tt.pkt).Verdict)
			require.Equal(t, uint64(1), b.Stats().Drops[dpr.Reason(tt.want)], tt.want)
			require.Zero(t, b.flows())
		})
	}
}

func TestA51EveryPrefixOfAnyPacketIsShort(t *testing.T) {
	for name, whole := range map[string][]byte{
		"extension headers": dprtest.UDP(client6, dns6, dprtest.Options{
			Payload: make([]byte, 20), Extensions: []dprtest.Extension{dprtest.HopByHop(), dprtest.DestOpts(16)},
		}),
		"IP in IP": dprtest.IP(client.Addr(), vip.Addr(), 4, dprtest.Options{Payload: tcp(syn, 1, 0)}),
		"options":  dprtest.TCP(client, vip, dprtest.Options{Flags: syn, IPOptions: []byte{7, 7, 4, 0, 0, 0, 0}, MSS: 1460}),
		"error":    dprtest.TooBig(router, tcpBack(), 1400, dprtest.ShortQuote),
	} {
		b := newBench(t, dpr.Config{})
		for n := range len(whole) {
			require.Equal(t, dpr.Drop, b.from(whole[:n]).Verdict, "%s: prefix of %d bytes", name, n)
		}
		require.Zero(t, b.flows(), name)
		require.Equal(t, uint64(len(whole)), b.Stats().Drops[dpr.Reason(header.Short)], name)
	}
}

func TestA52OptionsAreKept(t *testing.T) {
	for name, opts := range map[string][]byte{
		"record route":   {7, 11, 4, 192, 0, 2, 1, 0, 0, 0, 0},
		"end of list":    {0},
		"no operation":   {1, 0},
		"timestamps":     {68, 12, 5, 0, 0, 0, 0, 1, 0, 0, 0, 0},
		"security":       {130, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		"stream id":      {136, 4, 0, 1},
		"unknown option": {158, 6, 1, 2, 3, 4},
	} {
		b := newBench(t, dpr.Config{})
		in := dprtest.TCP(client, vip, dprtest.Options{Flags: syn, IPOptions: opts})
		p := b.from(in)
		b.requireForward(p, "h2")
		require.True(t, lowered(in, p.Bytes()), name)
	}
}

func TestA53ChainsThatEndInNothing(t *testing.T) {
	for name, data := range map[string][]byte{
		"no next header": dprtest.IP(client6.Addr(), vip6.Addr(), 59, dprtest.Options{}),
		"no next header behind options, at the packet's end": dprtest.IP(client6.Addr(), vip6.Addr(), 59,
			dprtest.Options{Extensions: []dprtest.Extension{dprtest.HopByHop(), dprtest.DestOpts(8)}}),
	} {
		b := newBench(t, dpr.Config{})
		require.Equal(t, dpr.Pass, b.from(data).Verdict, name)
	}
}

func TestTunnelsOfOthersPass(t *testing.T) {
	gre := append([]byte{0, 0, 8, 0}, tcp(syn, 1, 0)...)
	b := newBench(t, dpr.Config{})
	require.Equal(t, dpr.Pass, b.from(dprtest.IP(client.Addr(), vip.Addr(), 47, dprtest.Options{Payload: gre})).Verdict)
	require.Equal(t, dpr.Drop, b.fromPeer("h2", dprtest.IP(client.Addr(), vip.Addr(), 47, dprtest.Options{Payload: gre})).Verdict)
}

func TestA01NoChecksumStaysNone(t *testing.T) {
	b := newBench(t, dpr.Config{})
	p := b.from(datagram(client, 50, dprtest.Options{Checksum: dprtest.None}))
	b.requireForward(p, "h2")
	require.Zero(t, binary.BigEndian.Uint16(p.Bytes()[26:]))
	p = b.from(datagram(client, 2000, dprtest.Options{Checksum: dprtest.None})) // in two pieces
	b.requireForward(p, "h2")
	require.Zero(t, binary.BigEndian.Uint16(p.Bytes()[26:]))
}

func TestA05NoChecksumOverIPv6IsDropped(t *testing.T) {
	whole := datagram(client6, 50, dprtest.Options{Checksum: dprtest.None})
	first := dprtest.Fragment(datagram(client6, 2000, dprtest.Options{Checksum: dprtest.None}), 1300)[0]
	b := newBench(t, dpr.Config{})
	require.Equal(t, dpr.Drop, b.from(whole).Verdict)
	require.Equal(t, dpr.Drop, b.from(first).Verdict)
	require.Equal(t, dpr.Drop, b.fromPeer("h2", whole).Verdict)
	require.Equal(t, uint64(3), b.Stats().Drops[dpr.NoChecksum])
	require.Zero(t, b.flows())
	other := dprtest.UDP(client6, netip.AddrPortFrom(vip6.Addr(), 4789), dprtest.Options{Checksum: dprtest.None})
	require.Equal(t, dpr.Pass, b.from(other).Verdict, "some tunnels may (RFC 6935)")
}

// A checksum that is still partial is finished when the packet must be fragmented,
// and goes on as it is otherwise.
func TestA04PartialChecksums(t *testing.T) {
	whole := datagram(client, 2000, dprtest.Options{ID: 3})
	partial := packet(datagram(client, 2000, dprtest.Options{ID: 3, Checksum: dprtest.Partial}))
	partial.GSO = dpr.GSO{NeedsCsum: true, CsumStart: 20, CsumOffset: 6}
	b := newBench(t, dpr.Config{})
	pkts := []dpr.Packet{partial}
	b.Process(pkts, b.now)
	b.requireForward(pkts[0], "h2")
	require.Equal(t, dpr.GSO{}, pkts[0].GSO)
	require.Equal(t, whole[20:], reassemble(t, append(pkts, b.extra()...)))

	in := datagram(client, 100, dprtest.Options{Checksum: dprtest.Partial})
	pkts[0] = packet(in)
	pkts[0].GSO = partial.GSO
	b.Process(pkts, b.now)
	require.Equal(t, dpr.Forward, pkts[0].Verdict)
	require.Equal(t, partial.GSO, pkts[0].GSO)
	require.Equal(t, in[20:], pkts[0].Bytes()[20:])
}

func TestA06FlowHashOfAQuote(t *testing.T) {
	// A full table sends flows by their hash alone: what an error quotes, turned
	// round, must hash like the client's packets do.
	b := newBench(t, dpr.Config{MaxFlows: 100})
	for port := range 200 {
		from := netip.AddrPortFrom(client.Addr(), uint16(10000+port))
		b.from(tcpFrom(from, syn, 1, 0))
		b.from(tcpFrom(from, ack, 2, 0))
	}
	require.NotZero(t, b.Stats().TableFull)
	went := map[dpr.PeerID]int{}
	for port := range 200 {
		from := netip.AddrPortFrom(client.Addr(), uint16(10000+port))
		data := b.from(tcpFrom(from, ack, 2, 0))
		answer := dprtest.TCP(vip, from, dprtest.Options{Flags: ack, Payload: make([]byte, 1400), DF: true})
		p := b.from(dprtest.TooBig(router, answer, 1400, dprtest.ShortQuote))
		require.Equal(t, data.Verdict, p.Verdict, "A13: the same stateless choice as for data")
		require.Equal(t, data.Peer, p.Peer)
		went[p.Peer]++
	}
	require.Len(t, went, 3, "to both peers and to nobody")
}

func TestA12TooBigNeverSaysTooLittle(t *testing.T) {
	b := newBench(t, dpr.Config{})
	require.NoError(t, b.SetPeers([]dpr.Peer{{ID: "h2", MTU: 1000}, {ID: "h3"}}))
	b.from(tcpFrom(client6, syn, 1000, 0))
	p := b.from(tcpFrom(client6, ack, 1001, 1300))
	require.Equal(t, dpr.Reply, p.Verdict)
	require.Equal(t, uint32(1280), binary.BigEndian.Uint32(p.Bytes()[44:]), "RFC 8200, section 5")
	b.requireForward(b.from(tcpFrom(client6, ack, 1001, 1220)), "h2") // 1,280 bytes: there is no less to say
	require.Equal(t, dpr.Reply, b.from(tcpFrom(client6, ack, 1001, 1221)).Verdict)
	b.from(tcp(syn, 1000, 0))
	p = b.from(tcp(ack, 1001, 1300))
	require.Equal(t, uint16(1000), binary.BigEndian.Uint16(p.Bytes()[26:]))
}

// A path's MTU changes under the flows that go there.
func TestMTUOfPeerChanges(t *testing.T) {
	b := newBench(t, dpr.Config{})
	b.from(tcp(syn, 1000, 0))
	id := b.PeerID("h2")
	for _, tt := range []struct {
		mtu  int
		want dpr.Verdict // of a packet of 1,400 bytes
	}{{0, dpr.Forward}, {1399, dpr.Reply}, {1400, dpr.Forward}, {0, dpr.Forward}} {
		require.NoError(t, b.SetPeers([]dpr.Peer{{ID: "h2", MTU: tt.mtu}, {ID: "h3"}}))
		require.Equal(t, id, b.PeerID("h2"))
		require.Equal(t, tt.want, b.from(tcp(ack, 1001, 1360)).Verdict, "MTU %d", tt.mtu)
	}
	require.Equal(t, 1, b.flows())
}

func TestA49LongestPackets(t *testing.T) {
	for _, from := range []netip.AddrPort{client, client6} {
		for _, n := range []int{9014, dpr.MaxPacket} {
			b := newBench(t, dpr.Config{})
			require.NoError(t, b.SetPeers([]dpr.Peer{{ID: "h2", MTU: dpr.MaxPacket}, {ID: "h3"}}))
			b.from(tcpFrom(from, syn, 1, 0))
			in := tcpFrom(from, ack, 2, n-len(tcpFrom(from, ack, 2, 0)))
			p := b.from(in)
			require.Equal(t, dpr.Forward, p.Verdict)
			require.Equal(t, n, p.Len)
			require.True(t, bytes.Equal(in[20:], p.Bytes()[20:]) || from.Addr().Is6())
			require.True(t, lowered(in, p.Bytes()))
		}
	}
}

// What follows a datagram that is for no service is for none either, in any order:
// a fragmented ping, another server's answers.
func TestFragmentsOfNoServicePass(t *testing.T) {
	other := dprtest.UDP(netip.AddrPortFrom(router, 53), netip.AddrPortFrom(vip.Addr(), 40000), dprtest.Options{ID: 5, Payload: make([]byte, 3000)})
	ping := dprtest.ICMP(client6.Addr(), vip6.Addr(), 128, 0, 1, dprtest.Options{Payload: make([]byte, 3000)})
	for _, data := range [][]byte{other, ping} {
		for _, order := range [][]int{{0, 1, 2}, {1, 2, 0}, {2, 0, 1}} {
			b := newBench(t, dpr.Config{})
			frags := dprtest.Fragment(data, 1300)
			require.Len(t, frags, 3)
			passed := 0
			for _, i := range order {
				if p := b.from(frags[i]); p.Verdict != dpr.Hold {
					require.Equal(t, dpr.Pass, p.Verdict)
					require.Equal(t, frags[i], p.Bytes())
					passed++
				}
				for _, p := range b.extra() {
					require.Equal(t, dpr.Pass, p.Verdict)
					passed++
				}
			}
			require.Equal(t, 3, passed, "order %v", order)
			require.Zero(t, b.flows())
		}
	}
}

func TestFragmentsOfNoServiceFromAPeer(t *testing.T) {
	b := newBench(t, dpr.Config{})
	other := dprtest.UDP(client, netip.AddrPortFrom(vip.Addr(), 22), dprtest.Options{ID: 5, Payload: make([]byte, 2000)})
	for _, f := range dprtest.Fragment(other, 1300) {
		require.NotEqual(t, dpr.Pass, b.fromPeer("h2", f).Verdict)
	}
	require.Empty(t, b.extra())
	b.pass(time.Second)
	require.Equal(t, uint64(1), b.Stats().Drops[dpr.NotService])
	require.Equal(t, uint64(1), b.Stats().Drops[dpr.FragmentLost])
}

// What comes through a tunnel is served here, whatever came of the first fragment.
func TestFragmentsFromAPeerAreNotRedirected(t *testing.T) {
	frags := dprtest.Fragment(datagram(client, 2000, dprtest.Options{ID: 7}), 1300)
	b := newBench(t, dpr.Config{})
	b.requireForward(b.from(frags[0]), "h2")
	require.Equal(t, dpr.Local, b.fromPeer("h3", frags[1]).Verdict)

	b = newBench(t, dpr.Config{})
	require.Equal(t, dpr.Hold, b.fromPeer("h3", frags[1]).Verdict)
	b.requireForward(b.from(frags[0]), "h2")
	late := b.extra()
	require.Len(t, late, 1)
	require.Equal(t, dpr.Local, late[0].Verdict)
}

func TestHeldFragmentsAreCountedWhenTheyAreLost(t *testing.T) {
	b := newBench(t, dpr.Config{})
	b.from(dprtest.Fragment(datagram(client, 3000, dprtest.Options{ID: 1}), 1300)[1])
	b.pass(time.Second - time.Millisecond)
	require.Zero(t, b.Stats().Drops[dpr.FragmentLost])
	b.pass(time.Millisecond)
	require.Equal(t, uint64(1), b.Stats().Drops[dpr.FragmentLost], "though no other one came")
}

// An error about an error could go back and forth for ever (RFC 1122, section
// 3.2.2; RFC 4443, section 2.4).
func TestA11NoErrorAboutAnError(t *testing.T) {
	b := newBench(t, dpr.Config{})
	require.NoError(t, b.SetPeers([]dpr.Peer{{ID: "h2", MTU: 500}, {ID: "h3"}}))
	b.from(tcp(syn, 1000, 0))
	b.from(tcpFrom(client6, syn, 1000, 0))
	answer := dprtest.TCP(vip, client, dprtest.Options{Flags: ack, Payload: make([]byte, 1400)})
	long := dprtest.ICMP(router, vip.Addr(), 3, 4, 1400, dprtest.Options{DF: true, Payload: answer[:548]})
	answer6 := dprtest.TCP(vip6, client6, dprtest.Options{Flags: ack, Payload: make([]byte, 1400)})
	long6 := dprtest.ICMP(router6, vip6.Addr(), 2, 0, 1400, dprtest.Options{Payload: answer6[:1280]})
	require.Equal(t, dpr.Drop, b.from(long).Verdict)
	require.Equal(t, dpr.Drop, b.from(long6).Verdict)
	require.Equal(t, uint64(2), b.Stats().Drops[dpr.TooBig])

	dying := dprtest.TooBig(router, answer, 1400, dprtest.ShortQuote)
	dying[8] = 1
	require.Equal(t, dpr.Drop, b.from(dying).Verdict)
	require.Equal(t, uint64(1), b.Stats().Drops[dpr.HopLimit])
	require.Zero(t, b.Stats().Errors)
}

// Fragments that are read together go together, too.
func TestA07FragmentsInOneBatch(t *testing.T) {
	for _, from := range []netip.AddrPort{client, client6} {
		for _, order := range [][]int{{0, 1, 2}, {1, 2, 0}, {2, 0, 1}} {
			b := newBench(t, dpr.Config{})
			frags := dprtest.Fragment(datagram(from, 3000, dprtest.Options{ID: 0x1234}), 1300)
			var pkts []dpr.Packet
			for _, i := range order {
				pkts = append(pkts, packet(frags[i]))
			}
			b.Process(pkts, b.now)
			forwarded := 0
			for _, p := range append(pkts, b.extra()...) {
				if p.Verdict == dpr.Forward {
					require.Equal(t, b.PeerID("h2"), p.Peer)
					forwarded++
				}
			}
			require.Equal(t, 3, forwarded, "order %v", order)
		}
	}
}

func TestNoRoomForAnError(t *testing.T) {
	b := newBench(t, dpr.Config{})
	for _, data := range [][]byte{
		dprtest.TCP(client, vip, dprtest.Options{Flags: dprtest.SYN, TTL: 1}),
		dprtest.TCP(client6, vip6, dprtest.Options{Flags: dprtest.SYN, TTL: 1}),
	} {
		pkts := []dpr.Packet{{Buf: data, Len: len(data)}}
		b.Process(pkts, b.now)
		require.Equal(t, dpr.Drop, pkts[0].Verdict)
	}
	require.EqualValues(t, 2, b.Stats().Drops[dpr.HopLimit])
}
