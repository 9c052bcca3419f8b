package dpr_test

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
)

// FuzzFragments sends the fragments of a few datagrams in whatever order the input
// says, from the network and from a peer. Each must go where the first one of its
// datagram went, none twice, and none may be lost without being counted.
func FuzzFragments(f *testing.F) {
	f.Add([]byte{0, 1, 2})                   // in order
	f.Add([]byte{1, 2, 0})                   // the first one last
	f.Add([]byte{4, 8, 1, 5, 9, 0, 2, 6})    // several at once
	f.Add([]byte{1, 0x80, 0, 2})             // waited too long
	f.Add([]byte{1, 0x40, 0, 2})             // first and others from different sides
	f.Add(bytes.Repeat([]byte{1, 5, 9}, 40)) // more than may wait
	f.Add([]byte{12, 13, 0xe3, 14, 0x41, 30, 29, 28})
	datagrams := fragmented()
	f.Fuzz(func(t *testing.T, steps []byte) {
		steps = steps[:min(len(steps), 150)] // enough to fill all places
		r := fragmentRun{bench: newBench(t, dpr.Config{MaxFlows: 1000}), datagrams: datagrams, went: map[int]way{}, room: dpr.NewPackets(8, 1500)}
		for _, step := range steps {
			r.step(step)
		}
		r.pass(2 * time.Second)
		require.Equal(t, r.refused+r.held-r.released, int(r.Stats().Drops[dpr.FragmentLost]))
	})
}

// fragmented returns the fragments of datagrams that differ in client, family,
// service and identification.
func fragmented() (all [][][]byte) {
	for _, from := range []netip.AddrPort{client, netip.MustParseAddrPort("192.0.2.11:40000"), client6} {
		for id := range uint16(2) {
			for _, port := range []uint16{53, 22} { // a service, none
				to := netip.AddrPortFrom(vip.Addr(), port)
				if from.Addr().Is6() {
					to = netip.AddrPortFrom(vip6.Addr(), port)
				}
				data := bytes.Repeat([]byte{byte(port), byte(id)}, 1500)
				o := dprtest.Options{ID: id<<8 | port, Payload: data}
				all = append(all, dprtest.Fragment(dprtest.UDP(from, to, o), 1300))
			}
		}
	}
	return all
}

// A fragmentRun is the slow oracle: it remembers where each first fragment went.
type fragmentRun struct {
	*bench
	datagrams [][][]byte
	went      map[int]way // by datagram
	waiting   []waiter
	room      []dpr.Packet
	uplink    bool
	// What became of fragments that had to wait, and how many might not.
	held, released, refused int
}

// A way is where the first fragment of a datagram went, and when the last one did.
type way struct {
	verdict dpr.Verdict
	peer    dpr.PeerID
	last    time.Time
}

// A waiter is a fragment that is held.
type waiter struct {
	datagram int
	data     []byte
	uplink   bool
	since    time.Time
}

// step does what one byte says: 0x80 lets time pass, 0x40 changes sides and the
// policy's choice, all else is a fragment.
func (r *fragmentRun) step(step byte) {
	switch {
	case step&0x80 != 0:
		r.pass(time.Duration(step&0x7f) * 20 * time.Millisecond)
		r.waiting = slices.DeleteFunc(r.waiting, func(w waiter) bool { return r.now.Sub(w.since) >= time.Second })
	case step&0x40 != 0:
		r.uplink = !r.uplink
		r.choose([]string{"h2", "h3", "self", "h2"}[step&3])
	default:
		r.fragment(int(step/4)%len(r.datagrams), int(step%4)%3)
	}
}

func (r *fragmentRun) fragment(datagram, index int) {
	in, refusals := r.datagrams[datagram][index], r.Stats().Drops[dpr.NotService]
	p := r.send(in)
	w, known := r.went[datagram]
	switch {
	case p.Verdict == dpr.Hold:
		require.NotZero(r.t, index)
		require.False(r.t, known && r.now.Sub(w.last) < 14*time.Second, "the way is known")
		r.held++
		r.waiting = append(r.waiting, waiter{datagram, in, r.uplink, r.now})
	case p.Verdict == dpr.Drop && r.Stats().Drops[dpr.NotService] > refusals:
		require.True(r.t, r.uplink)
	case p.Verdict == dpr.Drop:
		r.refused++
	case index == 0:
		r.went[datagram] = way{p.Verdict, p.Peer, r.now}
		require.True(r.t, sameButTTL(in, p.Bytes()))
	default:
		require.True(r.t, known)
		r.requireWay(&waiter{datagram, in, r.uplink, r.now}, &p)
	}
	for n := r.Extra(r.room, r.now); n > 0; n = r.Extra(r.room, r.now) {
		for i := range r.room[:n] {
			r.free(&r.room[i])
		}
	}
	if index == 0 && p.Verdict != dpr.Drop {
		for _, w := range r.waiting {
			require.NotEqual(r.t, datagram, w.datagram, "it waits for what is here")
		}
	}
}

func (r *fragmentRun) send(in []byte) dpr.Packet {
	if r.uplink {
		return r.fromPeer("h3", in)
	}
	return r.from(in)
}

// free expects a packet among those that wait.
func (r *fragmentRun) free(p *dpr.Packet) {
	for i := range r.waiting {
		if w := r.waiting[i]; sameButTTL(w.data, p.Bytes()) && w.uplink == (p.Peer == r.PeerID("h3") && p.Verdict != dpr.Forward) {
			r.requireWay(&w, p)
			r.waiting = slices.Delete(r.waiting, i, i+1)
			r.released++
			return
		}
	}
	require.Fail(r.t, "nobody waited", dprtest.Describe(p.Bytes()))
}

// requireWay expects a fragment to go where the first one of its datagram went; one
// that came from a peer goes no further than this host.
func (r *fragmentRun) requireWay(w *waiter, p *dpr.Packet) {
	first := r.went[w.datagram]
	first.last = r.now
	r.went[w.datagram] = first
	want := first.verdict
	switch {
	case w.uplink && want == dpr.Pass:
		want = dpr.Drop
	case w.uplink:
		want = dpr.Local
	}
	require.Equal(r.t, want, p.Verdict)
	if want == dpr.Forward {
		require.Equal(r.t, first.peer, p.Peer)
	}
	require.True(r.t, sameButTTL(w.data, p.Bytes()))
}

// sameButTTL compares all bytes but those that lowering the TTL changes.
func sameButTTL(a, b []byte) bool {
	if len(a) != len(b) || a[0] != b[0] {
		return false
	}
	if a[0]>>4 == 6 {
		return bytes.Equal(a[:7], b[:7]) && bytes.Equal(a[8:], b[8:])
	}
	return bytes.Equal(a[:8], b[:8]) && a[9] == b[9] && bytes.Equal(a[12:], b[12:])
}

// FuzzQuotes quotes anything in an ICMP error. Only what shows the addresses and
// ports of a redirected flow may be redirected, and no error makes another.
func FuzzQuotes(f *testing.F) {
	answer := dprtest.TCP(vip, client, dprtest.Options{Flags: ack, Payload: make([]byte, 100)})
	answer6 := dprtest.TCP(vip6, client6, dprtest.Options{Flags: ack, Payload: make([]byte, 100)})
	f.Add(answer)
	f.Add(answer[:28])
	f.Add(answer[:24])
	f.Add(answer[:20])
	f.Add(answer6)
	f.Add(answer6[:48])
	f.Add(dprtest.TCP(vip, client, dprtest.Options{Flags: ack, IPOptions: []byte{7, 7, 4, 0, 0, 0, 0}}))
	f.Add(dprtest.TCP(vip6, client6, dprtest.Options{Flags: ack, Extensions: []dprtest.Extension{dprtest.HopByHop(), dprtest.AtomicFragment(1)}}))
	f.Add(dprtest.Fragment(dprtest.UDP(dns, client, dprtest.Options{Payload: make([]byte, 3000)}), 1300)[1])
	f.Add(dprtest.TooBig(router, answer, 1400, dprtest.ShortQuote))
	f.Fuzz(func(t *testing.T, quote []byte) {
		quote = quote[:min(len(quote), 1000)]
		b := newBench(t, dpr.Config{MaxFlows: 1000})
		b.from(tcp(syn, 1, 0))
		b.from(tcpFrom(client6, syn, 1, 0))
		for _, data := range [][]byte{
			dprtest.ICMP(router, vip.Addr(), 3, 4, 1400, dprtest.Options{Payload: quote}),
			dprtest.ICMP(router6, vip6.Addr(), 2, 0, 1400, dprtest.Options{Payload: quote}),
		} {
			p := b.from(data)
			require.Contains(t, []dpr.Verdict{dpr.Pass, dpr.Local, dpr.Forward}, p.Verdict)
			if p.Verdict == dpr.Forward {
				require.True(t, sameButTTL(data, p.Bytes()))
				require.True(t, quotesFlow(quote, vip, client) || quotesFlow(quote, vip6, client6))
			}
			require.NotEqual(t, dpr.Forward, b.fromPeer("h2", data).Verdict)
		}
		require.Equal(t, 2, b.flows())
		require.Zero(t, b.Stats().Errors)
	})
}

// quotesFlow looks for the addresses where they must be, and for the ports anywhere
// behind them.
func quotesFlow(quote []byte, src, dst netip.AddrPort) bool {
	at := 12
	if src.Addr().Is6() {
		at = 8
	}
	addrs := append(src.Addr().AsSlice(), dst.Addr().AsSlice()...)
	ports := []byte{byte(src.Port() >> 8), byte(src.Port()), byte(dst.Port() >> 8), byte(dst.Port())}
	return bytes.HasPrefix(quote[at:], addrs) && bytes.Contains(quote[at+len(addrs):], ports)
}
