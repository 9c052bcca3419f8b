package netstack

import (
	"sync"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/internal/segment"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// A nic is one of the stack's two interfaces. Both queue what the stack sends for
// the wire; they differ in addresses and MTU.
type nic struct {
	host *Host
	mtu  uint32

	mu         sync.RWMutex
	dispatcher stack.NetworkDispatcher
}

var (
	_ stack.LinkEndpoint = (*nic)(nil)
	_ stack.GSOEndpoint  = (*nic)(nil)
)

// inject delivers a packet into the stack, as received on this interface. It
// copies the bytes.
func (n *nic) inject(pkt []byte) {
	n.mu.RLock()
	d := n.dispatcher
	n.mu.RUnlock()
	if d == nil || len(pkt) == 0 {
		return
	}
	proto := header.IPv4ProtocolNumber
	if pkt[0]>>4 == 6 {
		proto = header.IPv6ProtocolNumber
	}
	pb := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(pkt)})
	d.DeliverNetworkPacket(proto, pb)
	pb.DecRef()
}

// WritePackets queues packets for the wire. The stack calls it with locks held,
// so it never blocks: what finds no room is dropped.
func (n *nic) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	list := pkts.AsSlice()
	for _, p := range list {
		// The stack goes on using p: the clone shares the payload only.
		c := p.Clone()
		select {
		case n.host.out <- c:
		default:
			c.DecRef()
			n.host.wireFull.Add(1)
		}
	}
	return len(list), nil
}

// Attach implements [stack.LinkEndpoint].
func (n *nic) Attach(d stack.NetworkDispatcher) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dispatcher = d
}

// IsAttached implements [stack.LinkEndpoint].
func (n *nic) IsAttached() bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.dispatcher != nil
}

// What follows implements the rest of [stack.LinkEndpoint] for a link without a
// layer of its own, on which all checksums are complete and are verified.

func (n *nic) MTU() uint32                                { return n.mtu }
func (*nic) SetMTU(uint32)                                {}
func (*nic) MaxHeaderLength() uint16                      { return 0 }
func (*nic) LinkAddress() tcpip.LinkAddress               { return "" }
func (*nic) SetLinkAddress(tcpip.LinkAddress)             {}
func (*nic) Capabilities() stack.LinkEndpointCapabilities { return stack.CapabilityNone }
func (*nic) Wait()                                        {}
func (*nic) ARPHardwareType() header.ARPHardwareType      { return header.ARPHardwareNone }
func (*nic) AddHeader(*stack.PacketBuffer)                {}
func (*nic) ParseHeader(*stack.PacketBuffer) bool         { return true }
func (*nic) Close()                                       {}
func (*nic) SetOnCloseAction(func())                      {}
func (*nic) GSOMaxSize() uint32                           { return stack.GVisorGSOMaxSize }
func (*nic) SupportedGSO() stack.SupportedGSO             { return stack.GVisorGSOSupported }

// receive moves packets from the wire to the TUN or into the stack.
func (h *Host) receive() error {
	pkts := dpr.NewPackets(batch, max(h.cfg.MTU, readLen))
	for {
		n, err := h.cfg.Wire.Read(pkts)
		for i := range pkts[:n] {
			h.arrived(&pkts[i])
		}
		if err != nil {
			return err
		}
	}
}

// arrived takes one packet from the wire.
func (h *Host) arrived(p *dpr.Packet) {
	b := p.Bytes()
	if h.cfg.Capture != nil && h.cfg.Capture(b) && !(h.cfg.Bypass && h.holds(b)) && h.tun.put(p) {
		return
	}
	complete(p)
	h.wire.inject(b)
}

// send moves what the stack sends to the wire, in batches.
func (h *Host) send() error {
	defer h.drain()
	pkts := dpr.NewPackets(batch, h.cfg.MTU)
	for {
		select {
		case <-h.closing:
			return nil
		case p := <-h.out:
			n := h.fill(pkts, 0, p)
			for more := len(h.out); more > 0 && n < len(pkts); more-- {
				n = h.fill(pkts, n, <-h.out)
			}
			if n == 0 {
				continue
			}
			if _, err := h.cfg.Wire.Write(pkts[:n]); err != nil {
				return err
			}
		}
	}
}

// fill puts a packet of the stack into pkts[n] and returns how many there are
// then. A packet to the host itself turns back here.
func (h *Host) fill(pkts []dpr.Packet, n int, pb *stack.PacketBuffer) int {
	defer pb.DecRef()
	p := &pkts[n]
	p.Off, p.Len, p.GSO = dpr.Headroom, pb.Size(), dpr.GSO{}
	if p.Off+p.Len > len(p.Buf) {
		return n
	}
	at := p.Buf[p.Off:]
	for _, s := range pb.AsSlices() {
		at = at[copy(at, s):]
	}
	if h.own[destination(p.Bytes())] {
		h.wire.inject(p.Bytes())
		return n
	}
	if h.cfg.Tunnelled && h.fromAlias(p.Bytes()) {
		h.tun.put(p)
		return n
	}
	return n + 1
}

// fromAlias reports whether the stack sends a packet from an alias.
func (h *Host) fromAlias(b []byte) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.aliases[source(b)]
}

// drain frees what is left in the queue.
func (h *Host) drain() {
	for {
		select {
		case p := <-h.out:
			p.DecRef()
		default:
			return
		}
	}
}

// A sender writes to the wire.
type sender struct{ h *Host }

// Write implements [dpr.Writer]. It sends super-frames segment by segment.
func (s sender) Write(pkts []dpr.Packet) (n int, err error) {
	var split segment.Splitter
	for i := range pkts {
		if !split.Start(&pkts[i]) {
			continue // no packet at all
		}
		for split.Left() > 0 {
			if err := s.send(&split); err != nil {
				return n, err
			}
		}
		n++
	}
	return n, nil
}

// send sends the next segment.
func (s sender) send(split *segment.Splitter) error {
	p := dpr.NewPackets(1, split.MaxLen())
	split.Next(p)
	if b := p[0].Bytes(); s.h.own[destination(b)] {
		s.h.wire.inject(b)
		return nil
	}
	_, err := s.h.cfg.Wire.Write(p)
	return err
}
