package dpr_test

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/lb"
)

var (
	dns  = netip.AddrPortFrom(vip.Addr(), 53)
	dns6 = netip.AddrPortFrom(vip6.Addr(), 53)
)

func datagram(from netip.AddrPort, n int, o dprtest.Options) []byte {
	o.Payload = make([]byte, n)
	for i := range o.Payload {
		o.Payload[i] = byte(i)
	}
	if from.Addr().Is6() {
		return dprtest.UDP(from, dns6, o)
	}
	return dprtest.UDP(from, dns, o)
}

// extra drains what the engine kept back.
func (b *bench) extra() []dpr.Packet {
	b.t.Helper()
	pkts := dpr.NewPackets(8, 2048)
	var all []dpr.Packet
	for {
		n := b.Extra(pkts, b.now)
		if n == 0 {
			return all
		}
		all = append(all, pkts[:n]...)
		pkts = dpr.NewPackets(8, 2048)
	}
}

func TestA07FragmentsInAnyOrder(t *testing.T) {
	for _, from := range []netip.AddrPort{client, client6} {
		for _, order := range [][]int{{0, 1, 2}, {1, 2, 0}, {0, 2, 1}, {2, 0, 1}} {
			b := newBench(t, dpr.Config{})
			frags := dprtest.Fragment(datagram(from, 3000, dprtest.Options{ID: 0x1234}), 1300)
			require.Len(t, frags, 3)
			sent := 0
			for _, i := range order {
				p := b.from(frags[i])
				if p.Verdict == dpr.Forward {
					require.Equal(t, b.PeerID("h2"), p.Peer)
					sent++
				} else {
					require.Equal(t, dpr.Hold, p.Verdict)
				}
				for _, p := range b.extra() {
					require.Equal(t, dpr.Forward, p.Verdict)
					require.Equal(t, b.PeerID("h2"), p.Peer)
					sent++
				}
			}
			require.Equal(t, 3, sent, "order %v", order)
			require.Equal(t, 1, b.flows(), "A08: later fragments are no flows of port 0")
		}
	}
}

func TestA07LaterFragmentsAlone(t *testing.T) {
	b := newBench(t, dpr.Config{})
	frags := dprtest.Fragment(datagram(client, 3000, dprtest.Options{ID: 1}), 1300)
	require.Equal(t, dpr.Hold, b.from(frags[1]).Verdict)
	require.Equal(t, dpr.Hold, b.from(frags[2]).Verdict)
	require.Empty(t, b.extra())
	b.pass(2 * time.Second)
	b.requireForward(b.from(frags[0]), "h2")
	require.Empty(t, b.extra(), "they waited too long")
	// Not more than a few may wait.
	held := 0
	for id := range 1000 {
		f := dprtest.Fragment(datagram(client, 3000, dprtest.Options{ID: uint16(id + 2)}), 1300)
		if b.from(f[1]).Verdict == dpr.Hold {
			held++
		}
	}
	require.Equal(t, 64, held)
	require.Equal(t, uint64(1000-64+2), b.Stats().Drops[dpr.FragmentLost])
}

func TestA07TwoClientsWithOneID(t *testing.T) {
	b := newBench(t, dpr.Config{})
	other := netip.MustParseAddrPort("192.0.2.11:40000")
	one := dprtest.Fragment(datagram(client, 2000, dprtest.Options{ID: 7}), 1300)
	two := dprtest.Fragment(datagram(other, 2000, dprtest.Options{ID: 7}), 1300)
	b.requireForward(b.from(one[0]), "h2")
	b.choose("h3")
	b.requireForward(b.from(two[0]), "h3")
	b.requireForward(b.from(one[1]), "h2")
	b.requireForward(b.from(two[1]), "h3")
}

func TestFragmentsFromAPeer(t *testing.T) {
	b := newBench(t, dpr.Config{})
	frags := dprtest.Fragment(datagram(client, 2000, dprtest.Options{ID: 7}), 1300)
	require.Equal(t, dpr.Hold, b.fromPeer("h2", frags[1]).Verdict)
	require.Equal(t, dpr.Local, b.fromPeer("h2", frags[0]).Verdict)
	late := b.extra()
	require.Len(t, late, 1)
	require.Equal(t, dpr.Local, late[0].Verdict)
}

func TestFragmentsServedHere(t *testing.T) {
	b := newBench(t, dpr.Config{})
	b.choose("self")
	frags := dprtest.Fragment(datagram(client, 2000, dprtest.Options{ID: 7}), 1300)
	require.Equal(t, dpr.Local, b.from(frags[0]).Verdict)
	require.Equal(t, dpr.Local, b.from(frags[1]).Verdict)
}

// reassemble puts IPv4 fragments together by their offsets.
func reassemble(t *testing.T, pkts []dpr.Packet) []byte {
	t.Helper()
	data := make([]byte, 1<<16)
	end := 0
	for i := range pkts {
		ip := pkts[i].Bytes()
		require.NoError(t, dprtest.Check(ip))
		ihl := int(ip[0]&15) * 4
		off := int(binary.BigEndian.Uint16(ip[6:])&0x1fff) * 8
		more := ip[6]&0x20 != 0
		n := copy(data[off:], ip[ihl:])
		if !more {
			end = off + n
		}
	}
	return data[:end]
}

func TestA09TooBigForTheTunnel(t *testing.T) {
	const mtu = 1452
	full := func(df bool) []byte {
		return dprtest.TCP(client, vip, dprtest.Options{Flags: ack, Seq: 1001, Payload: make([]byte, 1460), DF: df})
	}
	b := newBench(t, dpr.Config{})
	b.from(tcp(syn, 1000, 0))

	p := b.from(full(true))
	require.Equal(t, dpr.Reply, p.Verdict)
	require.NoError(t, dprtest.Check(p.Bytes()))
	icmp := p.Bytes()[20:]
	require.Equal(t, []byte{3, 4}, icmp[:2])
	require.Equal(t, uint16(mtu), binary.BigEndian.Uint16(icmp[6:]), "A12: the next hop's MTU")
	require.Equal(t, vip.Addr().AsSlice(), p.Bytes()[12:16])
	require.Equal(t, client.Addr().AsSlice(), p.Bytes()[16:20])
	require.Equal(t, full(true)[:548], icmp[8:], "quotes the packet as it came")
	require.Zero(t, binary.BigEndian.Uint16(p.Bytes()[6:]), "A11: no fragment bits")

	whole := full(false)
	p = b.from(whole)
	b.requireForward(p, "h2")
	pieces := append([]dpr.Packet{p}, b.extra()...)
	require.Equal(t, 2, len(pieces))
	for i := range pieces {
		require.LessOrEqual(t, pieces[i].Len, mtu)
		require.Equal(t, b.PeerID("h2"), pieces[i].Peer)
	}
	require.Equal(t, whole[20:], reassemble(t, pieces))

	b.from(tcpFrom(client6, syn, 1000, 0))
	p = b.from(dprtest.TCP(client6, vip6, dprtest.Options{Flags: ack, Seq: 1001, Payload: make([]byte, 1440)}))
	require.Equal(t, dpr.Reply, p.Verdict)
	require.NoError(t, dprtest.Check(p.Bytes()))
	require.Equal(t, byte(2), p.Bytes()[40])
	require.Equal(t, uint32(mtu), binary.BigEndian.Uint32(p.Bytes()[44:]))
	require.LessOrEqual(t, p.Len, 1280)
}

func TestFragmentationKeepsWhatItMust(t *testing.T) {
	b := newBench(t, dpr.Config{})
	// A record route option (not copied) and a stream ID option (copied).
	options := []byte{7, 7, 4, 0, 0, 0, 0, 0x88, 4, 0x12, 0x34, 0}
	whole := datagram(client, 1440, dprtest.Options{ID: 99, IPOptions: options, TOS: 0x2e << 2})
	p := b.from(whole)
	b.requireForward(p, "h2")
	pieces := append([]dpr.Packet{p}, b.extra()...)
	require.Equal(t, 2, len(pieces))
	require.Equal(t, whole[32:], reassemble(t, pieces))
	later := pieces[1].Bytes()
	require.Equal(t, byte(0x46), later[0], "only the copied option")
	require.Equal(t, []byte{0x88, 4, 0x12, 0x34}, later[20:24])
	require.Equal(t, byte(0x2e<<2), later[1])
	require.Equal(t, []byte{0, 99}, later[4:6])
	// A fragment that is itself too long becomes smaller ones.
	b = newBench(t, dpr.Config{})
	whole = datagram(client, 2800, dprtest.Options{ID: 100})
	pieces = nil
	for _, f := range dprtest.Fragment(whole, 1500) {
		p := b.from(f)
		b.requireForward(p, "h2")
		pieces = append(append(pieces, p), b.extra()...)
	}
	require.Equal(t, 3, len(pieces))
	require.Equal(t, whole[20:], reassemble(t, pieces))
}

func TestA11NoErrorAboutALaterFragment(t *testing.T) {
	b := newBench(t, dpr.Config{})
	require.NoError(t, b.SetPeers([]dpr.Peer{{ID: "h2", MTU: 1280}, {ID: "h3"}}))
	frags := dprtest.Fragment(datagram(client6, 3000, dprtest.Options{}), 1500)
	require.Equal(t, dpr.Reply, b.from(frags[0]).Verdict)
	require.Equal(t, dpr.Hold, b.from(frags[1]).Verdict)
}

func TestErrorsAreRateLimited(t *testing.T) {
	b := newBench(t, dpr.Config{ErrorsPerSecond: 10})
	b.from(tcp(syn, 1000, 0))
	count := func() (replies int) {
		for range 1000 {
			if b.from(tcp(ack, 1001, 1460)).Verdict == dpr.Reply {
				replies++
			}
		}
		return replies
	}
	require.InDelta(t, 65, count(), 1, "a burst")
	b.now = b.now.Add(time.Second)
	require.InDelta(t, 10, count(), 1)
	require.InDelta(t, 2000-75, b.Stats().Drops[dpr.TooBig], 2)
}

func TestNoErrorToWhoCannotBeAnswered(t *testing.T) { // RFC 1122, section 3.2.2
	for _, from := range []string{"255.255.255.255:1", "224.0.0.1:1", "0.0.0.0:1", "127.0.0.1:1", "[ff02::1]:1", "[::]:1"} {
		b := newBench(t, dpr.Config{})
		b.choose("")
		require.Equal(t, dpr.Drop, b.from(tcpFrom(netip.MustParseAddrPort(from), syn, 1, 0)).Verdict, from)
	}
}

func TestA17SuperFramesAreJudgedByTheirSegments(t *testing.T) {
	b := newBench(t, dpr.Config{})
	require.NoError(t, b.SetPeers([]dpr.Peer{{ID: "h2", MTU: 1466}, {ID: "h3"}}))
	b.from(tcp(syn, 1000, 0))
	super := func(size uint16) dpr.Packet {
		p := packet(dprtest.TCP(client, vip, dprtest.Options{Flags: ack, Seq: 1001, Payload: make([]byte, 20036), DF: true}))
		p.GSO = dpr.GSO{Type: dpr.GSOTCP4, NeedsCsum: true, CsumStart: 20, CsumOffset: 16, HdrLen: 40, Size: size}
		pkts := []dpr.Packet{p}
		b.Process(pkts, b.now)
		return pkts[0]
	}
	p := super(1400)
	require.Equal(t, dpr.Forward, p.Verdict)
	require.Equal(t, uint16(1400), p.GSO.Size)
	require.Equal(t, dpr.Reply, super(1460).Verdict)
}

func TestA10ICMPErrorsFollowTheFlowTheyQuote(t *testing.T) {
	b := newBench(t, dpr.Config{})
	b.from(tcp(syn, 1000, 0))
	b.from(tcpFrom(client6, syn, 1000, 0))
	answer := dprtest.TCP(vip, client, dprtest.Options{Flags: ack, Payload: make([]byte, 1400), DF: true})
	answer6 := dprtest.TCP(vip6, client6, dprtest.Options{Flags: ack, Payload: make([]byte, 1400)})
	for name, data := range map[string][]byte{
		"eight bytes quoted": dprtest.TooBig(router, answer, 1400, 8),
		"all quoted":         dprtest.TooBig(router, answer, 1400, 500),
		"IPv6":               dprtest.TooBig(router6, answer6, 1400, 8),
		"port unreachable":   dprtest.PortUnreachable(client.Addr(), answer, 8),
	} {
		p := b.from(data)
		require.Equal(t, dpr.Forward, p.Verdict, name)
		require.Equal(t, b.PeerID("h2"), p.Peer)
		require.Equal(t, dpr.Local, b.fromPeer("h2", data).Verdict, name)
	}
	require.Equal(t, 2, b.flows())

	stranger := netip.MustParseAddrPort("192.0.2.77:1")
	unknown := dprtest.TooBig(router, dprtest.TCP(vip, stranger, dprtest.Options{Flags: ack, DF: true}), 1400, 8)
	require.Equal(t, dpr.Local, b.from(unknown).Verdict, "a flow of this host's own")
	require.Equal(t, dpr.Pass, b.from(dprtest.TooBig(router, answer, 1400, 2)).Verdict, "too little quoted")
	other := dprtest.TCP(netip.MustParseAddrPort("198.51.100.1:22"), client, dprtest.Options{Flags: ack})
	require.Equal(t, dpr.Pass, b.from(dprtest.TooBig(router, other, 1400, 8)).Verdict, "no service")
	require.Equal(t, dpr.Drop, b.fromPeer("h2", dprtest.TooBig(router, other, 1400, 8)).Verdict)
}

func TestA52SourceRoutesAreRefused(t *testing.T) {
	b := newBench(t, dpr.Config{})
	p := b.from(dprtest.TCP(client, vip, dprtest.Options{Flags: syn, IPOptions: []byte{131, 7, 4, 1, 2, 3, 4}}))
	require.Equal(t, dpr.Drop, p.Verdict)
	in := dprtest.TCP(client, vip, dprtest.Options{Flags: syn, IPOptions: []byte{1, 1, 1, 0}})
	b.requireForward(b.from(in), "h2")
}

func TestA53ExtensionHeaders(t *testing.T) {
	for name, ext := range map[string][]dprtest.Extension{
		"hop by hop and destination": {dprtest.HopByHop(), dprtest.DestOpts(8)},
		"atomic fragment":            {dprtest.AtomicFragment(5)},
		"used routing header":        {dprtest.Routing(0, router6)},
		"authentication":             {dprtest.Auth(1, 1)},
	} {
		b := newBench(t, dpr.Config{})
		p := b.from(dprtest.TCP(client6, vip6, dprtest.Options{Flags: syn, Extensions: ext}))
		require.Equal(t, dpr.Forward, p.Verdict, name)
		require.Equal(t, 1, b.flows(), name)
	}
	b := newBench(t, dpr.Config{})
	p := b.from(dprtest.TCP(client6, vip6, dprtest.Options{Flags: syn, Extensions: []dprtest.Extension{dprtest.Routing(1, router6)}}))
	require.Equal(t, dpr.Pass, p.Verdict, "a stop on its way is the kernel's to judge")
}

func TestWrongChecksumsStayWrong(t *testing.T) { // A04
	b := newBench(t, dpr.Config{})
	in := dprtest.TCP(client, vip, dprtest.Options{Flags: syn, Checksum: dprtest.Wrong})
	p := b.from(in)
	require.Equal(t, dpr.Forward, p.Verdict)
	require.Equal(t, in[20:], p.Bytes()[20:])
	require.Error(t, dprtest.Check(p.Bytes()))
	bad := tcp(syn, 1, 0)
	bad[10] ^= 0x55 // the IPv4 header's checksum
	p = b.from(bad)
	require.Error(t, dprtest.Check(p.Bytes()), "lowering the TTL must not repair it")
}

func TestA06FlowHashVector(t *testing.T) {
	// Computed by hand from the definition: SipHash-2-4 under the key 00..0f of
	// dst (::ffff:198.51.100.1), src (::ffff:192.0.2.10), 80, 31337, 6.
	got := make(chan lb.Flow, 1)
	cfg := dpr.Config{}
	for i := range cfg.Seed {
		cfg.Seed[i] = byte(i)
	}
	b := newBench(t, cfg)
	require.NoError(t, b.SetSnapshot("web", recorder(got), &lb.Snapshot{Hosts: []lb.Host{{ID: "h1", Weight: 1}}}))
	b.from(tcpFrom(netip.MustParseAddrPort("192.0.2.10:31337"), syn, 1, 0))
	f := <-got
	require.Equal(t, lb.Flow{Conn: flowVectorConn, Client: flowVectorClient}, f)
}

// recorder is a policy that sends what it is asked about to a channel.
type recorder chan lb.Flow

func (r recorder) Build(*lb.Snapshot) lb.Picker                  { return r }
func (r recorder) Pick(f lb.Flow, _ time.Duration) (c lb.Choice) { r <- f; return c }

const (
	flowVectorConn   = 0x29452a6cfbd2ea27
	flowVectorClient = 0x84dcfb6bbc87f903
)
