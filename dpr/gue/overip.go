package gue

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/internal/header"
	"github.com/carom-dpr/carom/internal/segment"
)

// OverIP is an uplink over a device that carries IP packets: it writes the outer
// IP and UDP headers itself. It is what an in-memory network needs, and a host
// without UDP sockets. It is a [dpr.Device] with that contract.
//
// It sends each segment of a super-frame as a packet of its own and does not join
// what it receives.
type OverIP struct {
	under   dpr.Device
	codec   *Codec
	listen  []netip.AddrPort
	peers   atomic.Pointer[peerTable]
	count   counters
	control controls
	nextID  atomic.Uint32 // identification of outer IPv4 packets

	mu    sync.Mutex // over all below
	split segment.Splitter
	out   []dpr.Packet
}

// sourcePorts is the first of the ephemeral ports that OverIP sends from (RFC
// 6335, section 6), and how many there are.
const (
	firstSourcePort = 49152
	sourcePorts     = 16384
)

// overIPBatch is how many packets OverIP hands to the device below at once.
const overIPBatch = 16

// NewOverIP returns an uplink without peers over the device, which it owns from
// then on. Of cfg it uses Listen, which must name the addresses, Keys and Control.
func NewOverIP(cfg Config, under dpr.Device) (*OverIP, error) {
	listen, err := listen(cfg.Listen, true)
	if err != nil {
		return nil, err
	}
	codec, err := NewCodec(cfg.Keys...)
	if err != nil {
		return nil, err
	}
	u := &OverIP{under: under, codec: codec, listen: listen, out: dpr.NewPackets(overIPBatch, dpr.MaxPacket)}
	u.peers.Store(&peerTable{})
	u.control.begin(cfg.Control)
	return u, nil
}

// SetPeers replaces the peers. On an error they stay as they were.
func (u *OverIP) SetPeers(peers []Peer) error {
	t, err := newPeerTable(peers, u.listen)
	if err == nil {
		u.peers.Store(t)
		u.control.forget(t)
	}
	return err
}

// Stats returns the counters.
func (u *OverIP) Stats() Stats { return u.count.stats() }

// Close closes the device below.
func (u *OverIP) Close() error { return u.under.Close() }

// Read reads from the device below until it has at least one packet of a peer.
func (u *OverIP) Read(pkts []dpr.Packet) (int, error) {
	for len(pkts) > 0 {
		n, err := u.under.Read(pkts)
		if err != nil {
			return 0, err
		}
		u.count.receiveCalls.Add(1)
		kept := 0
		for i := range pkts[:n] {
			if !u.receive(&pkts[i]) {
				continue
			}
			pkts[kept], pkts[i] = pkts[i], pkts[kept] // each keeps a buffer of its own
			kept++
		}
		u.count.received.Add(uint64(kept))
		if kept > 0 {
			return kept, nil
		}
	}
	return 0, nil
}

// receive takes one packet out of the tunnel and reports whether there is one:
// control messages end here, and the rest is dropped and counted.
func (u *OverIP) receive(p *dpr.Packet) bool {
	why := u.unwrap(p)
	if why == Control {
		why = u.takeControl(p)
	} else if why == OK {
		return true
	}
	if why != OK {
		u.count.drop(why, 1)
	}
	return false
}

// takeControl hands the control message on that p carries.
func (u *OverIP) takeControl(p *dpr.Packet) Reason {
	var outer header.Packet
	outer.Parse(p.Bytes()) // it was good before
	udp := header.UDP(p.Bytes()[outer.L4:outer.Len])
	from := u.peers.Load().byAddr[outer.Source().Addr()]
	return u.control.receive(u.codec.ring.Load(), from, udp[header.UDPLen:udp.Length()], &outer.Src, &outer.Dst)
}

// Control sends a message of at most [MaxControl] bytes to what the peer gave as
// Config.Control. It may get lost like any packet. The message stays the caller's.
func (u *OverIP) Control(id dpr.PeerID, message []byte) error {
	to := u.peers.Load().byID[id]
	if to == nil {
		u.count.drop(NoPeer, 1)
		return fmt.Errorf("gue: control message to peer %d, which is none", id)
	}
	b, err := u.control.next(u.codec.ring.Load(), to, message)
	if err != nil {
		return err
	}
	is6 := to.addr.Addr().Is6()
	size := Overhead(is6, false)
	p := dpr.NewPackets(1, size+len(b))[0]
	p.Len = size + len(b)
	udp := p.Bytes()[size-header.UDPLen:]
	header.PutUDP(udp, &header.UDPFields{SrcPort: firstSourcePort, DstPort: to.addr.Port(), Length: len(udp)})
	copy(udp[header.UDPLen:], b)
	header.PutChecksum(udp, header.ProtoUDP, &to.src, &to.dst)
	fields := outerFields{src: &to.src, dst: &to.dst, id: uint16(u.nextID.Add(1)), df: true}
	fields.put(p.Bytes(), is6)
	_, err = u.under.Write([]dpr.Packet{p})
	return err
}

// unwrap takes the packet that p carries out of its outer headers.
func (u *OverIP) unwrap(p *dpr.Packet) Reason {
	var ends header.Packet
	if ends.Parse(p.Bytes()) != header.OK {
		return BadOuter
	}
	to := ends.Destination()
	if i := familyOf(to.Addr(), u.listen); i < 0 || to != u.listen[i] || ends.Proto != header.ProtoUDP {
		return NotOurs
	}
	id := u.peers.Load().byAddr[ends.Source().Addr()]
	if id == 0 {
		return UnknownPeer
	}
	var o Outer
	if why := u.codec.Decap(p, &o); why != OK {
		return why
	}
	p.Peer, p.Verdict = id, dpr.Drop
	return OK
}

// Write sends each packet to its peer, super-frames segment by segment.
func (u *OverIP) Write(pkts []dpr.Packet) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	peers := u.peers.Load()
	sent := 0
	for i := range pkts {
		to := peers.byID[pkts[i].Peer]
		if to == nil {
			u.count.drop(NoPeer, 1)
			continue
		}
		ok, err := u.send(&pkts[i], to)
		if err != nil {
			return sent, err
		}
		if ok {
			sent++
		}
	}
	return sent, nil
}

// send sends the segments of p and reports whether all went out.
func (u *OverIP) send(p *dpr.Packet, to *peer) (ok bool, err error) {
	if _, ok := segment.Whole(p.Bytes()); !ok || !u.split.Start(p) {
		u.count.drop(Malformed, 1)
		return false, nil
	}
	o := Outer{Dst: to.addr, Src: netip.AddrPortFrom(
		u.listen[to.family].Addr(), uint16(firstSourcePort+flowHash(p.Bytes())%sourcePorts))}
	ok = true
	for u.split.Left() > 0 {
		n, _ := u.split.Next(u.out) // the buffers hold every packet
		k := 0
		for i := range u.out[:n] {
			o.ID = uint16(u.nextID.Add(1))
			if why := u.codec.Encap(&u.out[i], &o); why != OK {
				u.count.drop(why, 1)
				ok = false
				continue
			}
			u.out[k], u.out[i] = u.out[i], u.out[k]
			k++
		}
		done, err := u.under.Write(u.out[:k])
		u.count.sendCalls.Add(1)
		u.count.sent.Add(uint64(done))
		u.count.drop(Refused, k-done)
		ok = ok && done == k
		if err != nil {
			return false, err
		}
	}
	return ok, nil
}

var _ dpr.Device = (*OverIP)(nil)
