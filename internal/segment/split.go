package segment

import (
	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/internal/checksum"
	"github.com/carom-dpr/carom/internal/header"
)

// A Splitter cuts one super-frame into its segments, a few at a time if that
// suits the caller. The zero Splitter has none.
//
// Every segment gets the headers of the super-frame with its own lengths,
// sequence number and complete checksum. IPv4 identifications count up from the
// super-frame's. FIN and PSH stay on the last segment and CWR on the first, as
// in the segmentation that network cards do. IPv4 and transport checksums are
// updated from those of the super-frame, so that one that was wrong stays wrong.
type Splitter struct {
	pkt     dpr.Packet
	l4, hdr int    // where the transport header and the payload start, in bytes
	size    int    // payload of each segment but the last, in bytes
	at      int    // where the payload of the next segment starts
	index   int    // of the next segment
	n       int    // segments in all
	partial uint32 // sum of the pseudo-header, without its length
}

// Start makes s cut p, and forgets what was left of the packet before. It reports
// false if p is no valid super-frame, and then s has no segments. An ordinary
// packet has one segment: itself, its checksum completed in place. The bytes of p
// must not change until the last segment was taken.
func (s *Splitter) Start(p *dpr.Packet) bool {
	*s = Splitter{}
	if p.GSO.Type == dpr.GSONone {
		if !Complete(p) || p.Len == 0 {
			return false
		}
		s.pkt, s.size, s.n = *p, p.Len, 1
		return true
	}
	l4, hdr, ok := superframe(p)
	if !ok {
		return false
	}
	payload, size := p.Len-hdr, int(p.GSO.Size)
	s.pkt, s.l4, s.hdr, s.size, s.at = *p, l4, hdr, size, hdr
	s.n = max(1, (payload+size-1)/size)
	field := be.Uint16(p.Bytes()[l4+int(p.GSO.CsumOffset):])
	s.partial = uint32(field) + uint32(^uint16(p.Len-l4))
	return true
}

// superframe checks that the headers of p and its GSO agree. It returns the
// offsets of its transport header and of its payload.
func superframe(p *dpr.Packet) (l4, hdr int, ok bool) {
	b, g := p.Bytes(), p.GSO
	l4 = int(g.CsumStart)
	if !g.NeedsCsum || g.Size == 0 || len(b) > dpr.MaxPacket || l4 < header.IPv4Len || l4+header.UDPLen > len(b) {
		return 0, 0, false
	}
	is4 := header.Version(b) == 4
	if is4 && header.IPv4(b).HeaderLen() != l4 || !is4 && (header.Version(b) != 6 || l4 < header.IPv6Len) {
		return 0, 0, false
	}
	switch g.Type {
	case dpr.GSOTCP4, dpr.GSOTCP6:
		if g.CsumOffset != tcpCsumOff || is4 != (g.Type == dpr.GSOTCP4) || l4+header.TCPLen > len(b) {
			return 0, 0, false
		}
		hdr = l4 + header.TCP(b[l4:]).HeaderLen()
		ok = hdr >= l4+header.TCPLen
	case dpr.GSOUDP:
		hdr = l4 + header.UDPLen
		ok = g.CsumOffset == udpCsumOff
	}
	return l4, hdr, ok && hdr <= len(b)
}

// Left returns how many segments have not been taken yet.
func (s *Splitter) Left() int { return s.n - s.index }

// MaxLen returns the length of the longest segment, headers included, in bytes.
func (s *Splitter) MaxLen() int { return min(s.hdr+s.size, s.pkt.Len) }

// Next puts the next segments into dst, one into each, behind [dpr.Headroom], and
// returns how many: the smaller of len(dst) and Left. With ok false the buffer of
// dst[n] is smaller than dpr.Headroom plus the segment; the segment is not lost.
func (s *Splitter) Next(dst []dpr.Packet) (n int, ok bool) {
	for n < len(dst) && s.Left() > 0 {
		buf := dst[n].Buf
		if len(buf) < dpr.Headroom+min(s.MaxLen(), s.hdr+s.pkt.Len-s.at) {
			return n, false
		}
		hdr, payload := s.Segment(buf[dpr.Headroom:])
		copy(buf[dpr.Headroom+len(hdr):], payload)
		dst[n] = dpr.Packet{
			Buf: buf, Off: dpr.Headroom, Len: len(hdr) + len(payload),
			Peer: s.pkt.Peer, Verdict: s.pkt.Verdict,
		}
		n++
	}
	return n, true
}

// HeaderLen is the length of what Segment puts into its buffer, in bytes.
func (s *Splitter) HeaderLen() int { return s.hdr }

// Segment takes the next segment, of which there must be one, without copying
// its payload. It writes the headers to buf, which must have room for HeaderLen
// bytes, and returns that part of buf and the payload, a part of the super-frame.
func (s *Splitter) Segment(buf []byte) (hdr, payload []byte) {
	b := s.pkt.Bytes()
	end := min(s.at+s.size, len(b))
	hdr, payload = buf[:s.hdr], b[s.at:end]
	if s.hdr > 0 {
		copy(hdr, b)
		s.network(hdr, len(payload))
		s.transport(hdr[s.l4:], payload)
	}
	s.at = end
	s.index++
	return hdr, payload
}

// network writes lengths, identification and checksum of the IP header.
func (s *Splitter) network(hdr []byte, payload int) {
	if header.Version(hdr) == 6 {
		header.IPv6(hdr).SetPayloadLen(s.hdr - header.IPv6Len + payload)
		return
	}
	ip := header.IPv4(hdr)
	length, id := ip.TotalLen(), ip.ID()
	ip.SetTotalLen(s.hdr + payload)
	ip.SetID(id + uint16(s.index))
	sum := checksum.Update16(ip.Checksum(), uint16(length), uint16(s.hdr+payload))
	ip.SetChecksum(checksum.Update16(sum, id, ip.ID()))
}

// transport writes sequence number and flags, or length, and the checksum.
func (s *Splitter) transport(l4, payload []byte) {
	length := uint32(len(l4) + len(payload))
	pseudo := checksum.Fold(s.partial + length)
	if s.pkt.GSO.Type == dpr.GSOUDP {
		udp := header.UDP(l4)
		udp.SetLength(int(length))
		udp.SetChecksum(pseudo)
		sum := checksum.Sum(payload, checksum.Sum(l4, 0))
		udp.SetChecksum(checksum.NonZero(^checksum.Fold(sum)))
		return
	}
	tcp := header.TCP(l4)
	tcp.SetSeq(tcp.Seq() + uint32(s.index*s.size))
	flags := tcp.Flags()
	if s.index > 0 {
		flags &^= header.CWR
	}
	if s.Left() > 1 {
		flags &^= header.FIN | header.PSH
	}
	tcp.SetFlags(flags)
	tcp.SetChecksum(pseudo)
	sum := checksum.Sum(payload, checksum.Sum(l4, 0))
	tcp.SetChecksum(^checksum.Fold(sum))
}
