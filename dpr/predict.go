package dpr

import (
	"encoding/binary"
	"math"

	"github.com/carom-dpr/carom/internal/flowtable"
	"github.com/carom-dpr/carom/internal/header"
)

// Nearly all packets are segments in the middle of a connection that a device has read:
// plain headers, ACK and no flag that changes a state, a flow in a state that stays.
// Such a packet is recognized by a few words of it and handled by a few fields of its
// entry, as TCP receivers do (Van Jacobson, "4BSD header prediction", 1990). What is not
// as predicted goes the way of all others from its parsing on, so that this one decides
// nothing that the other would not.

// A dialled is where the last predicted packet of a batch was going, and the service
// there: the next one most likely goes there, too.
type dialled struct {
	to      uint64 // address and port
	service *service
	index   uint16 // of the address
}

// nowhere is where no packet goes.
var nowhere = dialled{to: math.MaxUint64}

// predict recognizes TCP segments over IPv4 from a device that open and end nothing. It
// fills in their keys and sequence numbers, and returns how many there are.
func (b *batch) predict(pkts []Packet) (n int) {
	for i := range pkts {
		p, j := &pkts[i], &b.jobs[i]
		j.predicted = false
		pkt := p.Bytes()
		if p.Peer != 0 || len(pkt) < header.IPv4Len+header.TCPLen {
			continue
		}
		h := (*[header.IPv4Len + header.TCPLen]byte)(pkt)
		length, tcp := int(be.Uint16(h[2:])), int(h[32]>>4)*4
		if h[0] != plainIPv4 || be.Uint16(h[6:])&fragmented != 0 || h[9] != header.ProtoTCP || h[33]&significant != header.ACK ||
			length > len(pkt) || tcp < header.TCPLen || length < header.IPv4Len+tcp {
			continue
		}
		addr, port := be.Uint32(h[16:]), be.Uint16(h[22:])
		if uint64(addr)<<16|uint64(port) != b.last.to && !b.dials(addr, port) {
			continue
		}
		p.Len = length
		key := &b.keys[i]
		key.Client[0], key.Client[1] = 0, 0xffff<<32|uint64(be.Uint32(h[12:]))
		key.ClientPort, key.Port = be.Uint16(h[20:]), port
		key.Service, key.Addr = b.last.service.index, b.last.index
		j.service = b.last.service
		j.seq, j.payload = be.Uint32(h[24:]), uint16(length-header.IPv4Len-tcp)
		j.predicted = true
		n++
	}
	return n
}

const (
	plainIPv4   = 4<<4 | header.IPv4Len/4 // the first byte, without options
	fragmented  = 0x3fff                  // the bits of more fragments, and of a fragment's offset
	significant = header.FIN | header.SYN | header.RST | header.ACK
)

var be = binary.BigEndian

// dials finds the service of an address and port.
func (b *batch) dials(addr uint32, port uint16) bool {
	dst := bytes16([2]uint64{0, 0xffff<<32 | uint64(addr)})
	s, index := b.view.lookup(TCP, &dst, port)
	if s == nil {
		return false
	}
	b.last = dialled{uint64(addr)<<16 | uint64(port), s, index}
	return true
}

// expected handles a predicted packet, if its flow is open and goes on with it, if its peer
// is there, and if it fits. It takes no lock, since it changes nothing of the flow but
// the expected sequence number: a flow that has to be touched, or of which something else
// is to be noted, is for those that have the lock. Whatever they do to it meanwhile, the
// packet came a moment before.
func (b *batch) expected(p *Packet, j *job, entry *flowtable.Entry) bool {
	status := entry.Status()
	switch state := State(status.Class()); {
	case status.Translated():
		return false
	case state == Established:
		if status.Waits() != 0 || !b.engine.table.Fresh(status, b.millis) {
			return false
		}
	case state != Unconfirmed || status.Flags()&heard == 0:
		return false
	}
	bound := entry.Binding()
	ahead := int32(j.seq - bound.Seq())
	if ahead < -dataWindow || ahead > endWindow || !entry.Holds(j.key, status, bound) {
		return false
	}
	verdict := Local
	if peer := PeerID(bound.Peer()); peer != 0 {
		to, ip := b.view.peer(peer), header.IPv4(p.Bytes())
		if to == nil || p.longest(int(j.payload)) > to.mtu || ip.TTL() <= 1 {
			return false
		}
		ip.DecrementTTL()
		p.Peer, verdict = peer, Forward
	}
	p.Verdict = verdict
	b.count[verdict]++
	if ahead += int32(j.payload); ahead > 0 {
		entry.Advance(bound, uint32(ahead))
	}
	return true
}

// unpredicted reads what else a predicted packet says, since its flow did not expect it.
func (b *batch) unpredicted(p *Packet, j *job) {
	j.hdr.Parse(p.Bytes()) // prediction has seen that it can be parsed
	j.predicted, j.answers, j.way = false, false, way{}
}
