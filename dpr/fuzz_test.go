package dpr_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
)

// FuzzProcess feeds the engine with foreign bytes, from the network and from a
// peer. It must not panic, must not touch what lies beyond the packet, and what it
// lets through must lie within the buffer; replies it makes must be valid packets.
func FuzzProcess(f *testing.F) {
	for _, seed := range [][]byte{
		tcp(syn, 1, 0), tcp(ack, 2, 100), tcpFrom(client6, syn, 1, 0), tcp(ack, 2, 1460),
		datagram(client, 20, dprtest.Options{}), datagram(client6, 20, dprtest.Options{}),
		dprtest.Fragment(datagram(client, 3000, dprtest.Options{}), 1300)[1],
		dprtest.Fragment(datagram(client6, 3000, dprtest.Options{}), 1300)[1],
		dprtest.TooBig(router, tcpBack(), 1400, 8), tcpBack(),
		dprtest.TCP(client6, vip6, dprtest.Options{Flags: syn, Extensions: []dprtest.Extension{dprtest.HopByHop(), dprtest.DestOpts(8)}}),
		dprtest.TCP(client, vip, dprtest.Options{Flags: syn, IPOptions: []byte{7, 7, 4, 0, 0, 0, 0}}),
		// Of a flow that a plain server has, and of its fragments, and errors about it.
		tcpFrom(fuzzNAT.client, ack, 2, 100),
		dprtest.TCP(plain, fuzzLeaves, dprtest.Options{Flags: syn | ack, Ack: 2, MSS: 1460}),
		dprtest.TooBig(router, dprtest.TCP(fuzzLeaves, plain, dprtest.Options{Flags: ack, DF: true}), 1300, 8),
		dprtest.TooBig(router, dprtest.TCP(vip, fuzzNAT.client, dprtest.Options{Flags: ack, DF: true}), 1300, 100),
		dprtest.Fragment(dprtest.TCP(plain, fuzzLeaves, dprtest.Options{Flags: ack, Payload: make([]byte, 2000)}), 1300)[1],
	} {
		f.Add(seed, false, uint16(0))
		f.Add(seed, true, uint16(1400))
	}
	f.Fuzz(func(t *testing.T, data []byte, uplink bool, gso uint16) {
		if len(data) > 4096 {
			return
		}
		b := newNAT(t, dpr.Config{MaxFlows: 64, NAT: dpr.NAT{First: fuzzLeaves.Port(), Last: fuzzLeaves.Port()}})
		b.from(tcpFrom(fuzzNAT.client, syn, 1, 0))
		b.choose("h2")
		b.from(tcp(syn, 1, 0))
		p := dpr.NewPackets(1, len(data)+16)[0]
		p.Len = copy(p.Buf[p.Off:], data)
		tail := p.Buf[p.Off+p.Len:]
		for i := range tail {
			tail[i] = 0xa5
		}
		p.GSO.Size = gso
		if uplink {
			p.Peer = b.PeerID("h2")
		}
		pkts := []dpr.Packet{p}
		b.Process(pkts, b.now)
		for _, c := range tail {
			require.Equal(t, byte(0xa5), c, "bytes beyond the packet")
		}
		out := pkts[0]
		require.GreaterOrEqual(t, out.Off, 0)
		require.LessOrEqual(t, out.Off+out.Len, len(out.Buf))
		if out.Verdict == dpr.Reply {
			requireSound(t, out.Bytes())
		}
		if out.Verdict == dpr.Forward {
			require.False(t, uplink, "what a peer sent is never redirected")
		}
		if out.Verdict == dpr.Transmit && uplink {
			require.Equal(t, client.Addr().AsSlice(), out.Bytes()[16:20], "an answer goes to the client of the peer's flow")
		}
		more := dpr.NewPackets(8, 8192)
		for b.Extra(more, b.now.Add(time.Millisecond)) > 0 {
		}
	})
}

// fuzzNAT is a flow to a plain server, which leaves from the only port that there is.
var (
	fuzzNAT    = side{netip.MustParseAddrPort("192.0.2.11:40000"), vip, plain, entry}
	fuzzLeaves = netip.AddrPortFrom(entry, 61000)
)

func tcpBack() []byte {
	return dprtest.TCP(vip, netip.MustParseAddrPort("192.0.2.10:40000"), dprtest.Options{Flags: ack, DF: true})
}
