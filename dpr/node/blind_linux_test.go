package node_test

import (
	"flag"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/dpr/node"
)

// live returns the memory that this process holds on to, in bytes, without its tables
// of fixed size and without what the race detector takes.
func live() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc + m.StackInuse)
}

var pairs = flag.Int("pairs", 100_000, "how many connections TestBlindAttacks pretends; above the 20,000 of its table")

// Who can send from any address, and see nothing, harms no connection: not with
// packets of others' connections, and not with many that he pretends.
func TestBlindAttacks(t *testing.T) {
	const (
		table = 20_000
		real  = 100
	)
	w, a, _ := redirecting(t, false, func(c *node.Config) { c.MaxFlows, c.SYNRate = table, -1 })
	conns := make([]*conn, real)
	for i := range conns {
		conns[i] = servedBy(t, w.client, a.at(port), "b")
	}
	eventually(t, "all are confirmed", func() bool { return a.flows(dpr.Established) == real })
	evil := newSender(t, w.evil)
	requireAlive := func() {
		for _, c := range conns {
			require.NoError(t, c.echo())
		}
		require.Equal(t, real, a.flows(dpr.Established), "%v", a.node.Status().Engine.Flows)
		require.GreaterOrEqual(t, a.node.Status().Engine.Open["b"][service], real)
	}
	t.Run("packets of others' connections", func(t *testing.T) {
		for _, flags := range []dprtest.Flags{
			dprtest.SYN, dprtest.ACK, dprtest.ACK | dprtest.PSH, dprtest.FIN, dprtest.FIN | dprtest.ACK, dprtest.RST, dprtest.RST | dprtest.ACK,
		} {
			for _, c := range conns {
				evil.send(t, dprtest.TCP(c.local(), a.at(port), dprtest.Options{
					Flags: flags, Seq: rand.Uint32(), Ack: rand.Uint32(), Payload: make([]byte, 10),
				}))
			}
			requireAlive()
		}
	})
	t.Run("packets that prepare each other", func(t *testing.T) {
		for _, c := range conns {
			for _, last := range []dprtest.Flags{dprtest.RST, dprtest.FIN | dprtest.ACK} {
				seq := rand.Uint32()
				for i, flags := range []dprtest.Flags{dprtest.SYN, dprtest.ACK, last, dprtest.ACK, last} {
					evil.send(t, dprtest.TCP(c.local(), a.at(port), dprtest.Options{Flags: flags, Seq: seq + uint32(i), Ack: 1}))
				}
			}
		}
		requireAlive()
	})
	t.Run("pretended connections", func(t *testing.T) {
		before := 0
		for i := range *pairs {
			from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}), uint16(1024+i>>16))
			seq := rand.Uint32()
			evil.send(t, dprtest.TCP(from, a.at(port), dprtest.Options{Flags: dprtest.SYN, Seq: seq}))
			evil.send(t, dprtest.TCP(from, a.at(port), dprtest.Options{Flags: dprtest.ACK, Seq: seq + 1, Ack: 1}))
			if i == *pairs/2 { // the table is full, and all that grows with it has grown
				before = live()
			}
			if i%(*pairs/10) == 0 {
				requireAlive()
			}
		}
		requireAlive()
		growth := live() - before
		require.Less(t, growth, 4<<20)
		t.Logf("%d pairs, %d bytes more: %d flows, %v", *pairs, growth, a.node.Status().Engine.Flows, a.node.Status().Confirm)
	})
	eventually(t, "what was pretended is known to be nothing", func() bool {
		return a.node.Status().Engine.Open["b"][service] == real
	})
}
