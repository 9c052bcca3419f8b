package dpr_test

import (
	"bytes"
	"net/netip"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/lb"
)

// The addresses of the field reports: a client, the address clients use, hosts.
var (
	client  = netip.MustParseAddrPort("192.0.2.10:40000")
	vip     = netip.MustParseAddrPort("198.51.100.1:80")
	client6 = netip.MustParseAddrPort("[2001:db8:c::10]:40000")
	vip6    = netip.MustParseAddrPort("[2001:db8:f::1]:80")
	router  = netip.MustParseAddr("192.0.2.254")
	router6 = netip.MustParseAddr("2001:db8:c::fe")
)

// to is a policy that sends every flow to the host with the ID, serves it here for
// "self", and refuses it for "".
type to struct{ id *atomic.Pointer[string] }

func sendTo(id string) to {
	t := to{new(atomic.Pointer[string])}
	t.id.Store(&id)
	return t
}

func (t to) Build(s *lb.Snapshot) lb.Picker { return toPicker{t, s} }

type toPicker struct {
	to
	s *lb.Snapshot
}

func (t toPicker) Pick(lb.Flow, time.Duration) lb.Choice {
	switch id := *t.id.Load(); id {
	case "":
		return lb.Choice{Do: lb.Refuse}
	case "self":
		return lb.Choice{}
	default:
		for i := range t.s.Hosts {
			if t.s.Hosts[i].ID == id {
				return lb.Choice{Do: lb.Send, Host: i}
			}
		}
		return lb.Choice{}
	}
}

// A bench is an engine with peers h2 and h3 whose time the test moves.
type bench struct {
	t *testing.T
	*dpr.Engine
	now    time.Time
	policy to
}

func newBench(t *testing.T, cfg dpr.Config) *bench {
	t.Helper()
	cfg.Services = append(cfg.Services,
		dpr.Service{Name: "web", Proto: dpr.TCP, Port: 80, Addrs: []netip.Addr{vip.Addr(), vip6.Addr()}},
		dpr.Service{Name: "dns", Proto: dpr.UDP, Port: 53, Addrs: []netip.Addr{vip.Addr(), vip6.Addr()}},
	)
	e, err := dpr.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	b := &bench{t: t, Engine: e, now: time.Now(), policy: sendTo("h2")}
	require.NoError(t, e.SetPeers([]dpr.Peer{{ID: "h2"}, {ID: "h3"}}))
	for _, s := range []string{"web", "dns"} {
		require.NoError(t, e.SetSnapshot(s, b.policy, &lb.Snapshot{
			Self: 0,
			Hosts: []lb.Host{
				{ID: "h1", Weight: 1, Flags: lb.Local},
				{ID: "h2", Weight: 1, Live: e.Live("h2", s)},
				{ID: "h3", Weight: 1, Live: e.Live("h3", s)},
			},
		}))
	}
	return b
}

func (b *bench) choose(id string)     { b.policy.id.Store(&id) }
func (b *bench) pass(d time.Duration) { b.now = b.now.Add(d); b.Tick(b.now) }

// packet puts bytes into a buffer as a device would.
func packet(data []byte) dpr.Packet {
	p := dpr.NewPackets(1, max(len(data), 2048))[0]
	p.Len = copy(p.Buf[p.Off:], data)
	return p
}

// from runs one packet that came from the network.
func (b *bench) from(data []byte) dpr.Packet {
	b.t.Helper()
	pkts := []dpr.Packet{packet(data)}
	b.Process(pkts, b.now)
	return pkts[0]
}

// fromPeer runs one packet that came through the tunnel.
func (b *bench) fromPeer(peer string, data []byte) dpr.Packet {
	b.t.Helper()
	pkts := []dpr.Packet{packet(data)}
	pkts[0].Peer = b.PeerID(peer)
	b.Process(pkts, b.now)
	return pkts[0]
}

func (b *bench) requireForward(p dpr.Packet, peer string) {
	b.t.Helper()
	require.Equal(b.t, dpr.Forward, p.Verdict)
	require.Equal(b.t, b.PeerID(peer), p.Peer)
	require.NoError(b.t, dprtest.Check(p.Bytes()))
}

func (b *bench) open(peer, service string) int { return b.Stats().Open[peer][service] }

func (b *bench) flows() int {
	n := 0
	for range b.Flows(b.now) {
		n++
	}
	return n
}

// tcp is a packet from the client to the VIP.
func tcp(flags dprtest.Flags, seq uint32, payload int) []byte {
	return tcpFrom(client, flags, seq, payload)
}

func tcpFrom(from netip.AddrPort, flags dprtest.Flags, seq uint32, payload int) []byte {
	dst := vip
	if from.Addr().Is6() {
		dst = vip6
	}
	return dprtest.TCP(from, dst, dprtest.Options{Flags: flags, Seq: seq, Ack: 1, Payload: make([]byte, payload), DF: true})
}

const (
	syn    = dprtest.SYN
	ack    = dprtest.ACK
	finAck = dprtest.FIN | dprtest.ACK
	rst    = dprtest.RST
	rstAck = dprtest.RST | dprtest.ACK
)

func TestRedirectedConnection(t *testing.T) {
	for _, from := range []netip.AddrPort{client, client6} {
		t.Run(from.Addr().String(), func(t *testing.T) {
			b := newBench(t, dpr.Config{})
			in := tcpFrom(from, syn, 1000, 0)
			p := b.from(in)
			b.requireForward(p, "h2")
			require.Equal(t, len(in), p.Len)
			require.Equal(t, in[len(in)-20:], p.Bytes()[len(in)-20:], "the TCP header must not change")
			require.Equal(t, 1, b.open("h2", "web"))

			b.choose("h3") // the choice is bound to the flow
			b.requireForward(b.from(tcpFrom(from, ack, 1001, 0)), "h2")
			b.requireForward(b.from(tcpFrom(from, ack|dprtest.PSH, 1001, 500)), "h2")
			require.Equal(t, 1, b.Stats().Flows[dpr.Established])
			b.requireForward(b.from(tcpFrom(from, finAck, 1501, 0)), "h2")
			require.Equal(t, 0, b.open("h2", "web"))
			require.Equal(t, int32(0), b.Live("h2", "web").Load())
			b.requireForward(b.from(tcpFrom(from, ack, 1502, 0)), "h2")

			b.pass(4*time.Minute + time.Second)
			require.Zero(t, b.flows())
			require.Equal(t, uint64(1), b.Stats().Services["web"].RedirectedOut)
		})
	}
}

func TestTTLIsLoweredOnTheWayOut(t *testing.T) {
	b := newBench(t, dpr.Config{})
	p := b.from(dprtest.TCP(client, vip, dprtest.Options{Flags: syn, TTL: 9}))
	b.requireForward(p, "h2")
	require.Equal(t, byte(8), p.Bytes()[8])
	p = b.from(dprtest.TCP(client6, vip6, dprtest.Options{Flags: syn, TTL: 9}))
	b.requireForward(p, "h2")
	require.Equal(t, byte(8), p.Bytes()[7])
	p = b.from(dprtest.TCP(client, vip, dprtest.Options{Flags: syn, TTL: 1}))
	require.Equal(t, dpr.Reply, p.Verdict)
	require.NoError(t, dprtest.Check(p.Bytes()))
	require.Equal(t, byte(11), p.Bytes()[20], "time exceeded")
}

func TestServedHere(t *testing.T) {
	b := newBench(t, dpr.Config{})
	b.choose("self")
	in := tcp(syn, 1, 0)
	p := b.from(in)
	require.Equal(t, dpr.Local, p.Verdict)
	require.Equal(t, in, p.Bytes())
	b.choose("h2")
	require.Equal(t, dpr.Local, b.from(in).Verdict, "the network may double a SYN before it has a socket")
	require.Equal(t, uint64(1), b.Stats().Services["web"].Served)
	b.requireForward(b.from(tcp(syn, 5000, 0)), "h2") // another connection
	b.choose("self")
	b.from(tcpFrom(client6, syn, 1, 0))
	b.pass(11 * time.Second)
	require.Equal(t, 1, b.flows(), "then the kernel's socket table knows local flows")
	b = newBench(t, dpr.Config{})
	// A packet that belongs to no flow is the local stack's to answer.
	require.Equal(t, dpr.Local, b.from(tcp(ack, 2, 10)).Verdict)
	require.Equal(t, uint64(1), b.Stats().Unknown)
}

func TestTrackLocalKeepsTheChoice(t *testing.T) {
	b := newBench(t, dpr.Config{TrackLocal: true})
	b.choose("self")
	require.Equal(t, dpr.Local, b.from(tcp(syn, 1, 0)).Verdict)
	b.choose("h2")
	require.Equal(t, dpr.Local, b.from(tcp(syn, 1, 0)).Verdict, "a repeated SYN")
	require.Equal(t, dpr.Local, b.from(tcp(ack, 2, 0)).Verdict)
	require.Equal(t, 1, b.flows())
	require.Equal(t, uint64(1), b.Stats().Services["web"].Served)
}

func TestWhatIsNotOursPasses(t *testing.T) {
	other := netip.MustParseAddrPort("198.51.100.1:443")
	for name, data := range map[string][]byte{
		"another port":     dprtest.TCP(client, other, dprtest.Options{Flags: syn}),
		"another protocol": dprtest.UDP(client, vip, dprtest.Options{}),
		"another address":  dprtest.TCP(client, netip.MustParseAddrPort("198.51.100.9:80"), dprtest.Options{Flags: syn}),
		"echo request":     dprtest.ICMP(client.Addr(), vip.Addr(), 8, 0, 1, dprtest.Options{}),
		"IPIP":             dprtest.IP(client.Addr(), vip.Addr(), 4, dprtest.Options{Payload: tcp(syn, 1, 0)}),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, dpr.Config{})
			p := b.from(data)
			require.Equal(t, dpr.Pass, p.Verdict)
			require.Equal(t, data, p.Bytes())
			p = b.fromPeer("h2", data)
			require.Equal(t, dpr.Drop, p.Verdict, "the tunnel is no way around the firewall")
			require.Equal(t, uint64(1), b.Stats().Drops[dpr.NotService])
		})
	}
}

func TestRedirectedInIsServedAndNeverRedirected(t *testing.T) { // A38
	b := newBench(t, dpr.Config{})
	in := tcp(syn, 1, 0)
	p := b.fromPeer("h2", in)
	require.Equal(t, dpr.Local, p.Verdict)
	require.Equal(t, in, p.Bytes())
	require.Zero(t, b.flows())
	require.Equal(t, uint64(1), b.Stats().Services["web"].RedirectedIn)
	require.Equal(t, uint64(1), b.Stats().FromPeers)
}

func TestA21RepeatedSYNKeepsItsHost(t *testing.T) {
	b := newBench(t, dpr.Config{})
	b.requireForward(b.from(tcp(syn, 1000, 0)), "h2")
	b.choose("h3")
	b.pass(time.Second)
	b.requireForward(b.from(tcp(syn, 1000, 0)), "h2")
	require.Equal(t, 1, b.open("h2", "web"))
	// The first host goes: the flow moves, and so does the count.
	require.NoError(t, b.SetPeers([]dpr.Peer{{ID: "h3"}}))
	b.pass(2 * time.Second)
	b.requireForward(b.from(tcp(syn, 1000, 0)), "h3")
	require.Equal(t, 1, b.flows())
	require.Equal(t, 1, b.open("h3", "web"))
	require.Zero(t, b.open("h2", "web"))
}

func TestA20PortReuseStartsANewChoice(t *testing.T) {
	for name, end := range map[string][]byte{"after FIN": tcp(finAck, 1001, 0), "after RST": tcp(rst, 1001, 0)} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, dpr.Config{})
			b.from(tcp(syn, 1000, 0))
			b.from(tcp(ack, 1001, 0))
			b.requireForward(b.from(end), "h2")
			b.choose("h3")
			b.pass(2 * time.Second)
			b.requireForward(b.from(tcp(syn, 1000, 0)), "h2") // the old SYN, late
			b.requireForward(b.from(tcp(syn, 900000, 0)), "h3")
			require.Equal(t, 0, b.open("h2", "web"))
			require.Equal(t, 1, b.open("h3", "web"))
			require.Equal(t, 1, b.flows())
		})
	}
}

func TestA22RefusedConnectionLeaves(t *testing.T) {
	b := newBench(t, dpr.Config{})
	for port := range 1000 {
		from := netip.AddrPortFrom(client.Addr(), uint16(10000+port))
		b.from(tcpFrom(from, syn, 7, 0)) // and the server's RST goes past us
	}
	require.Equal(t, 1000, b.open("h2", "web"))
	b.pass(61 * time.Second)
	require.Zero(t, b.open("h2", "web"))
	require.Zero(t, b.flows())
	require.Equal(t, int32(1000), b.Live("h2", "web").Load(), "a timeout is no end that could be subtracted from a report")
}

func TestA24ForgedResets(t *testing.T) {
	b := newBench(t, dpr.Config{})
	b.from(tcp(syn, 1000, 0))
	b.from(tcp(ack, 1001, 0))

	b.from(tcp(rst, 0x40000000, 0)) // far from the expected number: no effect
	require.Equal(t, 1, b.open("h2", "web"))

	b.from(tcp(rst, 1001, 0)) // as the client's would be, but its data goes on
	require.Equal(t, 0, b.open("h2", "web"))
	b.requireForward(b.from(tcp(ack, 1001, 100)), "h2")
	require.Equal(t, 1, b.open("h2", "web"), "data beyond the RST revives")
	require.Equal(t, int32(1), b.Live("h2", "web").Load())

	b.from(tcp(rst, 1101, 0)) // a true one, and one late packet
	b.requireForward(b.from(tcp(ack, 1001, 100)), "h2")
	b.requireForward(b.from(tcp(ack, 1101, 0)), "h2")
	require.Equal(t, 0, b.open("h2", "web"), "a late packet does not")
	b.from(tcp(ack, 1101, 0)) // but a download's client acknowledges again and again
	require.Equal(t, 1, b.open("h2", "web"))
}

func TestA54CountsFallOncePerFlow(t *testing.T) {
	ends := [][]byte{tcp(finAck, 1001, 0), tcp(finAck, 1001, 0), tcp(rst, 1002, 0), tcp(rstAck, 1002, 0)}
	for first := range ends {
		b := newBench(t, dpr.Config{})
		b.from(tcp(syn, 1000, 0))
		b.from(tcp(ack, 1001, 0))
		for i := range ends {
			b.from(ends[(first+i)%len(ends)])
			require.Zero(t, b.open("h2", "web"))
			require.Zero(t, b.Live("h2", "web").Load())
		}
		b.pass(time.Hour)
		require.Zero(t, b.flows())
		require.NoError(t, b.SetPeers(nil))
		require.Zero(t, b.Live("h2", "web").Load())
	}
}

func TestPeerGone(t *testing.T) {
	b := newBench(t, dpr.Config{})
	b.from(tcp(syn, 1000, 0))
	b.from(tcp(ack, 1001, 0))
	require.NoError(t, b.SetPeers([]dpr.Peer{{ID: "h3"}}))
	require.Equal(t, dpr.Reply, b.from(tcp(ack, 1001, 10)).Verdict)
	require.Equal(t, uint64(1), b.Stats().PeerGone)
	require.Zero(t, b.flows())
	// The host comes back: the flow does not, its slot has a new generation.
	require.NoError(t, b.SetPeers([]dpr.Peer{{ID: "h2"}, {ID: "h3"}}))
	require.Equal(t, dpr.Local, b.from(tcp(ack, 1001, 10)).Verdict)
	b.requireForward(b.from(tcp(syn, 5000, 0)), "h2")
	require.Equal(t, 1, b.open("h2", "web"))
}

func TestRefused(t *testing.T) {
	for _, from := range []netip.AddrPort{client, client6} {
		b := newBench(t, dpr.Config{})
		b.choose("")
		p := b.from(tcpFrom(from, syn, 1000, 0))
		require.Equal(t, dpr.Reply, p.Verdict)
		require.NoError(t, dprtest.Check(p.Bytes()))
		segment := p.Bytes()[p.Len-20:]
		require.Equal(t, byte(rst|ack), segment[13])
		require.Equal(t, []byte{0, 0, 3, 233}, segment[8:12], "acknowledges the SYN")
		require.Equal(t, uint64(1), b.Stats().Services["web"].Refused)
	}
	b := newBench(t, dpr.Config{})
	b.choose("")
	p := b.from(dprtest.UDP(client, netip.AddrPortFrom(vip.Addr(), 53), dprtest.Options{}))
	require.Equal(t, dpr.Drop, p.Verdict)
	require.Equal(t, uint64(1), b.Stats().Drops[dpr.Refused])
}

func TestUDPFlow(t *testing.T) {
	for _, host := range []string{"h2", "self"} {
		b := newBench(t, dpr.Config{})
		b.choose(host)
		data := dprtest.UDP(client, netip.AddrPortFrom(vip.Addr(), 53), dprtest.Options{Payload: []byte("query")})
		first := b.from(data)
		require.Equal(t, 1, b.Stats().Flows[dpr.UDPNew])
		b.choose("h3")
		second := b.from(data)
		require.Equal(t, first.Verdict, second.Verdict)
		require.Equal(t, first.Peer, second.Peer)
		require.Equal(t, 1, b.Stats().Flows[dpr.UDPFlow])
		b.pass(5*time.Minute + time.Second)
		require.Zero(t, b.flows())
	}
}

func TestUDPFlowsServedHereAreCounted(t *testing.T) {
	b := newBench(t, dpr.Config{})
	serving := b.Serving("dns")
	require.Nil(t, b.Serving("nothing"))
	b.choose("self")
	b.from(datagram(client, 10, dprtest.Options{}))
	b.Tick(b.now)
	require.Equal(t, int32(1), serving.Load())
	for range 3 {
		require.Equal(t, dpr.Local, b.fromPeer("h2", datagram(client6, 10, dprtest.Options{})).Verdict)
	}
	b.Tick(b.now)
	require.Equal(t, int32(2), serving.Load())
	require.Equal(t, uint64(1), b.Stats().Services["dns"].RedirectedIn)
	b.pass(time.Hour)
	require.Zero(t, serving.Load())
}

func TestConnectionsUnderWayCount(t *testing.T) {
	b := newBench(t, dpr.Config{})
	var live atomic.Int32
	var opened atomic.Uint32
	require.ErrorContains(t, b.SetSockets("nothing", dpr.Sockets{Live: &live}), `no service "nothing"`)
	require.NoError(t, b.SetSockets("web", dpr.Sockets{Live: &live, Opened: &opened}))
	serving := b.Serving("web")
	count := func() int32 { b.Tick(b.now); return serving.Load() }
	b.choose("self")
	for port := range 10 { // a burst: none is established yet
		b.from(tcpFrom(netip.AddrPortFrom(client.Addr(), uint16(1000+port)), syn, 1, 0))
		require.Equal(t, int32(port+1), count())
	}
	for range 8 {
		live.Add(1)
		opened.Add(1)
		require.Equal(t, int32(10), count(), "established or about to be, it is one connection")
	}
	live.Add(-8)
	require.Equal(t, int32(2), count())
	b.pass(3 * time.Second / 2)
	b.pass(3 * time.Second / 2)
	require.Zero(t, count(), "two never will be")
	b.fromPeer("h2", tcpFrom(client6, syn, 1, 0))
	require.Equal(t, int32(1), count(), "a redirected one counts from its SYN, too")
	live.Add(1)
	opened.Add(1)
	require.Equal(t, int32(1), count())
	// Without openings the count is the sockets' alone.
	require.NoError(t, b.SetSockets("web", dpr.Sockets{Live: &live}))
	b.from(tcp(syn, 1, 0))
	require.Equal(t, int32(1), count())
}

func TestFullTable(t *testing.T) { // A25, A26
	b := newBench(t, dpr.Config{MaxFlows: 100})
	established := netip.AddrPortFrom(client.Addr(), 1)
	b.from(tcpFrom(established, syn, 1, 0))
	b.from(tcpFrom(established, ack, 2, 0))
	for port := range 1000 {
		b.from(tcpFrom(netip.AddrPortFrom(client.Addr(), uint16(10000+port)), syn, 1, 0))
	}
	require.LessOrEqual(t, b.flows(), 100)
	require.Zero(t, b.Stats().TableFull, "embryonic flows make room")
	b.requireForward(b.from(tcpFrom(established, ack, 2, 10)), "h2")

	// Established flows do not; the flow's hash decides, the same way each time.
	b = newBench(t, dpr.Config{MaxFlows: 100})
	for port := range 200 {
		from := netip.AddrPortFrom(client.Addr(), uint16(10000+port))
		p := b.from(tcpFrom(from, syn, 1, 0))
		again := b.from(tcpFrom(from, syn, 1, 0))
		third := b.from(tcpFrom(from, ack, 2, 0))
		require.Equal(t, p.Verdict, again.Verdict)
		require.Equal(t, p.Peer, again.Peer)
		require.Equal(t, p.Verdict, third.Verdict)
		require.Equal(t, p.Peer, third.Peer)
	}
	require.NotZero(t, b.Stats().TableFull)
	require.Equal(t, 100, b.flows())
}

func TestServicesChangeWhilePacketsFlow(t *testing.T) {
	b := newBench(t, dpr.Config{})
	b.from(tcp(syn, 1, 0))
	web := dpr.Service{Name: "web", Proto: dpr.TCP, Port: 80, Addrs: []netip.Addr{vip.Addr()}}
	more := dpr.Service{Name: "more", Proto: dpr.TCP, Port: 8000, PortEnd: 8010, Addrs: []netip.Addr{vip.Addr()}}
	require.NoError(t, b.SetServices([]dpr.Service{more, web}))
	b.choose("h3")
	b.requireForward(b.from(tcp(ack, 2, 0)), "h2")
	p := b.from(dprtest.TCP(client, netip.AddrPortFrom(vip.Addr(), 8005), dprtest.Options{Flags: syn}))
	require.Equal(t, dpr.Local, p.Verdict, "no snapshot yet: served here")
	require.NoError(t, b.SetServices([]dpr.Service{more}))
	require.Equal(t, dpr.Pass, b.from(tcp(ack, 2, 0)).Verdict)
	require.NoError(t, b.SetServices([]dpr.Service{more, web}))
	b.requireForward(b.from(tcp(ack, 2, 0)), "h2")
}

func TestPaddingIsCutOff(t *testing.T) { // A49
	b := newBench(t, dpr.Config{})
	data := tcp(syn, 1, 0)
	p := b.from(append(bytes.Clone(data), make([]byte, 6)...))
	b.requireForward(p, "h2")
	require.Equal(t, len(data), p.Len)
}

func TestA51EveryPrefixIsShort(t *testing.T) {
	for _, whole := range [][]byte{
		tcp(ack, 1, 100), tcpFrom(client6, ack, 1, 100),
		dprtest.UDP(client, netip.AddrPortFrom(vip.Addr(), 53), dprtest.Options{Payload: make([]byte, 50)}),
	} {
		b := newBench(t, dpr.Config{})
		for n := range len(whole) {
			require.Equal(t, dpr.Drop, b.from(whole[:n]).Verdict, "prefix of %d bytes", n)
		}
		require.Zero(t, b.flows())
		require.Equal(t, uint64(len(whole)), b.Stats().Verdicts[dpr.Drop])
	}
}

func TestConfigErrors(t *testing.T) {
	addr := []netip.Addr{vip.Addr()}
	for want, cfg := range map[string]dpr.Config{
		"MaxFlows is -1":            {MaxFlows: -1},
		"Timeouts.closing is -1s":   {Timeouts: dpr.Timeouts{Closing: -time.Second}},
		"ErrorsPerSecond is -1":     {ErrorsPerSecond: -1},
		"Name is empty":             {Services: []dpr.Service{{Proto: dpr.TCP, Port: 1, Addrs: addr}}},
		"Proto is 0":                {Services: []dpr.Service{{Name: "a", Port: 1, Addrs: addr}}},
		"Port is 0":                 {Services: []dpr.Service{{Name: "a", Proto: dpr.TCP, Addrs: addr}}},
		"PortEnd 2 lies before":     {Services: []dpr.Service{{Name: "a", Proto: dpr.TCP, Port: 3, PortEnd: 2, Addrs: addr}}},
		"Addrs is empty":            {Services: []dpr.Service{{Name: "a", Proto: dpr.TCP, Port: 3}}},
		"must be a unicast address": {Services: []dpr.Service{{Name: "a", Proto: dpr.TCP, Port: 3, Addrs: []netip.Addr{{}}}}},
		"is there twice": {Services: []dpr.Service{
			{Name: "a", Proto: dpr.TCP, Port: 3, Addrs: addr}, {Name: "a", Proto: dpr.TCP, Port: 4, Addrs: addr}}},
		"both claim tcp port 3": {Services: []dpr.Service{
			{Name: "a", Proto: dpr.TCP, Port: 1, PortEnd: 5, Addrs: addr}, {Name: "b", Proto: dpr.TCP, Port: 3, Addrs: addr}}},
	} {
		_, err := dpr.New(cfg)
		require.ErrorContains(t, err, want)
	}
}

func TestProcessAllocatesNothing(t *testing.T) {
	if raceDetector {
		t.Skip("sync.Pool allocates at random under the race detector")
	}
	b := newBench(t, dpr.Config{TrackLocal: true})
	const n = 32
	pkts := dpr.NewPackets(n, 2048)
	run := func(data func(i int) []byte) float64 {
		bytes := make([][]byte, n)
		return testing.AllocsPerRun(100, func() {
			for i := range pkts {
				if bytes[i] == nil {
					bytes[i] = data(i)
				}
				pkts[i].Off, pkts[i].Peer = dpr.Headroom, 0
				pkts[i].Len = copy(pkts[i].Buf[dpr.Headroom:], bytes[i])
			}
			b.Process(pkts, b.now)
		})
	}
	from := func(i int) netip.AddrPort { return netip.AddrPortFrom(client.Addr(), uint16(1000+i)) }
	require.Zero(t, run(func(i int) []byte { return tcpFrom(from(i), syn, 1, 0) }))
	require.Zero(t, run(func(i int) []byte { return tcpFrom(from(i), ack, 2, 100) }))
	seq := uint32(0)
	require.Zero(t, testing.AllocsPerRun(100, func() { // a new flow for every packet
		for i := range pkts {
			p := &pkts[i]
			p.Off, p.Peer, p.Len = dpr.Headroom, 0, 40
			seq++
			p.Buf[p.Off+12], p.Buf[p.Off+13], p.Buf[p.Off+14] = byte(10), byte(seq>>8), byte(seq)
			p.Buf[p.Off+33] = byte(syn)
		}
		b.Process(pkts, b.now)
	}))
	require.NotZero(t, b.Stats().Services["web"].RedirectedOut)

	nat := newNAT(t, dpr.Config{})
	b = nat.bench
	server := func(flags dprtest.Flags) func(i int) []byte {
		return func(i int) []byte {
			s := web4
			s.client = from(i)
			return dprtest.TCP(plain, nat.leaves(s), dprtest.Options{Flags: flags, Seq: 7000, Ack: 2, Payload: make([]byte, 100)})
		}
	}
	require.Zero(t, run(func(i int) []byte { return tcpFrom(from(i), syn, 1, 0) }))
	require.Zero(t, run(server(syn|ack)))
	require.Zero(t, run(func(i int) []byte { return tcpFrom(from(i), ack, 2, 100) }))
	require.Zero(t, run(server(ack)))
	require.Equal(t, uint64(4*101*n), b.Stats().Verdicts[dpr.Transmit])
}

func TestReasonsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range dpr.Reasons() {
		require.NotEqual(t, "unknown", r.String(), strconv.Itoa(int(r)))
		require.False(t, seen[r.String()], r.String())
		seen[r.String()] = true
	}
}
