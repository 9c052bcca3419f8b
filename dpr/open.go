package dpr

import (
	"encoding/binary"

	"github.com/carom-dpr/carom/internal/flowtable"
	"github.com/carom-dpr/carom/internal/header"
	"github.com/carom-dpr/carom/internal/siphash"
	"github.com/carom-dpr/carom/lb"
)

// open asks the policy about a new flow and binds the flow to the answer.
func (b *batch) open(p *Packet, j *job, shard *flowtable.Shard) {
	flow := b.flow(j.hdr)
	peer, refused := PeerID(0), false
	if c := j.service.choice.Load(); c != nil && !j.service.Former {
		j.service.refreshServing(b.now)
		peer, refused = b.pick(c, flow)
	}
	if refused {
		j.service.count.refused.Add(1)
		b.refuse(p, j.hdr)
		return
	}
	w := b.wayTo(peer, j)
	if !b.bind(j, shard, w) {
		w = b.noRoom(j, w, flow)
	}
	if w.peer == 0 {
		j.service.count.served.Add(1)
	} else {
		j.service.count.out.Add(1)
	}
	b.apply(p, j, w)
}

// noRoom returns the way of a flow for which the table had no room.
func (b *batch) noRoom(j *job, w way, flow lb.Flow) way {
	b.engine.full.Store(int64(b.now))
	b.count[tableFull]++
	if w.server != 0 {
		b.view.servers[w.server].free(w.port, seconds(b.now))
	}
	if j.service.Former {
		return way{}
	}
	return way{peer: b.stateless(j.service, flow)}
}

// pick returns the peer that is to serve the flow, 0 for this host.
func (b *batch) pick(c *choice, flow lb.Flow) (peer PeerID, refused bool) {
	answer := c.picker.Pick(flow, b.now)
	switch {
	case answer.Do == lb.Refuse:
		return 0, true
	case answer.Do == lb.Send && b.view.peer(c.peers[answer.Host]) != nil:
		return c.peers[answer.Host], false
	}
	return 0, false
}

// firstState is the state of a flow that begins with the packet.
func (b *batch) firstState(h *header.Packet, peer PeerID) State {
	switch {
	case h.Proto != header.ProtoTCP:
		return UDPNew
	case peer == 0 && !b.engine.cfg.TrackLocal:
		return Handover
	}
	return Embryonic
}

// bind enters the flow into the table; it fails when the table is full.
func (b *batch) bind(j *job, shard *flowtable.Shard, w way) bool {
	state, counts := b.firstState(j.hdr, w.peer), b.view.counts(j.key.Service, w.peer)
	start := flowtable.Start{
		Class: flowtable.Class(state), Peer: uint32(w.peer), Server: w.server, NATPort: w.port,
		ISN: j.hdr.Seq, Seq: j.hdr.Seq + segmentLen(j.hdr),
	}
	if counts != nil {
		start.Flags = counted
	}
	entry := shard.Insert(j.key, j.hash, b.millis, &start)
	if entry == nil {
		return false
	}
	counts.add(1)
	if state == Embryonic && !opens(j.hdr) { // others may read it without the lock now that it is bound
		shard.Move(entry, flowtable.Class(b.opened(entry)), b.millis)
	}
	return true
}

// unknown decides about a TCP packet that opens nothing and belongs to no flow
// here. The local stack answers with its reset, unless the table was full of late:
// then the flow may be one that was sent where its hash says, and it is bound
// there as soon as there is room.
func (b *batch) unknown(p *Packet, j *job, shard *flowtable.Shard) {
	b.count[unknownFlow]++
	if !b.wasFull() {
		p.Verdict = Local
		return
	}
	w := way{peer: b.stateless(j.service, b.flow(j.hdr))}
	if w.peer != 0 && j.hdr.TCPFlags&(header.ACK|header.RST) == header.ACK {
		b.bind(j, shard, w)
	}
	b.apply(p, j, w)
}

// wasFull reports whether the table had no room for a new flow of late, as long ago
// as a client may still be trying to connect.
func (b *batch) wasFull() bool {
	full := b.engine.full.Load()
	return full != 0 && int64(b.now)-full <= b.engine.wait.Load()
}

// stateless chooses by the flow's hash alone, so that each packet of the flow gets
// the same answer as long as the eligible hosts stay the same: rendezvous hashing
// (Thaler and Ravishankar, 1998), unweighted. Plain servers need a flow's port, so
// they are not among them.
func (b *batch) stateless(s *service, flow lb.Flow) PeerID {
	c := s.choice.Load()
	if c == nil {
		return 0
	}
	best, peer := uint64(0), PeerID(0)
	for i := range c.snap.Hosts {
		h := &c.snap.Hosts[i]
		if to := b.view.peer(c.peers[i]); !h.Eligible() || i != c.snap.Self && (to == nil || to.plain != nil) {
			continue
		}
		if score := mix(flow.Conn ^ c.ids[i]); score >= best {
			best, peer = score, c.peers[i]
		}
	}
	return peer
}

// mix scrambles 64 bits: the finalizer of MurmurHash3 by Appleby, with the
// constants of Stafford's variant 13.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// flow hashes the connection and its client with the cluster's seed. The bytes are
// in network order, so the hash does not depend on the machine: destination and
// source address (IPv4 as IPv6-mapped), destination and source port, protocol.
func (b *batch) flow(h *header.Packet) lb.Flow {
	var buf [37]byte
	copy(buf[0:], h.Dst[:])
	copy(buf[16:], h.Src[:])
	binary.BigEndian.PutUint16(buf[32:], h.DstPort)
	binary.BigEndian.PutUint16(buf[34:], h.SrcPort)
	buf[36] = h.Proto
	return lb.Flow{
		Conn:   siphash.Sum64(b.engine.seed, buf[:]),
		Client: siphash.Sum64(b.engine.seed, h.Src[:]),
	}
}
