package segment

import (
	"bytes"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/internal/checksum"
	"github.com/carom-dpr/carom/internal/header"
)

// A Merger joins packets that follow each other in one flow into a super-frame.
//
// It joins only what a [Splitter] can restore byte for byte: TCP segments with
// data, or UDP datagrams with a checksum, whose headers are equal but for what
// segmentation itself writes, in sequence, without IP options or extension
// headers, all of one length but a shorter last one. A segment with FIN or PSH
// is the last. Everything else stays a packet of its own, as it is: what is
// urgent, what has SYN or RST, and what has a wrong checksum, so that a damaged
// packet is never made whole.
type Merger struct {
	dst     *dpr.Packet
	shape   shape
	n       int    // packets joined; 0 if no packet may be joined to dst
	checked bool   // the first packet's checksums are known to be right
	last    uint8  // TCP flags of the last segment
	nextSeq uint32 // TCP sequence number that the next segment must have
}

// shape says where the parts of a packet that may be joined are.
type shape struct {
	l4, hdr int // where transport header and payload start, in bytes
	payload int // length, in bytes
	udp     bool
}

// Start copies the packet b to dst, behind [dpr.Headroom], and makes it the one
// that packets are joined to. It reports false if dst.Buf is too small for it.
// Finish the packet before, if there is one. The Merger writes to dst until
// Finish.
func (m *Merger) Start(dst *dpr.Packet, b []byte) bool {
	*m = Merger{}
	if len(dst.Buf) < dpr.Headroom+len(b) {
		return false
	}
	dst.Off, dst.Len, dst.GSO = dpr.Headroom, copy(dst.Buf[dpr.Headroom:], b), dpr.GSO{}
	var ok bool
	if m.shape, ok = shapeOf(b); !ok {
		return true
	}
	m.dst, m.n = dst, 1
	if !m.shape.udp {
		tcp := header.TCP(b[m.shape.l4:])
		m.last, m.nextSeq = tcp.Flags(), tcp.Seq()+uint32(m.shape.payload)
	}
	return true
}

// maxDatagrams is how many datagrams a super-frame may stand for: UDP_MAX_SEGMENTS of
// kernels before 6.6, which refuse longer ones, as later ones do from twice as many on.
const maxDatagrams = 64

// Append joins the packet b to the one that was started last. It reports false,
// and changes nothing, if that may not be. It copies what it needs of b.
func (m *Merger) Append(b []byte) bool {
	if m.n == 0 || m.last&(header.FIN|header.PSH) != 0 || m.dst.Len != m.shape.hdr+m.n*m.shape.payload {
		return false
	}
	next, ok := shapeOf(b)
	if !ok || next.udp && m.n == maxDatagrams || next.payload > m.shape.payload || m.dst.Len+next.payload > dpr.MaxPacket ||
		m.dst.Off+m.dst.Len+next.payload > len(m.dst.Buf) {
		return false
	}
	if !m.follows(b, next) || !m.firstValid() || !valid(b, next) {
		return false
	}
	m.dst.Len += copy(m.dst.Buf[m.dst.Off+m.dst.Len:], b[next.hdr:])
	m.n++
	if !next.udp {
		m.last = header.TCP(b[next.l4:]).Flags()
		m.nextSeq += uint32(next.payload)
	}
	return true
}

// Finish writes the headers of the super-frame, if more than one packet was
// joined. Nothing can be appended afterwards.
func (m *Merger) Finish() {
	if m.n > 1 {
		m.finish()
	}
	*m = Merger{}
}

func (m *Merger) finish() {
	b, s := m.dst.Bytes(), m.shape
	l4 := b[s.l4:]
	g := dpr.GSO{
		Type: dpr.GSOTCP4, NeedsCsum: true, CsumStart: uint16(s.l4), CsumOffset: tcpCsumOff,
		HdrLen: uint16(s.hdr), Size: uint16(s.payload),
	}
	if header.Version(b) == 6 {
		g.Type = dpr.GSOTCP6
		header.IPv6(b).SetPayloadLen(len(b) - header.IPv6Len)
	} else {
		header.IPv4(b).SetTotalLen(len(b))
		header.IPv4(b).ComputeChecksum()
	}
	if s.udp {
		g.Type, g.CsumOffset = dpr.GSOUDP, udpCsumOff
		header.UDP(l4).SetLength(len(l4))
	} else {
		header.TCP(l4).SetFlags(header.TCP(l4).Flags() | m.last)
	}
	be.PutUint16(l4[g.CsumOffset:], checksum.Fold(pseudo(b, s)))
	m.dst.GSO = g
}

// firstValid checks the first packet's checksums, once, when they are needed.
func (m *Merger) firstValid() bool {
	if !m.checked {
		m.checked = valid(m.dst.Bytes(), m.shape)
		if !m.checked {
			m.n = 0
		}
	}
	return m.checked
}

// follows reports whether b is what the sender's segmentation would have put
// after the packets that m has joined. The fields are compared in the order of
// the headers.
func (m *Merger) follows(b []byte, next shape) bool {
	a, s := m.dst.Bytes(), m.shape
	if next.l4 != s.l4 || next.hdr != s.hdr || next.udp != s.udp || a[0] != b[0] || a[1] != b[1] {
		return false
	}
	if header.Version(a) == 4 {
		if be.Uint16(b[4:]) != be.Uint16(a[4:])+uint16(m.n) || // identification
			!bytes.Equal(a[6:ip4CsumOff], b[6:ip4CsumOff]) || // DF, TTL, protocol
			!bytes.Equal(a[12:header.IPv4Len], b[12:header.IPv4Len]) {
			return false
		}
	} else if !bytes.Equal(a[2:4], b[2:4]) || !bytes.Equal(a[6:header.IPv6Len], b[6:header.IPv6Len]) {
		return false
	}
	a, b = a[s.l4:s.hdr], b[s.l4:s.hdr]
	if !bytes.Equal(a[:4], b[:4]) { // ports
		return false
	}
	return s.udp || m.followsTCP(a, b)
}

func (m *Merger) followsTCP(a, b []byte) bool {
	return be.Uint32(b[4:]) == m.nextSeq &&
		bytes.Equal(a[8:13], b[8:13]) && // acknowledgement, header length, reserved bits
		b[13]&header.CWR == 0 && (a[13]^b[13])&^(header.FIN|header.PSH|header.CWR) == 0 &&
		bytes.Equal(a[14:16], b[14:16]) && // window
		bytes.Equal(a[18:], b[18:]) // urgent pointer, options
}

// shapeOf finds the parts of a packet. It reports false if the packet can be
// joined to none.
func shapeOf(b []byte) (s shape, ok bool) {
	var proto byte
	switch {
	case len(b) >= header.IPv4Len && b[0] == 0x45: // no options
		ip := header.IPv4(b)
		if ip.TotalLen() != len(b) || ip.More() || ip.FragOffset() != 0 {
			return s, false
		}
		s.l4, proto = header.IPv4Len, ip.Protocol()
	case len(b) >= header.IPv6Len && header.Version(b) == 6:
		ip := header.IPv6(b)
		if ip.PayloadLen()+header.IPv6Len != len(b) {
			return s, false
		}
		s.l4, proto = header.IPv6Len, ip.NextHeader()
	default:
		return s, false
	}
	l4 := b[s.l4:]
	switch {
	case proto == header.ProtoTCP && len(l4) >= header.TCPLen:
		tcp := header.TCP(l4)
		s.hdr = s.l4 + tcp.HeaderLen()
		ok = tcp.HeaderLen() >= header.TCPLen && tcp.Flags()&header.ACK != 0 && tcp.Urgent() == 0 &&
			tcp.Flags()&^(header.ACK|header.PSH|header.FIN|header.ECE|header.CWR) == 0
	case proto == header.ProtoUDP && len(l4) >= header.UDPLen:
		s.hdr, s.udp = s.l4+header.UDPLen, true
		ok = header.UDP(l4).Length() == len(l4) && header.UDP(l4).Checksum() != 0
	}
	s.payload = len(b) - s.hdr
	return s, ok && s.payload > 0
}

// valid verifies the packet's checksums. It refuses a zero that is written as
// 0xFFFF where a Splitter would write 0: joined, it could not be restored.
func valid(b []byte, s shape) bool {
	if ip := header.IPv4(b); header.Version(b) == 4 && (!ip.ChecksumOK() || ip.Checksum() == 0xffff) {
		return false
	}
	if !s.udp && header.TCP(b[s.l4:]).Checksum() == 0xffff {
		return false
	}
	return checksum.Fold(checksum.Sum(b[s.l4:], pseudo(b, s))) == 0xffff
}

// pseudo returns the sum of the packet's pseudo-header.
func pseudo(b []byte, s shape) uint32 {
	src, dst := header.IPv4(b).Src(), header.IPv4(b).Dst()
	if header.Version(b) == 6 {
		src, dst = header.IPv6(b).Src(), header.IPv6(b).Dst()
	}
	proto := uint8(header.ProtoTCP)
	if s.udp {
		proto = header.ProtoUDP
	}
	return checksum.Pseudo(src, dst, proto, uint32(len(b)-s.l4))
}
