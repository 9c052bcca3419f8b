package dpr_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
)

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
	long6 := dprtest.TooBig(router6, dprtest.TCP(vip6, client6, dprtest.Options{Flags: ack, Payload: make([]byte, 1400)}), 1400, dprtest.LongQuote)
	require.Equal(t, dpr.Drop, b.from(long).Verdict)
	require.Equal(t, dpr.Drop, b.from(long6).Verdict)
	require.Equal(t, uint64(2), b.Stats().Drops[dpr.TooBig])

	dying := dprtest.TooBig(router, answer, 1400, dprtest.ShortQuote)
	dying[8] = 1
	require.Equal(t, dpr.Drop, b.from(dying).Verdict)
	require.Equal(t, uint64(1), b.Stats().Drops[dpr.HopLimit])
	require.Zero(t, b.Stats().Errors)
}
