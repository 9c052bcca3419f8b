package dpr

import (
	"encoding/binary"
	"net/netip"

	"github.com/carom-dpr/carom/internal/checksum"
	"github.com/carom-dpr/carom/internal/flowtable"
	"github.com/carom-dpr/carom/internal/header"
)

// ends are the addresses and ports of a packet.
type ends struct {
	src, dst         [16]byte
	srcPort, dstPort uint16
}

func (e *ends) turned() ends {
	return ends{src: e.dst, dst: e.src, srcPort: e.dstPort, dstPort: e.srcPort}
}

// wayTo returns the way of a new flow that the peer is to serve, and takes a port for
// it if need be. Without one, or without a server of its family, this host serves it,
// and so it does if the addresses are authenticated (RFC 4302).
func (b *batch) wayTo(peer PeerID, j *job) way {
	p := b.view.peer(peer)
	if p == nil || p.plain == nil {
		return way{peer: peer}
	}
	n := p.servers[j.service.index][family(j.hdr.Version == 4)]
	if n == 0 || j.hdr.AH {
		return way{}
	}
	port, ok := b.view.servers[n].take(j.key, seconds(b.now))
	if !ok {
		b.count[noPort]++
		return way{}
	}
	return way{peer: peer, server: n, port: port}
}

// wayOf returns the way of a known flow, or of fragments.
func wayOf(entry *flowtable.Entry) way {
	return way{peer: PeerID(entry.Peer()), server: entry.Server, port: entry.NATPort, back: entry.Flags()&back != 0}
}

// translate sends a packet of a flow, or an error about one, to its plain server, or
// from there to its client, whose flow's key is j.key.
func (b *batch) translate(p *Packet, j *job, w way, to *peer) {
	h := j.hdr
	if h.AH { // which covers the addresses (RFC 4302), and the flow began without
		b.drop(p, parseReason(header.BadExtension))
		return
	}
	if !w.back && !b.fits(p, j, to) || !b.hop(p, h) {
		return
	}
	e := b.endsOf(w, j.key)
	if h.IsICMPError() {
		rewriteError(p.Bytes(), h, &e)
	} else {
		h.ClampMSS(p.Bytes(), to.mtu, p.GSO.NeedsCsum)
		rewrite(p.Bytes(), h, &e, p.GSO.NeedsCsum)
	}
	p.Verdict, p.Peer = Transmit, w.peer
}

// endsOf returns the ends that packets get on their way.
func (b *batch) endsOf(w way, key *flowtable.Key) ends {
	if w.back {
		return ends{b.view.addrs[key.Addr].As16(), bytes16(key.Client), key.Port, key.ClientPort}
	}
	s := b.view.servers[w.server]
	return ends{s.source, s.endpoint.addr, w.port, s.port}
}

// rewrite gives a packet, or as much of one as an error quotes, other ends, and brings
// its checksums up to date: a wrong one stays as wrong. partial says that the
// transport's is still that of the pseudo-header.
func rewrite(pkt []byte, h *header.Packet, e *ends, partial bool) {
	was, is, n := setAddrs(pkt, h.Version, e)
	offset, ok := header.ChecksumOffset(h.Proto)
	l4 := pkt[h.L4:]
	if h.FragOffset > 0 || !ok {
		return
	}
	copy(was[n:], l4[:4])
	binary.BigEndian.PutUint16(l4, e.srcPort)
	binary.BigEndian.PutUint16(l4[2:], e.dstPort)
	copy(is[n:], l4[:4])
	if len(l4) < offset+2 {
		return // a short quote
	}
	sum := binary.BigEndian.Uint16(l4[offset:])
	switch {
	case partial:
		sum = checksum.UpdatePartial(sum, was[:n], is[:n])
	case h.Proto == header.ProtoUDP:
		sum = checksum.UpdateUDP(sum, was[:n+4], is[:n+4])
	default:
		sum = checksum.Update(sum, was[:n+4], is[:n+4])
	}
	binary.BigEndian.PutUint16(l4[offset:], sum)
}

// addrRun has room for the addresses of a packet and for its ports.
type addrRun [2*16 + 4]byte

// setAddrs stores the addresses, with IPv4's checksum, and returns the n bytes that
// were there and that are.
func setAddrs(pkt []byte, version uint8, e *ends) (was, is addrRun, n int) {
	if version == 6 {
		n = copy(was[:], pkt[8:40])
		copy(pkt[8:], e.src[:])
		copy(pkt[24:], e.dst[:])
		copy(is[:], pkt[8:40])
		return was, is, n
	}
	ip := header.IPv4(pkt)
	n = copy(was[:], pkt[12:20])
	copy(pkt[12:], e.src[12:])
	copy(pkt[16:], e.dst[12:])
	copy(is[:], pkt[12:20])
	ip.SetChecksum(checksum.Update(ip.Checksum(), was[:n], is[:n]))
	return was, is, n
}

// rewriteError translates an ICMP error and the packet that it quotes, which went the
// other way (RFC 5508, section 4). It comes from the address that its receiver knows:
// a router between this host and the server is none that a client could know of.
func rewriteError(pkt []byte, h *header.Packet, e *ends) {
	var quote header.Packet
	message := header.ICMP(pkt[h.L4:])
	body := message.Body()
	if quote.ParseQuote(body) != header.OK {
		return // it has been parsed before
	}
	var old [maxTouched]byte
	n := copy(old[:], body[:min(len(body), int(quote.L4)+header.TCPLen)]) &^ 1
	turned := e.turned()
	rewrite(body[:quote.Len], &quote, &turned, false)
	sum := checksum.Update(message.Checksum(), old[:n], body[:n])
	was, is, addrs := setAddrs(pkt, h.Version, e)
	if h.Version == 6 { // its checksum covers them, that of IPv4 does not
		sum = checksum.Update(sum, was[:addrs], is[:addrs])
	}
	message.SetChecksum(sum)
}

// maxTouched is how far into a quoted packet its translation may reach.
const maxTouched = header.IPv6Len + header.MaxExtBytes + header.TCPLen

// fromServer sends a packet of a plain server to the flow's client.
func (b *batch) fromServer(p *Packet, j *job, shard *flowtable.Shard, entry *flowtable.Entry) {
	if entry == nil || entry.Server != j.way.server || entry.NATPort != j.way.port {
		b.notOurs(p) // the flow has just been forgotten
		return
	}
	w := way{PeerID(entry.Peer()), entry.Server, entry.NATPort, true}
	to := b.view.peer(w.peer)
	if to == nil {
		b.notOurs(p) // the kernel knows of no such flow either, and says so to the server
		return
	}
	b.trackPlain(shard, entry, j.hdr)
	j.way = w
	b.translate(p, j, w, to)
}

// trackPlain follows what the server of a translated flow says.
func (b *batch) trackPlain(shard *flowtable.Shard, entry *flowtable.Entry, h *header.Packet) {
	state := State(entry.Class())
	if h.Proto == header.ProtoTCP {
		state = b.serverState(entry, h)
	}
	entry.SetWaits(0)
	shard.Move(entry, flowtable.Class(state), b.millis)
}

// serverState returns the state of a translated flow after one more segment from its
// server, whose numbers it follows.
func (b *batch) serverState(entry *flowtable.Entry, h *header.Packet) State {
	state, next := State(entry.Class()), b.view.servers[entry.Server].seq(entry.NATPort)
	switch {
	case h.TCPFlags&header.RST != 0:
		return b.serverReset(entry, h, *next)
	case h.TCPFlags&header.ACK == 0:
		return state
	case h.TCPFlags&header.SYN != 0:
		if state == Embryonic && near(h.Ack, entry.Seq(), endWindow) {
			*next = h.Seq + segmentLen(h)
			entry.Mark(answered)
		}
		return state
	case entry.Flags()&answered == 0 || !near(h.Seq, *next, dataWindow):
		return state
	}
	if entry.Flags()&leapt != 0 { // the server knows where its client is
		entry.SetSeq(h.Ack)
		entry.Unmark(leapt)
	}
	ends := h.TCPFlags&header.FIN != 0 && near(h.Seq, *next, endWindow)
	ahead := int32(h.Seq + segmentLen(h) - *next)
	if ahead > 0 {
		*next += uint32(ahead)
	}
	switch {
	case ends && (state != Closed || entry.Flags()&finished != 0):
		b.end(entry)
		entry.Mark(ended)
		return Closing
	case ahead > 0 && entry.Flags()&ended != 0:
		return b.serverGoesOn(entry, state)
	}
	return afterBoth(entry, state)
}

// serverReset ends the flow, unless the reset may be a stranger's. One that answers the
// SYN has no number but that which it acknowledges.
func (b *batch) serverReset(entry *flowtable.Entry, h *header.Packet, next uint32) State {
	known := entry.Flags()&answered != 0
	if known && !near(h.Seq, next, endWindow) || !known && !near(h.Ack, entry.Seq(), endWindow) {
		return State(entry.Class())
	}
	b.end(entry)
	entry.Unmark(late | denied)
	entry.Mark(ended)
	return Closed
}

// serverGoesOn returns the state after data beyond the server's FIN or RST, which was
// another's.
func (b *batch) serverGoesOn(entry *flowtable.Entry, state State) State {
	entry.Unmark(ended)
	if entry.Flags()&finished != 0 {
		return state
	}
	b.begin(entry)
	return Established
}

// afterBoth returns the state after a segment that ends nothing: both ends have said
// FIN, and this is an answer to it.
func afterBoth(entry *flowtable.Entry, state State) State {
	if state == Closing && entry.Flags()&(finished|ended) == finished|ended {
		return Closed
	}
	return state
}

// knows reports whether the client of a translated flow has had the server's answer, as
// a forger of its SYN and ACK has not.
func (b *batch) knows(entry *flowtable.Entry, h *header.Packet) bool {
	return entry.Flags()&answered != 0 && near(h.Ack, *b.view.servers[entry.Server].seq(entry.NATPort), endWindow)
}

// Translation is what a flow to a plain server looks like there.
type Translation struct {
	// Source and Server are the flow's ends on the way to the server. They are the zero
	// AddrPort for flows that are not translated.
	Source, Server netip.AddrPort
}

func (v *view) translation(entry *flowtable.Entry) (t Translation) {
	if entry.Server == 0 || int(entry.Server) >= len(v.servers) || v.servers[entry.Server] == nil {
		return t
	}
	s := v.servers[entry.Server]
	return Translation{netip.AddrPortFrom(netip.AddrFrom16(s.source).Unmap(), entry.NATPort), s.addrPort()}
}
