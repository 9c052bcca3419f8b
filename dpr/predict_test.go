package dpr_test

import (
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/lb"
)

// Packets with IP options are never predicted, and are otherwise like those without: an
// engine that gets only such ones decides as one that predicts.
func TestPredictionChangesNothing(t *testing.T) {
	const options = 4 // bytes
	rapid.Check(t, func(rt *rapid.T) {
		cfg := dpr.Config{
			MaxFlows: 100, Confirm: rapid.Bool().Draw(rt, "confirm"),
			ErrorsPerSecond: 1_000_000_000, TrackLocal: rapid.Bool().Draw(rt, "track"),
		}
		plain, other := newBench(t, cfg), newBench(t, cfg)
		plain.now = other.now // after both began
		peers := func(names []string) {
			for _, b := range []*bench{plain, other} {
				var list []dpr.Peer
				for _, name := range names {
					mtu := 1000
					if b == other {
						mtu += options
					}
					list = append(list, dpr.Peer{ID: name, MTU: mtu})
				}
				require.NoError(t, b.SetPeers(list))
			}
		}
		peers([]string{"h2", "h3"})
		batch := func(rt *rapid.T) {
			host := rapid.SampledFrom([]string{"h2", "h3", "self", ""}).Draw(rt, "host")
			plain.choose(host)
			other.choose(host)
			var a, b []dpr.Packet
			for range rapid.IntRange(1, 20).Draw(rt, "packets") {
				one, two := drawPredictable(rt)
				a, b = append(a, one), append(b, two)
			}
			plain.Process(a, plain.now)
			other.Process(b, other.now)
			for i := range a {
				require.Equal(rt, b[i].Verdict, a[i].Verdict, "packet %d", i)
				if a[i].Verdict == dpr.Forward {
					require.Equal(rt, other.name(b[i].Peer), plain.name(a[i].Peer))
					require.Equal(rt, b[i].Bytes()[8], a[i].Bytes()[8], "TTL")
					require.Equal(rt, b[i].Len, a[i].Len+options)
					require.NoError(rt, dprtest.Check(a[i].Bytes()))
				}
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"batch": batch, "botch": batch,
			"wait": func(rt *rapid.T) {
				d := rapid.SampledFrom([]time.Duration{time.Millisecond, time.Second, time.Minute, time.Hour}).Draw(rt, "wait")
				plain.pass(d)
				other.pass(d)
			},
			"peers": func(rt *rapid.T) {
				peers(rapid.SampledFrom([][]string{{"h2", "h3"}, {"h2"}, {"h3"}, nil}).Draw(rt, "peers"))
			},
			"": func(rt *rapid.T) {
				require.Equal(rt, other.table(), plain.table())
				require.ElementsMatch(rt, clients(other.Questions(nil)), clients(plain.Questions(nil)))
				require.Equal(rt, other.Stats(), plain.Stats())
			},
		})
	})
}

// drawPredictable returns a packet that may be predicted, and the same with IP options.
func drawPredictable(rt *rapid.T) (plain, other dpr.Packet) {
	from := netip.AddrPortFrom(client.Addr(), uint16(rapid.IntRange(1, 4).Draw(rt, "port")))
	flags := rapid.SampledFrom([]dprtest.Flags{syn, ack, ack, ack, ack, ack | dprtest.PSH, ack | dprtest.FIN, rst, ack | rst, syn | ack, 0}).Draw(rt, "flags")
	o := dprtest.Options{
		Flags: flags,
		Seq: rapid.SampledFrom([]uint32{1, 2, 1000, 1<<32 - 1}).Draw(rt, "seq") +
			rapid.SampledFrom([]uint32{0, 64 << 10, 1 << 17, 16 << 20, 1 << 25}).Draw(rt, "ahead"),
		Payload:    make([]byte, rapid.SampledFrom([]int{0, 1, 100, 960, 961, 1400}).Draw(rt, "payload")),
		TCPOptions: make([]byte, rapid.SampledFrom([]int{0, 12}).Draw(rt, "options")),
		TTL:        rapid.SampledFrom([]uint8{1, 2, 64}).Draw(rt, "TTL"),
		DF:         true,
	}
	to := rapid.SampledFrom([]netip.AddrPort{vip, vip, vip, netip.AddrPortFrom(vip.Addr(), 81), netip.MustParseAddrPort("198.51.100.2:80")}).Draw(rt, "to")
	padding := make([]byte, rapid.IntRange(0, 3).Draw(rt, "padding"))
	size := rapid.SampledFrom([]uint16{0, 0, 500, 960, 1200}).Draw(rt, "GSO")
	make := func() dpr.Packet {
		p := packet(append(dprtest.TCP(from, to, o), padding...))
		if size > 0 {
			p.GSO = dpr.GSO{Type: dpr.GSOTCP4, Size: size}
		}
		return p
	}
	plain = make()
	o.IPOptions = []byte{1, 1, 1, 1} // no operation
	return plain, make()
}

// Connections that come, go on, end and are forgotten on several goroutines at once, more
// than the table has room for: those that go on are read without a lock, and each goes
// where it is bound.
func TestPredictionFromSeveralGoroutines(t *testing.T) {
	b := newBench(t, dpr.Config{MaxFlows: 20, Services: []dpr.Service{
		{Name: "other", Proto: dpr.TCP, Port: 81, Addrs: []netip.Addr{vip.Addr()}},
	}})
	for service, peer := range map[string]string{"web": "h2", "other": "h3"} {
		require.NoError(t, b.SetSnapshot(service, sendTo(peer), &lb.Snapshot{
			Hosts: []lb.Host{{ID: "h1", Weight: 1, Flags: lb.Local}, {ID: peer, Weight: 1}},
		}))
	}
	h2, h3 := b.PeerID("h2"), b.PeerID("h3")
	const ports, rounds = 15, 3000
	var wrong, forwarded, failed atomic.Int64
	var working sync.WaitGroup
	for worker := range 4 {
		working.Go(func() {
			pkts, random := dpr.NewPackets(8, 2048), rand.New(rand.NewPCG(1, uint64(worker)))
			for i := range rounds {
				now := b.now.Add(time.Duration(i) * 20 * time.Millisecond)
				for k := range pkts {
					flags := []dprtest.Flags{ack, ack, ack, ack, syn, ack | dprtest.FIN, rst}[random.IntN(7)]
					o := dprtest.Options{Flags: flags, Seq: 1 + uint32(random.IntN(2)), Payload: make([]byte, random.IntN(9))}
					from := netip.AddrPortFrom(client.Addr(), uint16(random.IntN(ports)))
					pkts[k] = packet(dprtest.TCP(from, netip.AddrPortFrom(vip.Addr(), uint16(80+random.IntN(2))), o))
				}
				b.Process(pkts, now)
				for k := range pkts {
					p := &pkts[k]
					if p.Verdict != dpr.Forward {
						continue
					}
					forwarded.Add(1)
					if want := map[byte]dpr.PeerID{80: h2, 81: h3}[p.Bytes()[23]]; p.Peer != want {
						wrong.Add(1)
					}
				}
				if i%100 == 0 {
					b.Tick(now)
				}
				if worker == 0 && i%50 == 0 {
					peers := []dpr.Peer{{ID: "h2"}, {ID: "h3"}, {ID: "h4"}}
					failed.Add(count(b.SetPeers(peers)) + count(b.SetPeers(peers[:2])))
				}
			}
		})
	}
	working.Wait()
	require.Greater(t, forwarded.Load(), int64(rounds))
	require.Zero(t, wrong.Load(), "of %d", forwarded.Load())
	require.Zero(t, failed.Load(), "SetPeers")
	b.pass(200 * time.Hour)
	require.Zero(t, b.flows())
}

func count(err error) int64 {
	if err != nil {
		return 1
	}
	return 0
}

// clients returns those of flows that are asked about.
func clients(asked []dpr.Question) (all []netip.AddrPort) {
	for _, q := range asked {
		all = append(all, q.Client)
	}
	return all
}

// name returns the name of a peer.
func (b *bench) name(id dpr.PeerID) string {
	for _, name := range []string{"h2", "h3"} {
		if b.PeerID(name) == id {
			return name
		}
	}
	return ""
}

// table returns the flows by client.
func (b *bench) table() map[netip.AddrPort]dpr.Flow {
	all := map[netip.AddrPort]dpr.Flow{}
	for f := range b.Flows(b.now) {
		all[f.Client] = f
	}
	return all
}
