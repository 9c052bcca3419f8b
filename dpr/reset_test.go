package dpr_test

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
)

// A connection whose serving host has gone is reset by its own next packet, in the
// way of RFC 9293, section 3.10.7.1.
func TestDeadHostsConnectionsAreReset(t *testing.T) {
	type answer struct {
		verdict  dpr.Verdict
		seq, ack uint32
		flags    dprtest.Flags
	}
	const theirs = 0xfffffff0 // what the client has acknowledged
	payload := make([]byte, 10)
	tests := map[string]struct {
		in   dprtest.Options
		want answer
	}{
		"an ACK":                     {dprtest.Options{Flags: ack, Seq: 1001, Ack: theirs}, answer{dpr.Reply, theirs, 0, rst}},
		"data":                       {dprtest.Options{Flags: ack | dprtest.PSH, Seq: 1001, Ack: theirs, Payload: payload}, answer{dpr.Reply, theirs, 0, rst}},
		"a FIN":                      {dprtest.Options{Flags: finAck, Seq: 1001, Ack: theirs}, answer{dpr.Reply, theirs, 0, rst}},
		"the second half of opening": {dprtest.Options{Flags: syn | ack, Seq: 1000, Ack: theirs}, answer{dpr.Reply, theirs, 0, rst}},
		"without ACK":                {dprtest.Options{Flags: dprtest.PSH, Seq: 1001, Payload: payload}, answer{dpr.Reply, 0, 1011, rstAck}},
		"a FIN without ACK":          {dprtest.Options{Flags: dprtest.FIN, Seq: 0xffffffff}, answer{dpr.Reply, 0, 0, rstAck}},
		"a reset":                    {dprtest.Options{Flags: rst, Seq: 1001}, answer{verdict: dpr.Local}},
		"a reset with ACK":           {dprtest.Options{Flags: rstAck, Seq: 1001, Ack: theirs}, answer{verdict: dpr.Local}},
	}
	for name, tt := range tests {
		for _, ends := range [][2]netip.AddrPort{{client, vip}, {client6, vip6}} {
			t.Run(name+" from "+ends[0].Addr().String(), func(t *testing.T) {
				b := newBench(t, dpr.Config{})
				b.from(tcpFrom(ends[0], syn, 1000, 0))
				b.from(tcpFrom(ends[0], ack, 1001, 0))
				require.NoError(t, b.SetPeers([]dpr.Peer{{ID: "h3"}}))
				p := b.from(dprtest.TCP(ends[0], ends[1], tt.in))
				require.Equal(t, tt.want.verdict, p.Verdict)
				require.Zero(t, b.flows(), "nothing is remembered")
				require.Equal(t, uint64(1), b.Stats().PeerGone)
				if p.Verdict != dpr.Reply {
					require.Zero(t, b.Stats().Resets)
					return
				}
				require.NoError(t, dprtest.Check(p.Bytes()))
				segment := p.Bytes()[p.Len-20:]
				require.Equal(t, tt.want, answer{
					p.Verdict, binary.BigEndian.Uint32(segment[4:]), binary.BigEndian.Uint32(segment[8:]), dprtest.Flags(segment[13]),
				})
				src, dst := addresses(p.Bytes())
				require.Equal(t, []netip.AddrPort{ends[1], ends[0]}, []netip.AddrPort{
					netip.AddrPortFrom(src, binary.BigEndian.Uint16(segment)), netip.AddrPortFrom(dst, binary.BigEndian.Uint16(segment[2:])),
				})
				require.Equal(t, uint64(1), b.Stats().Resets)
			})
		}
	}
}

// A super-frame of a dead host's connection becomes one ordinary reset.
func TestDeadHostsSuperFrameIsReset(t *testing.T) {
	b := newBench(t, dpr.Config{})
	b.from(tcp(syn, 1000, 0))
	b.from(tcp(ack, 1001, 0))
	require.NoError(t, b.SetPeers(nil))
	pkts := []dpr.Packet{packet(tcp(ack, 1001, 40_000))}
	pkts[0].GSO = dpr.GSO{Type: dpr.GSOTCP4, NeedsCsum: true, CsumStart: 20, CsumOffset: 16, HdrLen: 40, Size: 1400}
	b.Process(pkts, b.now)
	require.Equal(t, dpr.Reply, pkts[0].Verdict)
	require.Equal(t, 40, pkts[0].Len)
	require.Equal(t, dpr.GSO{}, pkts[0].GSO)
	require.NoError(t, dprtest.Check(pkts[0].Bytes()))
}

// Resets are limited like errors; beyond that the local stack answers, and a client
// that asks again is answered by it, too.
func TestDeadHostsResetsAreLimited(t *testing.T) {
	b := newBench(t, dpr.Config{ErrorsPerSecond: 10})
	from := func(n int) netip.AddrPort { return netip.AddrPortFrom(client.Addr(), uint16(10_000+n)) }
	const flows = 200
	for n := range flows {
		b.from(tcpFrom(from(n), syn, 1000, 0))
	}
	require.NoError(t, b.SetPeers(nil))
	verdicts := map[dpr.Verdict]int{}
	for n := range flows {
		verdicts[b.from(tcpFrom(from(n), ack, 1001, 0)).Verdict]++
	}
	require.Equal(t, map[dpr.Verdict]int{dpr.Reply: 65, dpr.Local: flows - 65}, verdicts)
	require.Equal(t, uint64(65), b.Stats().Resets)
	require.Equal(t, dpr.Local, b.from(tcpFrom(from(0), ack, 1001, 0)).Verdict)
}
