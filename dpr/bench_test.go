package dpr_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/lb"
)

// benchEngine is an engine that redirects every flow.
func benchEngine(b *testing.B, maxFlows int, peer dpr.Peer) *dpr.Engine {
	addrs := []netip.Addr{vip.Addr(), vip6.Addr()}
	e, err := dpr.New(dpr.Config{
		MaxFlows: maxFlows,
		Services: []dpr.Service{
			{Name: "web", Proto: dpr.TCP, Port: 80, Addrs: addrs},
			{Name: "dns", Proto: dpr.UDP, Port: 80, Addrs: addrs},
		},
		NAT: dpr.NAT{Sources: []netip.Addr{entry, entry6}, First: 1},
	})
	if err != nil {
		b.Fatal(err)
	}
	if err := e.SetPeers([]dpr.Peer{peer}); err != nil {
		b.Fatal(err)
	}
	for _, service := range []string{"web", "dns"} {
		err = e.SetSnapshot(service, sendTo("h2"), &lb.Snapshot{
			Hosts: []lb.Host{{ID: "h1", Weight: 1, Flags: lb.Local}, {ID: "h2", Weight: 1}},
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	return e
}

// A benchProto makes packets of flows that are told apart by the last 24 bits of the
// client's address and by its port.
type benchProto struct {
	name         string
	opens        func(size int) []byte
	goesOn       func(size int) []byte
	client, port int // where the last 4 bytes of the address are, and the port
}

var (
	benchClient6 = netip.MustParseAddrPort("[2001:db8::1]:40000")
	benchProtos  = []benchProto{
		{"tcp4", benchTCP(client, vip, dprtest.SYN), benchTCP(client, vip, dprtest.ACK), 12, 20},
		{"tcp6", benchTCP(benchClient6, vip6, dprtest.SYN), benchTCP(benchClient6, vip6, dprtest.ACK), 20, 40},
		{"udp4", benchUDP, benchUDP, 12, 20},
	}
)

func benchTCP(from, to netip.AddrPort, flags dprtest.Flags) func(size int) []byte {
	headers := len(dprtest.TCP(from, to, dprtest.Options{}))
	return func(size int) []byte {
		return dprtest.TCP(from, to, dprtest.Options{Flags: flags, Seq: 1, Payload: make([]byte, size-headers)})
	}
}

func benchUDP(size int) []byte {
	return dprtest.UDP(client, vip, dprtest.Options{Payload: make([]byte, size-28)})
}

// A feeder puts the headers of a template with a flow's number before an engine. It
// leaves the rest of the packets alone: a device would have put it there.
type feeder struct {
	engine   *dpr.Engine
	pkts     []dpr.Packet
	proto    *benchProto
	template []byte
	now      time.Time
}

func newFeeder(e *dpr.Engine, proto *benchProto, template []byte, batch int) *feeder {
	f := &feeder{engine: e, pkts: dpr.NewPackets(batch, 2048), proto: proto, template: template, now: time.Now()}
	for i := range f.pkts {
		copy(f.pkts[i].Buf[dpr.Headroom:], template)
	}
	return f
}

func (f *feeder) run(n int, flow func(i int) uint32) {
	headers := f.template[:min(len(f.template), 64)]
	for i := 0; i < n; i += len(f.pkts) {
		pkts := f.pkts[:min(len(f.pkts), n-i)]
		for k := range pkts {
			p := &pkts[k]
			p.Off, p.Peer, p.Len = dpr.Headroom, 0, len(f.template)
			copy(p.Buf[p.Off:], headers)
			n := flow(i + k)
			binary.BigEndian.PutUint32(p.Buf[p.Off+f.proto.client:], 10<<24|n&0xffffff)
			binary.BigEndian.PutUint16(p.Buf[p.Off+f.proto.port:], uint16(40_000+n>>24))
		}
		f.engine.Process(pkts, f.now)
	}
}

// A benchKind is what becomes of a packet in an engine that has many established
// flows.
type benchKind struct {
	name string
	// room is how many flows the engine has room for.
	room func(flows int) int
	// fresh packets open a flow each, others are of known flows.
	fresh bool
	// dstPort is the packets' destination port.
	dstPort uint16
	// peer takes the flows, h2 or a plain server.
	peer dpr.Peer
}

var (
	benchPeer  = dpr.Peer{ID: "h2"}
	benchPlain = dpr.Peer{ID: "h2", Servers: map[string][]netip.AddrPort{"web": {plain, plain6}, "dns": {plain}}}
)

var benchKinds = []benchKind{
	{"hit", func(flows int) int { return flows + flows/10 }, false, 80, benchPeer},
	// To a plain server, which has ports for no more than 65,535.
	{"nat", func(flows int) int { return flows + flows/10 }, false, 80, benchPlain},
	// When the table is full a flow takes the place of the oldest that never went on.
	{"miss", func(flows int) int { return 2 * flows }, true, 80, benchPeer},
	// For no service.
	{"pass", func(flows int) int { return flows + flows/10 }, false, 81, benchPeer},
	// In a table that is full of established flows.
	{"full", func(flows int) int { return flows }, true, 80, benchPeer},
}

func (k *benchKind) packet(p *benchProto, size int) []byte {
	pkt := p.goesOn(size)
	if k.fresh {
		pkt = p.opens(size)
	}
	binary.BigEndian.PutUint16(pkt[p.port+2:], k.dstPort)
	return pkt
}

// A benchTable is an engine with so many established flows.
type benchTable struct {
	*dpr.Engine
	flows, next uint32 // next is that of flows that it has not seen
}

// flow returns the flow of the i-th packet.
func (t *benchTable) flow(k *benchKind) func(i int) uint32 {
	if k.fresh {
		return func(int) uint32 {
			t.next++
			return t.next
		}
	}
	return func(i int) uint32 { return uint32(i*7919) % t.flows }
}

// BenchmarkProcess reports the time for a packet by what becomes of it, with what it
// takes to make its headers.
func BenchmarkProcess(b *testing.B) {
	for _, kind := range benchKinds {
		for _, proto := range benchProtos {
			b.Run(kind.name+"/"+proto.name, func(b *testing.B) { benchFlows(b, &kind, &proto) })
		}
	}
}

// benchFlows runs the benchmarks of one kind and protocol, which share engines: they
// take longer to fill than to measure.
func benchFlows(b *testing.B, kind *benchKind, proto *benchProto) {
	tables := map[int]*benchTable{}
	defer func() {
		for _, t := range tables {
			t.Close()
		}
	}()
	for _, size := range []int{64, 1400} {
		for _, flows := range []int{1000, 100_000, 1_000_000, 10_000_000} {
			for _, batch := range []int{1, 32, 64} {
				usual := kind.name == "hit" && proto.name == "tcp4" && size == 64 && batch == 32
				if kind.name == "nat" && flows > 1000 {
					continue
				}
				if flows == 10_000_000 && (!usual || testing.Short()) || flows == 1_000_000 && !usual && testing.Short() {
					continue
				}
				b.Run(fmt.Sprintf("%dB/flows=%s/batch=%d", size, inThousands(flows), batch), func(b *testing.B) {
					if tables[flows] == nil {
						tables[flows] = filledTable(b, kind, proto, flows)
					}
					f := newFeeder(tables[flows].Engine, proto, kind.packet(proto, size), batch)
					b.SetBytes(int64(size))
					b.ReportAllocs()
					b.ResetTimer()
					f.run(b.N, tables[flows].flow(kind))
				})
			}
		}
	}
}

func filledTable(b *testing.B, kind *benchKind, proto *benchProto, flows int) *benchTable {
	t := &benchTable{Engine: benchEngine(b, kind.room(flows), kind.peer), flows: uint32(flows), next: uint32(flows)}
	for _, pkt := range [][]byte{proto.opens(64), proto.goesOn(64)} {
		newFeeder(t.Engine, proto, pkt, 64).run(flows, func(i int) uint32 { return uint32(i) })
	}
	return t
}

// inThousands writes a number as the names of benchmarks do.
func inThousands(n int) string {
	if n >= 1_000_000 {
		return fmt.Sprintf("%dM", n/1_000_000)
	}
	return fmt.Sprintf("%dk", n/1000)
}
