package dpr_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
)

// A client's own word does not open a flow whose server's is heard.
func TestNATForgedHandshake(t *testing.T) {
	b := newNAT(t, dpr.Config{})
	b.out(web4, seg{Flags: syn, Seq: 1000})
	b.out(web4, seg{Flags: ack, Seq: 1001, Ack: 1})
	require.Equal(t, dpr.Embryonic, b.state(), "the server has not answered")
	b.in(web4, seg{Flags: syn | ack, Seq: 0x70000000, Ack: 1001})
	b.out(web4, seg{Flags: ack, Seq: 1001, Ack: 1})
	b.out(web4, seg{Flags: ack, Seq: 1001, Ack: 0x70020002})
	require.Equal(t, dpr.Embryonic, b.state(), "a forger does not know its number")
	b.out(web4, seg{Flags: ack, Seq: 1001, Ack: 0x70000001})
	require.Equal(t, dpr.Established, b.state())
	b.pass(2 * time.Hour)
	require.Equal(t, dpr.Established, b.state())
	b.pass(6 * time.Minute)
	require.Zero(t, b.flows())
}

func TestA23AResetEndsAFlowFromEitherSide(t *testing.T) {
	for _, fromServer := range []bool{false, true} {
		for _, seq := range []uint32{0, 0x40000000} { // and a forged one ends none
			b := newNAT(t, dpr.Config{})
			b.connect(web4)
			if fromServer {
				b.in(web4, seg{Flags: rst, Seq: 7001 + seq})
			} else {
				b.out(web4, seg{Flags: rst, Seq: 1001 + seq})
			}
			if seq != 0 {
				require.Equal(t, dpr.Established, b.state())
				require.Equal(t, 1, b.open("h3", "web"))
				continue
			}
			require.Equal(t, dpr.Closed, b.state())
			require.Zero(t, b.open("h3", "web"))
			b.pass(9 * time.Second)
			require.Equal(t, 1, b.flows())
			b.pass(2 * time.Second)
			require.Zero(t, b.flows(), "from server: %v", fromServer)
		}
	}
}

func TestA22RefusedByAPlainServer(t *testing.T) {
	b := newNAT(t, dpr.Config{})
	b.out(web4, seg{Flags: syn, Seq: 1000})
	b.in(web4, seg{Flags: rstAck, Ack: 0x12345}) // a stranger's
	require.Equal(t, dpr.Embryonic, b.state())
	b.in(web4, seg{Flags: rstAck, Ack: 1001})
	require.Equal(t, dpr.Closed, b.state())
	require.Zero(t, b.open("h3", "web"))
	require.Zero(t, b.Live("h3", "web").Load())
}

// What a side says after the other one's end does not bring the flow back; what the
// side itself says does, for then the end was another's.
func TestA24ForgedEndsUnderNAT(t *testing.T) {
	for _, flags := range []dprtest.Flags{rst, finAck} {
		b := newNAT(t, dpr.Config{})
		b.connect(web4)
		b.in(web4, seg{Flags: flags, Seq: 7001, Ack: 1001})
		require.Zero(t, b.open("h3", "web"))
		b.out(web4, seg{Flags: ack, Seq: 1001, Ack: 7001, Payload: make([]byte, 100)})
		require.Zero(t, b.open("h3", "web"), "the client has not heard it yet")
		b.in(web4, seg{Flags: ack, Seq: 7001, Ack: 1101, Payload: make([]byte, 100)})
		require.Equal(t, dpr.Established, b.state())
		require.Equal(t, 1, b.open("h3", "web"))
		require.Equal(t, int32(1), b.Live("h3", "web").Load())
	}
}

// A client that seems to have leapt ahead can end its flow when the server has said
// where it is.
func TestNATLeaps(t *testing.T) {
	b := newNAT(t, dpr.Config{})
	b.connect(web4)
	b.out(web4, seg{Flags: ack, Seq: 1001 + 1<<20, Ack: 7001, Payload: []byte("forged")})
	b.out(web4, seg{Flags: rst, Seq: 1007 + 1<<20})
	require.Equal(t, dpr.Established, b.state())
	b.in(web4, seg{Flags: ack, Seq: 7001, Ack: 1001})
	b.out(web4, seg{Flags: rst, Seq: 1001})
	require.Equal(t, dpr.Closed, b.state())
}

func TestA31OutOfWindowIsTranslated(t *testing.T) {
	b := newNAT(t, dpr.Config{})
	b.connect(web4)
	b.in(web4, seg{Flags: ack, Seq: 7001 + 100_000, Ack: 1001, Payload: []byte("far")})
	b.in(web4, seg{Flags: ack, Seq: 7001 + 1<<30, Ack: 1001, Payload: []byte("farther")})
	require.Equal(t, dpr.Established, b.state())
	b.in(web4, seg{Flags: ack, Seq: 7001, Ack: 1001, Payload: []byte("near")})
}

func TestA32HalfClosedUnderNAT(t *testing.T) {
	b := newNAT(t, dpr.Config{})
	b.connect(web4)
	b.in(web4, seg{Flags: finAck, Seq: 7001, Ack: 1001})
	for range 20 { // an upload goes on
		b.pass(3 * time.Minute)
		b.out(web4, seg{Flags: ack, Seq: 1001, Ack: 7002, Payload: []byte("more")})
		require.Equal(t, dpr.Closing, b.state())
	}
	b = newNAT(t, dpr.Config{})
	b.connect(web4)
	b.out(web4, seg{Flags: finAck, Seq: 1001, Ack: 7001})
	for i := range uint32(20) { // a download does
		b.pass(3 * time.Minute)
		b.in(web4, seg{Flags: ack, Seq: 7001 + 4*i, Ack: 1002, Payload: []byte("more")})
		require.Equal(t, dpr.Closing, b.state())
	}
	require.Zero(t, b.open("h3", "web"))
}

func TestA37PortsRestWhenTheirHostGoes(t *testing.T) {
	nat := dpr.NAT{First: 61000, Last: 61001}
	b := newNAT(t, dpr.Config{NAT: nat})
	b.connect(web4)
	old := b.leaves(web4)
	require.NoError(t, b.SetPeers([]dpr.Peer{{ID: "h2"}}))
	p := b.from(tcp(ack, 1001, 10))
	require.Equal(t, dpr.Reply, p.Verdict, "the client is told")
	require.Equal(t, dpr.Pass, b.from(dprtest.TCP(plain, old, seg{Flags: ack, Seq: 7001})).Verdict, "and the server, by the kernel")
	b.pass(10 * time.Second)
	require.NoError(t, b.SetPeers(natPeers()))
	b.connect(web4)
	require.NotEqual(t, old, b.leaves(web4))
	require.Equal(t, dpr.NATPorts{Server: plain, Proto: dpr.TCP, Used: 1, Resting: 1}, b.ports(plain, dpr.TCP))

	// There is no other: it is served here, and counted.
	other := netip.AddrPortFrom(client.Addr(), 40001)
	require.Equal(t, dpr.Local, b.from(tcpFrom(other, syn, 1, 0)).Verdict)
	require.Equal(t, uint64(1), b.Stats().NoPort)
	require.Equal(t, uint64(1), b.Stats().Services["web"].Served)
	b.pass(49 * time.Second)
	require.Equal(t, dpr.Local, b.from(tcpFrom(other, syn, 2, 0)).Verdict)
	b.pass(3 * time.Second)
	third := web4
	third.client = netip.AddrPortFrom(client.Addr(), 40002)
	b.connect(third)
	require.Equal(t, old, b.leaves(third))
}

func TestA20PortReuseUnderNAT(t *testing.T) {
	b := newNAT(t, dpr.Config{})
	b.connect(web4)
	old := b.leaves(web4)
	b.out(web4, seg{Flags: finAck, Seq: 1001, Ack: 7001})
	b.out(web4, seg{Flags: syn, Seq: 900000})
	require.NotEqual(t, old, b.leaves(web4), "the server may have the old connection in TIME_WAIT")
	require.Equal(t, 1, b.open("h3", "web"))
	require.Equal(t, 1, b.flows())
}

// A server whose ports all rest no more is forgotten with its host.
func TestNATServersAreForgotten(t *testing.T) {
	b := newNAT(t, dpr.Config{})
	b.connect(web4)
	require.NoError(t, b.SetPeers([]dpr.Peer{{ID: "h2"}}))
	require.Len(t, b.Stats().NAT, 1)
	b.pass(3 * time.Hour)
	b.pass(2 * time.Minute)
	require.NoError(t, b.SetPeers([]dpr.Peer{{ID: "h2"}}))
	require.Empty(t, b.Stats().NAT)
	require.NoError(t, b.SetPeers(natPeers()))
	b.connect(web4)
}

// A host may begin or cease to run an engine: its flows do not change their way.
func TestNATPeerBecomesAMember(t *testing.T) {
	b := newNAT(t, dpr.Config{})
	b.connect(web4)
	require.NoError(t, b.SetPeers([]dpr.Peer{{ID: "h3"}}))
	require.Equal(t, dpr.Reply, b.from(tcp(ack, 1001, 10)).Verdict)
	b.requireForward(b.from(tcp(syn, 5000, 0)), "h3")
}

// The table is full: a port is not lost with each flow that it has no room for.
func TestNATInAFullTable(t *testing.T) {
	b := newNAT(t, dpr.Config{MaxFlows: 1, NAT: dpr.NAT{First: 61000, Last: 61009}})
	b.connect(web4)
	for port := range 100 {
		from := netip.AddrPortFrom(client.Addr(), uint16(1000+port))
		v := b.from(tcpFrom(from, syn, 1, 0)).Verdict
		require.True(t, v == dpr.Local || v == dpr.Forward, "plain servers are no stateless choice")
	}
	require.Equal(t, uint64(100), b.Stats().TableFull)
	require.Equal(t, dpr.NATPorts{Server: plain, Proto: dpr.TCP, Used: 1, Free: 9}, b.ports(plain, dpr.TCP))
}

// Any packet that is translated is the one that its sender would have sent with the
// other ends: checksums included, and as wrong as before where they were wrong.
func TestNATProperty(t *testing.T) {
	b := newNAT(t, dpr.Config{})
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.SampledFrom([]side{web4, web6, ask4, ask6}).Draw(t, "side")
		build := dprtest.TCP
		kinds := []dprtest.Checksum{dprtest.Right, dprtest.Wrong}
		if s.dialled.Port() == 53 {
			build = dprtest.UDP
			if s.client.Addr().Is4() {
				kinds = append(kinds, dprtest.None)
			}
		}
		s.client = netip.AddrPortFrom(s.client.Addr(), rapid.Uint16Min(1).Draw(t, "port"))
		o := seg{
			Flags: syn, TTL: 64, Payload: rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "payload"),
			Seq: rapid.Uint32().Draw(t, "seq"), Ack: rapid.Uint32().Draw(t, "ack"),
			TOS: rapid.Byte().Draw(t, "tos"), ID: rapid.Uint16().Draw(t, "id"), DF: rapid.Bool().Draw(t, "df"),
			Checksum: rapid.SampledFrom(kinds).Draw(t, "checksum"),
		}
		translated := func(from, to, wantFrom, wantTo netip.AddrPort) {
			pkts := []dpr.Packet{packet(build(from, to, o))}
			b.Process(pkts, b.now)
			o.TTL = 63
			require.Equal(t, dpr.Transmit, pkts[0].Verdict)
			want := build(wantFrom, wantTo, o)
			require.Equal(t, want, pkts[0].Bytes(), dprtest.Diff(want, pkts[0].Bytes()))
			require.Equal(t, o.Checksum != dprtest.Wrong, dprtest.Check(pkts[0].Bytes()) == nil)
			o.TTL = 64
		}
		opens := build(s.client, s.dialled, o)
		b.Process([]dpr.Packet{packet(opens)}, b.now)
		leaves := b.leaves(s)
		o.Flags = dprtest.Flags(rapid.Byte().Draw(t, "flags")) &^ (syn | rst | dprtest.FIN)
		translated(s.client, s.dialled, leaves, s.server)
		translated(s.server, leaves, s.dialled, s.client)
	})
}
