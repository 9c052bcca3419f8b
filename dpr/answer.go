package dpr

import (
	"time"

	"github.com/carom-dpr/carom/internal/flowtable"
	"github.com/carom-dpr/carom/internal/header"
)

// Answers that go back the way that their flow came (ReplyTunnelled) pass the engines of
// both hosts. That of the serving host reads them from its device and knows them by
// their source, an address at which a peer is dialled: that peer entered the flow, so
// they go to it, and no entry is needed. That of the entry host gets them from an uplink
// and transmits those of flows that it has handed to that very peer.

// answer decides about a packet that is for no service, and may come from one.
func (b *batch) answer(p *Packet, j *job) {
	h := j.hdr
	s, addr := b.view.lookup(Proto(h.Proto), &h.Src, h.SrcPort)
	switch {
	case s == nil:
		b.notOurs(p)
	case p.Peer == 0 && b.view.owner[addr] != 0:
		b.toEntry(p, j, b.view.owner[addr])
	case p.Peer == 0:
		b.notOurs(p)
	case toProbe(h):
		p.Verdict = Local
	default:
		j.service, j.answers, *j.key = s, true, turnedKey(s, addr, h)
	}
}

// turnedKey is the key of the flow that a server's packet belongs to.
func turnedKey(s *service, addr uint16, h *header.Packet) flowtable.Key {
	return flowtable.Key{
		Client:     words(&h.Dst),
		ClientPort: h.DstPort,
		Port:       h.SrcPort,
		Service:    s.index,
		Addr:       addr,
	}
}

// toProbe reports whether a packet answers a SYN that this host has sent to see whether
// it is answered; see ProbePort.
func toProbe(h *header.Packet) bool {
	return h.Proto == header.ProtoTCP && h.DstPort == ProbePort &&
		(h.TCPFlags&header.RST != 0 || h.TCPFlags&(header.SYN|header.ACK) == header.SYN|header.ACK)
}

// toEntry hands an answer of this host's kernel to the peer that entered its flow. What
// is wrong with it the kernel is told, as by a router on the way. The segment size that
// it announces is lowered to what the tunnel carries, as that of its client was.
func (b *batch) toEntry(p *Packet, j *job, entry PeerID) {
	j.hdr.ClampMSS(p.Bytes(), b.view.peer(entry).mtu, p.GSO.NeedsCsum)
	b.apply(p, j, way{peer: entry})
	if p.Verdict == Reply {
		p.Verdict = Local
	}
}

// clamp lowers the segment size that a client announces to a server whose answers are
// tunnelled to what the tunnel to the entry host carries.
func (b *batch) clamp(p *Packet, h *header.Packet, s *service) {
	if from := b.view.peer(p.Peer); s.Reply == ReplyTunnelled && from != nil {
		h.ClampMSS(p.Bytes(), from.mtu, p.GSO.NeedsCsum)
	}
}

// toClient transmits an answer, if it is of a flow that its sender serves for this host.
func (b *batch) toClient(p *Packet, j *job, shard *flowtable.Shard, entry *flowtable.Entry) {
	switch {
	case entry != nil && PeerID(entry.Peer()) == p.Peer:
		b.trackServer(shard, entry, j.hdr)
	case entry == nil && b.wasFull() && b.stateless(j.service, b.flow(turned(j.hdr))) == p.Peer:
	default:
		b.drop(p, Unsolicited)
		return
	}
	b.transmit(p, j.hdr)
}

// turned returns the ends of a packet's flow as its other end writes them.
func turned(h *header.Packet) *header.Packet {
	return &header.Packet{Src: h.Dst, Dst: h.Src, SrcPort: h.DstPort, DstPort: h.SrcPort, Proto: h.Proto}
}

// trackServer follows a flow by the server's half. Data and a FIN prove that there is a
// connection, as an ACK does not: it may answer one that a forger sent during a
// handshake. A reset says that there is none, as a serving host that is asked would; it
// may be an earlier connection's, so the client can take it back.
func (b *batch) trackServer(shard *flowtable.Shard, entry *flowtable.Entry, h *header.Packet) {
	state := State(entry.Class())
	switch {
	case h.Proto != header.ProtoTCP:
		state = UDPFlow
	case state.look() == 0, h.TCPFlags&header.SYN != 0:
		return
	case h.TCPFlags&header.RST != 0:
		if h.TCPFlags&header.ACK == 0 || near(h.Ack, entry.Seq(), endWindow) {
			b.engine.answered(b.view, shard, entry, Gone, b.millis)
		}
		return
	case state == Unconfirmed && (h.PayloadLen > 0 || h.TCPFlags&header.FIN != 0):
		state = Established
	case state != Established && state != Closing:
		return
	}
	entry.SetWaits(0)
	shard.Move(entry, flowtable.Class(state), b.millis)
}

// transmit sends a packet on its way to its client. This host is a hop on it. A peer's
// packet whose hops are used up is not answered.
func (b *batch) transmit(p *Packet, h *header.Packet) {
	if h.HopLimit <= 1 {
		b.drop(p, HopLimit)
		return
	}
	b.hop(p, h)
	p.Verdict = Transmit
}

// arrives reports whether a packet goes to an address at which this host is dialled or,
// from a peer, to one at which that peer is: it is no answer.
func (v *view) arrives(h *header.Packet, from PeerID) bool {
	addr, ok := v.dialled(&h.Dst)
	return ok && (v.owner[addr] == 0 || v.owner[addr] == from)
}

// answerFragment decides about a fragment that comes from the address of a service,
// with or without ports, and reports whether it was one. What this host's own kernel
// sends from a peer's address goes to that peer.
func (b *batch) answerFragment(p *Packet, j *job) bool {
	h := j.hdr
	from, ok := b.view.dialled(&h.Src)
	switch {
	case !ok || p.Peer == 0 && b.view.owner[from] == 0 || b.view.arrives(h, p.Peer):
		return false
	case h.FragOffset == 0:
		b.answer(p, j)
	case p.Peer == 0:
		b.toEntry(p, j, b.view.owner[from])
	default:
		b.laterFragment(p, j, turnedFragmentKey(h, from))
	}
	return true
}

// aboutClient decides about an ICMP error that says what became of a client's packet at
// the server. It takes the way of an answer.
func (b *batch) aboutClient(p *Packet, j *job, quote *header.Packet) {
	s, addr := b.view.lookup(Proto(quote.Proto), &quote.Dst, quote.DstPort)
	switch {
	case s == nil || j.hdr.Src != quote.Dst || j.hdr.Dst != quote.Src || b.view.arrives(j.hdr, p.Peer):
		b.notOurs(p)
	case p.Peer == 0 && b.view.owner[addr] != 0:
		b.toEntry(p, j, b.view.owner[addr])
	case p.Peer == 0:
		b.notOurs(p)
	case b.owner(s, addr, quote).peer == p.Peer:
		b.transmit(p, j.hdr)
	default:
		b.drop(p, Unsolicited)
	}
}

// TooBig makes of a packet whose verdict is Transmit, and which is longer than its way's
// mtu in bytes, the ICMP error that tells its sender so. It reports false if none is to
// be sent; otherwise the verdict says where it goes.
func (e *Engine) TooBig(p *Packet, mtu int, now time.Time) bool {
	b := e.start(now)
	defer e.finish(b)
	h, from := b.jobs[0].hdr, p.Peer
	if h.Parse(p.Bytes()) != header.OK {
		return false
	}
	b.tooBig(p, h, mtu)
	if to := b.view.peer(from); p.Verdict == Reply && to != nil && to.plain != nil {
		p.Peer = 0 // it was translated, and so is this
		if h.Parse(p.Bytes()) == header.OK {
			b.aboutFlow(p, &b.jobs[0])
		}
	} else if p.Verdict == Reply && from != 0 {
		p.Verdict = Forward // it came from that peer
	}
	return p.Verdict != Drop
}
