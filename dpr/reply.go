package dpr

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/carom-dpr/carom/internal/header"
)

// fits reports whether the packet, or each of its segments, fits the way to the peer. An
// IPv4 packet that does not but may be fragmented is made to; others become an ICMP error
// that says what would fit (RFC 1191, RFC 8201). IPv6 packets of up to 1280 bytes fit
// every tunnel.
func (b *batch) fits(p *Packet, j *job, to *peer) bool {
	h := j.hdr
	mtu := to.mtu
	if h.Version == 6 {
		mtu = max(mtu, header.IPv6MinMTU)
	}
	if p.longest(h.PayloadLen) <= mtu {
		return true
	}
	if !h.DF && p.GSO.Size == 0 {
		b.split(p, j, to)
		return true
	}
	b.tooBig(p, h, mtu)
	return false
}

// tooBig tells the sender how long the packet may be.
func (b *batch) tooBig(p *Packet, h *header.Packet, mtu int) {
	f := header.ICMPFields{Type: header.ICMPUnreachable, Code: header.ICMPCodeFragNeed, Rest: uint32(mtu)}
	if h.Version == 6 {
		f = header.ICMPFields{Type: header.ICMPv6TooBig, Rest: uint32(mtu)}
	}
	b.icmpError(p, h, TooBig, f)
}

// expired tells the sender that the packet's TTL or hop limit is used up.
func (b *batch) expired(p *Packet, h *header.Packet) {
	f := header.ICMPFields{Type: header.ICMPTimeExceeded}
	if h.Version == 6 {
		f.Type = header.ICMPv6TimeExceeded
	}
	b.icmpError(p, h, HopLimit, f)
}

// How much of a packet an ICMP error quotes, in bytes: as much as keeps the error
// within 576 bytes (RFC 1812, section 4.3.2.3) or 1280 (RFC 4443, section 2.4).
const (
	maxQuote4 = 576 - header.IPv4Len - header.ICMPLen
	maxQuote6 = header.IPv6MinMTU - header.IPv6Len - header.ICMPLen
)

// icmpError turns the packet into an ICMP error about itself, in place: the quote
// stays where it is and the new headers go into the headroom. If errors are sent
// too fast already, or the packet must not be answered, it is dropped for the
// reason instead.
func (b *batch) icmpError(p *Packet, h *header.Packet, reason Reason, f header.ICMPFields) {
	if h.FragOffset > 0 || h.IsICMPError() || !b.mayAnswer(h) {
		b.drop(p, reason)
		return
	}
	quote, proto, ip := maxQuote4, uint8(header.ProtoICMP), header.IPv4Len
	if h.Version == 6 {
		quote, proto, ip = maxQuote6, header.ProtoICMPv6, header.IPv6Len
	}
	if p.Off < ip+header.ICMPLen { // the caller has left no room for it
		b.drop(p, reason)
		return
	}
	body := header.ICMPLen + min(p.Len, quote)
	p.Off -= ip + header.ICMPLen
	p.Len = ip + body
	message := p.Bytes()[ip:]
	header.PutICMP(message, &f)
	header.PutChecksum(message, proto, &h.Dst, &h.Src)
	b.reply(p, h, proto)
}

// refuse answers a SYN with a reset, and drops what is no SYN.
func (b *batch) refuse(p *Packet, h *header.Packet) {
	if !opens(h) || !b.mayAnswer(h) {
		b.drop(p, Refused)
		return
	}
	b.reset(p, h)
}

// disown resets a connection whose peer is gone, so that its client connects again at
// once: the client's own ACK number is the one that it takes a reset at. What must
// not be answered, or not so often, is left to the local stack, which knows of no such
// connection either.
func (b *batch) disown(p *Packet, h *header.Packet) {
	if h.TCPFlags&header.RST != 0 || !b.mayAnswer(h) {
		p.Verdict = Local
		return
	}
	b.count[resetsSent]++
	b.reset(p, h)
}

// reset turns a segment into the reset that a host without such a connection answers
// it with (RFC 9293, section 3.10.7.1).
func (b *batch) reset(p *Packet, h *header.Packet) {
	ip := header.IPv4Len
	if h.Version == 6 {
		ip = header.IPv6Len
	}
	f := header.TCPFields{SrcPort: h.DstPort, DstPort: h.SrcPort, Seq: h.Ack, Flags: header.RST}
	if h.TCPFlags&header.ACK == 0 {
		f.Seq, f.Ack, f.Flags = 0, h.Seq+segmentLen(h), header.RST|header.ACK
	}
	p.Len = ip + header.TCPLen
	segment := p.Bytes()[ip:]
	header.PutTCP(segment, &f)
	header.PutChecksum(segment, header.ProtoTCP, &h.Dst, &h.Src)
	b.reply(p, h, header.ProtoTCP)
}

// replyTTL is the initial TTL or hop limit of packets that the engine makes, the
// usual default of hosts.
const replyTTL = 64

// reply puts an IP header before a message that answers the packet h describes,
// from the address that its sender used.
func (b *batch) reply(p *Packet, h *header.Packet, proto uint8) {
	if h.Version == 4 {
		header.PutIPv4(p.Bytes(), &header.IPv4Fields{
			TotalLen: p.Len, TTL: replyTTL, Protocol: proto, Src: h.Dst, Dst: h.Src,
			ID: uint16(b.engine.stats.of(errorsSent)) + uint16(b.count[errorsSent]),
		})
	} else {
		header.PutIPv6(p.Bytes(), &header.IPv6Fields{
			PayloadLen: p.Len - header.IPv6Len, HopLimit: replyTTL, NextHeader: proto, Src: h.Dst, Dst: h.Src,
		})
	}
	p.GSO, p.Verdict = GSO{}, Reply
	b.count[errorsSent]++
}

// mayAnswer reports whether the sender can be answered, and not too often. An
// answer to a group or to nobody could be used against third parties (RFC 1122,
// section 3.2.2; RFC 4443, section 2.4).
func (b *batch) mayAnswer(h *header.Packet) bool {
	src := netip.AddrFrom16(h.Src).Unmap()
	if src.IsUnspecified() || src.IsMulticast() || src.IsLoopback() || src == broadcast {
		return false
	}
	return b.engine.errors.allow(b.now)
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// A limiter allows events at a steady rate with bursts, by the virtual scheduling
// of the generic cell rate algorithm (ITU-T I.371): one word of state, no lock.
type limiter struct {
	interval time.Duration // between events
	next     atomic.Int64  // when the bucket will be full again
}

// limiterBurst is how many events may come at once.
const limiterBurst = 64

func (l *limiter) allow(now time.Duration) bool {
	for {
		next := l.next.Load()
		at := max(next, int64(now))
		if at-int64(now) > int64(limiterBurst*l.interval) {
			return false
		}
		if l.next.CompareAndSwap(next, at+int64(l.interval)) {
			return true
		}
	}
}
