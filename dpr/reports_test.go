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

// Half-open flows leave first, and soon; those with an ACK behind them stay (A25). Real
// connections open all the while.
func TestA25HalfOpenFlood(t *testing.T) {
	const table, real = 1000, 100
	b := newBench(t, dpr.Config{MaxFlows: table})
	for n := range real {
		b.from(tcpFrom(clientPort(n+1), syn, 1, 0))
		b.from(tcpFrom(clientPort(n+1), ack, 2, 0))
	}
	opened := 0
	for n := range 2 * table {
		forged := netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, byte(n >> 8), byte(n)}), 1)
		b.from(tcpFrom(forged, syn, 1, 0))
		if n%200 == 0 {
			opened++
			b.requireForward(b.from(tcpFrom(clientPort(2000+n), syn, 1, 0)), "h2")
			b.requireForward(b.from(tcpFrom(clientPort(2000+n), ack, 2, 0)), "h2")
		}
	}
	require.Equal(t, real+opened, b.Stats().Flows[dpr.Established])
	require.LessOrEqual(t, b.flows(), table)
	b.pass(61 * time.Second)
	require.Equal(t, real+opened, b.flows())
	require.Equal(t, real+opened, b.open("h2", "web"))
}

func TestA26SpoofedDatagrams(t *testing.T) {
	b := newBench(t, dpr.Config{MaxFlows: 1000})
	for n := range 5000 {
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, byte(n >> 8), byte(n)}), 9)
		b.from(datagram(from, 8, dprtest.Options{}))
	}
	require.LessOrEqual(t, b.flows(), 1000)
	b.requireForward(b.from(tcp(syn, 1, 0)), "h2")
	b.requireForward(b.from(tcp(ack, 2, 0)), "h2")
	require.Zero(t, b.Stats().TableFull)
}

// A flow of which only the client's half passes is open by the client's ACK alone, and
// keepalives, every two hours, keep it.
func TestA29IdleAndKeepalive(t *testing.T) {
	for name, probe := range map[string][]byte{"without data": tcp(ack, 1000, 0), "with one byte": tcp(ack, 1000, 1)} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, dpr.Config{})
			b.from(tcp(syn, 1000, 0))
			b.from(tcp(ack, 1001, 0))
			b.choose("h3")
			for range 10 {
				b.pass(7201 * time.Second)
				b.requireForward(b.from(probe), "h2")
			}
			b.pass(7201 * time.Second)
			b.requireForward(b.from(tcp(ack, 1001, 100)), "h2")
			b.pass(2*time.Hour + 6*time.Minute)
			require.Equal(t, dpr.Local, b.from(tcp(ack, 1101, 1)).Verdict, "A30: the local stack resets it")
			require.Zero(t, b.flows(), "A30: and nobody remembers it")
		})
	}
}

// A packet out of every window goes to the same host unchanged, and changes nothing.
func TestA31OutOfWindow(t *testing.T) {
	b := newBench(t, dpr.Config{})
	b.from(tcp(syn, 1000, 0))
	b.from(tcp(ack, 1001, 0))
	for _, flags := range []dprtest.Flags{ack, finAck, rst, rstAck} {
		p := b.from(tcp(flags, 1001+0x30000000, 10))
		b.requireForward(p, "h2")
		require.Equal(t, uint32(1001+0x30000000), binary.BigEndian.Uint32(p.Bytes()[24:]))
		require.Equal(t, 1, b.open("h2", "web"))
	}
	b.requireForward(b.from(tcp(ack, 1001, 10)), "h2")
	require.Equal(t, 1, b.Stats().Flows[dpr.Established])
}

// The server closes its half, of which this host sees the client's ACK alone; or the
// client its own, and goes on to acknowledge what it downloads.
func TestA32HalfClosedTransfers(t *testing.T) {
	b := newBench(t, dpr.Config{})
	b.from(tcp(syn, 1000, 0))
	b.from(tcp(ack, 1001, 0))
	b.from(tcp(ack, 1001, 0)) // of the server's FIN
	b.pass(1700 * time.Second)
	b.requireForward(b.from(tcp(ack|dprtest.PSH, 1001, 100)), "h2")
	b.requireForward(b.from(tcp(finAck, 1101, 0)), "h2")
	for range 100 { // a download of an hour and more
		b.pass(50 * time.Second)
		b.requireForward(b.from(tcp(ack, 1102, 0)), "h2")
	}
	require.Zero(t, b.open("h2", "web"), "it ended for its client")
}

// A half-closed flow lives as long as its server says that it does, and leaves when it
// is gone; when room is needed it leaves before one that is open.
func TestA33HalfClosedFlowsLeave(t *testing.T) {
	c := newConfirmer(t, dpr.Config{MaxFlows: 1000})
	c.alive[client] = dpr.Open
	c.from(tcp(syn, 1000, 0))
	c.from(tcp(ack, 1001, 0))
	c.live(2 * time.Second)
	c.from(tcp(finAck, 1001, 0))
	c.live(time.Hour)
	require.Equal(t, "closing", c.state(client))
	delete(c.alive, client)
	c.live(10 * time.Minute)
	require.Zero(t, c.flows())

	b := newBench(t, dpr.Config{MaxFlows: 1000})
	for n := range 900 { // both ends vanish after the client's FIN
		b.from(tcpFrom(clientPort(1+n), syn, 1, 0))
		b.from(tcpFrom(clientPort(1+n), finAck, 2, 0))
	}
	for n := range 500 {
		b.from(tcpFrom(clientPort(2000+n), syn, 1, 0))
		b.requireForward(b.from(tcpFrom(clientPort(2000+n), ack, 2, 0)), "h2")
	}
	require.Zero(t, b.Stats().TableFull)
	require.Equal(t, 500, b.Stats().Flows[dpr.Established])
}

func TestA34DatagramsOfADeadHostMove(t *testing.T) {
	b := newBench(t, dpr.Config{})
	for range 20 {
		b.requireForward(b.from(datagram(client, 8, dprtest.Options{})), "h2")
		b.pass(100 * time.Millisecond)
	}
	require.NoError(t, b.SetPeers([]dpr.Peer{{ID: "h3"}}))
	b.choose("h3")
	b.requireForward(b.from(datagram(client, 8, dprtest.Options{})), "h3")
	require.Equal(t, 1, b.open("h3", "dns"))
	require.Zero(t, b.open("h2", "dns"))
}

// A SYN is one whatever else it carries: ECN's bits, PSH, data (Fast Open), the bits
// that are reserved.
func TestA35EverySYNOpens(t *testing.T) {
	for name, o := range map[string]dprtest.Options{
		"ECN":                    {Flags: syn | dprtest.ECE | dprtest.CWR},
		"PSH":                    {Flags: syn | dprtest.PSH},
		"data":                   {Flags: syn, Payload: make([]byte, 100)},
		"Fast Open cookie, data": {Flags: syn, Payload: make([]byte, 100), TCPOptions: []byte{34, 10, 1, 2, 3, 4, 5, 6, 7, 8}},
		"MP_CAPABLE":             {Flags: syn, TCPOptions: []byte{30, 4, 1, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, dpr.Config{})
			o.Seq = 1000
			in := dprtest.TCP(client, vip, o)
			p := b.from(in)
			b.requireForward(p, "h2")
			require.Equal(t, in[20:], p.Bytes()[20:], "nothing of TCP changes")
			b.choose("h3")
			b.requireForward(b.from(in), "h2")
			next := uint32(1001 + len(o.Payload))
			b.requireForward(b.from(tcp(ack, next, 10)), "h2")
			require.Equal(t, 1, b.Stats().Flows[dpr.Established])
			require.Equal(t, 1, b.open("h2", "web"))
		})
	}
}

// An additional subflow of Multipath TCP is a connection like any other here: its token
// means nothing to this host, and its option is left alone (RFC 8684, section 3.2).
func TestSubflowsAreLeftAlone(t *testing.T) {
	b := newBench(t, dpr.Config{})
	join := []byte{30, 12, 0x10, 1, 0xde, 0xad, 0xbe, 0xef, 1, 2, 3, 4}
	in := dprtest.TCP(client, vip, dprtest.Options{Flags: syn, Seq: 1, TCPOptions: join})
	p := b.from(in)
	b.requireForward(p, "h2")
	require.Equal(t, in[20:], p.Bytes()[20:])
}

func TestA36UrgentPointer(t *testing.T) {
	b := newBench(t, dpr.Config{})
	b.from(tcp(syn, 1000, 0))
	in := tcp(ack|dprtest.URG, 1001, 10)
	binary.BigEndian.PutUint16(in[38:], 1)
	binary.BigEndian.PutUint16(in[36:], binary.BigEndian.Uint16(in[36:])-1) // of the checksum: one more in the sum
	p := b.from(in)
	b.requireForward(p, "h2")
	require.Equal(t, in[20:], p.Bytes()[20:])
}

// Both ends open at once, as RFC 9293 allows: a SYN-ACK of the client's is no opening
// of its own, and goes where its SYN went.
func TestSimultaneousOpen(t *testing.T) {
	b := newBench(t, dpr.Config{})
	b.from(tcp(syn, 1000, 0))
	b.choose("h3")
	b.requireForward(b.from(tcp(syn|ack, 1000, 0)), "h2")
	b.requireForward(b.from(tcp(ack, 1001, 10)), "h2")
	require.Equal(t, 1, b.open("h2", "web"))
	require.Equal(t, 1, b.Stats().Flows[dpr.Established])
}

// An answer to a connection that a host opened itself from the dialled address belongs
// to no flow, and its port to no service: the kernel gets it back.
func TestA41OutgoingFromTheDialledAddress(t *testing.T) {
	b := newBench(t, dpr.Config{})
	mail := netip.AddrPortFrom(client.Addr(), 25)
	own := netip.AddrPortFrom(vip.Addr(), 50000)
	require.Equal(t, dpr.Pass, b.from(dprtest.TCP(mail, own, dprtest.Options{Flags: syn | ack, Seq: 1, Ack: 2})).Verdict)
	require.Equal(t, dpr.Local, b.from(tcp(syn|ack, 1, 0)).Verdict, "from a service's port: not supported, so reset")
	require.Zero(t, b.flows())
}

// Two halves of a cluster lose sight of each other, and of nothing else. Each keeps its
// flows to the hosts that it sees; when it sees the others again these get new flows.
func TestA42Partition(t *testing.T) {
	b := newBench(t, dpr.Config{})
	b.from(tcp(syn, 1000, 0))
	b.from(tcp(ack, 1001, 0))
	b.choose("h3")
	other := clientPort(5)
	b.from(tcpFrom(other, syn, 1000, 0))
	b.from(tcpFrom(other, ack, 1001, 0))
	require.NoError(t, b.SetPeers([]dpr.Peer{{ID: "h2"}}))
	b.requireForward(b.from(tcp(ack, 1001, 10)), "h2")
	require.Equal(t, dpr.Reply, b.from(tcpFrom(other, ack, 1001, 10)).Verdict, "a reset, not silence")
	require.NoError(t, b.SetPeers([]dpr.Peer{{ID: "h2"}, {ID: "h3"}}))
	b.requireForward(b.from(tcp(ack, 1011, 10)), "h2")
	b.requireForward(b.from(tcpFrom(other, syn, 9000, 0)), "h3")
	require.Equal(t, 1, b.open("h2", "web"))
	require.Equal(t, 1, b.open("h3", "web"))
}
