package dpr

import (
	"encoding/binary"

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
	addr    uint32
	port    uint16
	index   uint16 // of the address
	service *service
}

// predict recognizes a TCP segment over IPv4 from a device that opens and ends nothing, and
// fills in its service, key and sequence number.
func (b *batch) predict(p *Packet, j *job) bool {
	pkt := p.Bytes()
	if p.Peer != 0 || len(pkt) < header.IPv4Len+header.TCPLen {
		return false
	}
	const plain = 4<<4 | header.IPv4Len/4
	h := (*[header.IPv4Len + header.TCPLen]byte)(pkt)
	be := binary.BigEndian
	length := int(be.Uint16(h[2:]))
	tcp := int(h[32]>>4) * 4
	const flags = header.FIN | header.SYN | header.RST | header.ACK
	if h[0] != plain || be.Uint16(h[6:])&0x3fff != 0 || h[9] != header.ProtoTCP || h[33]&flags != header.ACK ||
		length > len(pkt) || tcp < header.TCPLen || header.IPv4Len+tcp > length {
		return false
	}
	addr, port := be.Uint32(h[16:]), be.Uint16(h[22:])
	if addr != b.last.addr || port != b.last.port || b.last.service == nil {
		dst := header.V4(h[16:20])
		s, index := b.view.lookup(TCP, &dst, port)
		if s == nil {
			return false
		}
		b.last = dialled{addr, port, index, s}
	}
	p.Len = length
	be.PutUint64(j.key.Client[:], 0)
	be.PutUint64(j.key.Client[8:], 0xffff<<32|uint64(be.Uint32(h[12:])))
	j.key.ClientPort, j.key.Port = be.Uint16(h[20:]), port
	j.key.Service, j.key.Addr = b.last.service.index, b.last.index
	j.service = b.last.service
	j.seq, j.payload = be.Uint32(h[24:]), uint16(length-header.IPv4Len-tcp)
	j.predicted, j.parsed, j.answers, j.way = true, false, false, way{}
	return true
}

// expected handles a predicted packet, if its flow is open and goes on with it.
func (b *batch) expected(p *Packet, j *job, shard *flowtable.Shard, entry *flowtable.Entry) bool {
	state := State(entry.Class)
	ahead := int32(j.seq - entry.Seq)
	if state != Established && state != Unconfirmed || ahead < -dataWindow || ahead > endWindow || entry.Server != 0 {
		return false
	}
	if entry.Peer == 0 {
		p.Verdict = Local
	} else if !b.relay(p, j, PeerID(entry.Peer)) {
		return false
	}
	if ahead += int32(j.payload); ahead > 0 {
		entry.Seq += uint32(ahead)
	}
	if state == Unconfirmed {
		entry.Flags |= heard
		return true
	}
	entry.Waits = 0
	shard.Move(entry, flowtable.Class(Established), b.millis)
	return true
}

// relay hands a predicted packet to a peer, if nobody need be told anything.
func (b *batch) relay(p *Packet, j *job, peer PeerID) bool {
	to := b.view.peer(peer)
	size := p.Len
	if p.GSO.Size > 0 {
		size = min(size, p.Len-int(j.payload)+int(p.GSO.Size))
	}
	ip := header.IPv4(p.Bytes())
	if to == nil || size > to.mtu || ip.TTL() <= 1 {
		return false
	}
	ip.DecrementTTL()
	p.Verdict, p.Peer = Forward, peer
	return true
}
