package main

import (
	"math/rand"
	"net/netip"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/header/parse"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/carom-dpr/carom/dpr/dprtest"
)

// gvisorNAT is gVisor's connection tracking with one rule that translates the
// destination: what its stack does to a packet in the hooks prerouting and input. The
// rest of the stack is left out, and so is the checksum of the payload.
type gvisorNAT struct {
	tables   *stack.IPTables
	packet   []byte
	template []byte
}

func newGvisor(flows int) *gvisorNAT {
	const ipv6 = false
	// The seed decides about source ports only.
	g := &gvisorNAT{tables: stack.DefaultTables(tcpip.NewStdClock(), rand.New(rand.NewSource(1)))}
	nat := g.tables.GetTable(stack.NATID, ipv6)
	filter := stack.EmptyFilter4()
	filter.Protocol, filter.CheckProtocol = header.TCPProtocolNumber, true
	nat.Rules = append([]stack.Rule{{Filter: filter, Target: &stack.DNATTarget{
		Addr:            tcpip.AddrFrom4(netip.MustParseAddr("203.0.113.2").As4()),
		NetworkProtocol: header.IPv4ProtocolNumber,
		ChangeAddress:   true,
	}}}, nat.Rules...)
	for _, hooks := range []*[stack.NumHooks]int{&nat.BuiltinChains, &nat.Underflows} {
		for i := range hooks {
			if hooks[i] != stack.HookUnset {
				hooks[i]++
			}
		}
	}
	nat.BuiltinChains[stack.Prerouting] = 0
	g.tables.ReplaceTable(stack.NATID, nat, ipv6)
	for _, flags := range []dprtest.Flags{dprtest.SYN, dprtest.ACK} {
		g.template = packetTemplate(flags, 24)
		g.packet = make([]byte, len(g.template))
		for i := range flows {
			g.handle(uint32(i))
		}
	}
	return g
}

func (g *gvisorNAT) run(flows *[32]uint32) {
	for _, f := range flows {
		g.handle(f)
	}
}

func (g *gvisorNAT) handle(flow uint32) {
	copy(g.packet, g.template)
	client(g.packet, flow)
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(g.packet)})
	defer pkt.DecRef()
	pkt.RXChecksumValidated = true
	if !parse.IPv4(pkt) || !parse.TCP(pkt) {
		panic("gVisor does not parse the packet") // it is our own
	}
	pkt.NetworkProtocolNumber = header.IPv4ProtocolNumber
	if !g.tables.CheckPrerouting(pkt, nil, "in") || !g.tables.CheckInput(pkt, "in") {
		panic("gVisor dropped the packet")
	}
	if header.IPv4(pkt.NetworkHeader().Slice()).DestinationAddress().As4() != [4]byte{203, 0, 113, 2} {
		panic("gVisor did not translate the packet")
	}
}
