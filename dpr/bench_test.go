package dpr_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/lb"
)

// benchEngine is an engine that redirects every flow.
func benchEngine(b *testing.B, flows int) *dpr.Engine {
	e, err := dpr.New(dpr.Config{
		MaxFlows: flows,
		Services: []dpr.Service{{Name: "web", Proto: dpr.TCP, Port: 80, Addrs: []netip.Addr{vip.Addr(), vip6.Addr()}}},
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { e.Close() })
	if err := e.SetPeers([]dpr.Peer{{ID: "h2"}}); err != nil {
		b.Fatal(err)
	}
	err = e.SetSnapshot("web", sendTo("h2"), &lb.Snapshot{
		Hosts: []lb.Host{{ID: "h1", Weight: 1, Flags: lb.Local}, {ID: "h2", Weight: 1}},
	})
	if err != nil {
		b.Fatal(err)
	}
	return e
}

// feed processes packets of flow after flow in batches, putting the flow's number
// into the client's address and the flags into the header before each.
func feed(b *testing.B, e *dpr.Engine, flow func(i int) uint32, flags dprtest.Flags, n int) {
	const batch = 32
	template := dprtest.TCP(client, vip, dprtest.Options{Flags: flags, Seq: 1, Payload: make([]byte, 24)})
	pkts := dpr.NewPackets(batch, 2048)
	now := time.Now()
	for i := 0; i < n; i += batch {
		for k := range pkts {
			p := &pkts[k]
			p.Off, p.Peer = dpr.Headroom, 0
			p.Len = copy(p.Buf[p.Off:], template)
			f := flow(i + k)
			p.Buf[p.Off+12], p.Buf[p.Off+13], p.Buf[p.Off+14], p.Buf[p.Off+15] = 10, byte(f>>16), byte(f>>8), byte(f)
		}
		e.Process(pkts, now)
	}
}

// BenchmarkProcess reports the time for one packet of 64 bytes of TCP over IPv4 in
// batches of 32, with what it takes to make the packet: of a known flow, out of
// so many, and of a new one.
func BenchmarkProcess(b *testing.B) {
	for _, flows := range []int{1000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("hit/tcp4/64B/flows=%d/batch=32", flows), func(b *testing.B) {
			e := benchEngine(b, flows+flows/10)
			feed(b, e, func(i int) uint32 { return uint32(i) }, dprtest.SYN, flows)
			feed(b, e, func(i int) uint32 { return uint32(i) }, dprtest.ACK, flows)
			b.ReportAllocs()
			b.ResetTimer()
			feed(b, e, func(i int) uint32 { return uint32(i*7919) % uint32(flows) }, dprtest.ACK, b.N)
		})
	}
	b.Run("miss/tcp4/64B/batch=32", func(b *testing.B) {
		e := benchEngine(b, 1<<20) // full after a million: then each takes the oldest's place
		b.ReportAllocs()
		b.ResetTimer()
		feed(b, e, func(i int) uint32 { return uint32(i) }, dprtest.SYN, b.N)
	})
}
