package header

import "github.com/carom-dpr/carom/internal/checksum"

// Flags of the TCP header (RFC 9293; ECE and CWR: RFC 3168).
const (
	FIN = 1 << iota
	SYN
	RST
	PSH
	ACK
	URG
	ECE
	CWR
)

// TCP is a TCP segment, at least its header (RFC 9293).
type TCP []byte

// SrcPort returns the source port.
func (h TCP) SrcPort() uint16 { return be.Uint16(h) }

// DstPort returns the destination port.
func (h TCP) DstPort() uint16 { return be.Uint16(h[2:]) }

// Seq returns the sequence number of the first payload byte, or of the SYN.
func (h TCP) Seq() uint32 { return be.Uint32(h[4:]) }

// Ack returns the next sequence number that the sender waits for.
func (h TCP) Ack() uint32 { return be.Uint32(h[8:]) }

// HeaderLen returns the length of the header and its options, in bytes.
func (h TCP) HeaderLen() int { return int(h[12]>>4) * 4 }

// Flags returns the eight flags.
func (h TCP) Flags() uint8 { return h[13] }

// Window returns the window field, unscaled.
func (h TCP) Window() uint16 { return be.Uint16(h[14:]) }

// Checksum returns the checksum field.
func (h TCP) Checksum() uint16 { return be.Uint16(h[16:]) }

// Urgent returns the urgent pointer.
func (h TCP) Urgent() uint16 { return be.Uint16(h[18:]) }

// Options returns the bytes of the options.
func (h TCP) Options() []byte { return h[TCPLen:h.HeaderLen()] }

// SetSrcPort stores the source port; the checksum is left to the caller.
func (h TCP) SetSrcPort(port uint16) { be.PutUint16(h, port) }

// SetDstPort stores the destination port; the checksum is left to the caller.
func (h TCP) SetDstPort(port uint16) { be.PutUint16(h[2:], port) }

// SetSeq stores the sequence number; the checksum is left to the caller.
func (h TCP) SetSeq(seq uint32) { be.PutUint32(h[4:], seq) }

// SetFlags stores the eight flags; the checksum is left to the caller.
func (h TCP) SetFlags(flags uint8) { h[13] = flags }

// SetChecksum stores the checksum field.
func (h TCP) SetChecksum(sum uint16) { be.PutUint16(h[16:], sum) }

// TCPFields is what [PutTCP] writes.
type TCPFields struct {
	SrcPort, DstPort uint16
	Seq, Ack         uint32
	Flags            uint8
	Window           uint16
	Options          []byte // at most 40 bytes, padded with end-of-list bytes to a multiple of four
}

// PutTCP writes a TCP header to the front of b and returns its length in bytes.
// The checksum is 0; see [PutChecksum].
func PutTCP(b []byte, f *TCPFields) int {
	n := TCPLen + (len(f.Options)+3)/4*4
	h := TCP(b[:n])
	clear(h[12:])
	h.SetSrcPort(f.SrcPort)
	h.SetDstPort(f.DstPort)
	h.SetSeq(f.Seq)
	be.PutUint32(h[8:], f.Ack)
	h[12] = uint8(n/4) << 4
	h[13] = f.Flags
	be.PutUint16(h[14:], f.Window)
	copy(h[TCPLen:], f.Options)
	return n
}

// UDP is a UDP datagram, at least its header (RFC 768).
type UDP []byte

// SrcPort returns the source port.
func (h UDP) SrcPort() uint16 { return be.Uint16(h) }

// DstPort returns the destination port.
func (h UDP) DstPort() uint16 { return be.Uint16(h[2:]) }

// Length returns the length of header and payload, in bytes, by the header.
func (h UDP) Length() int { return int(be.Uint16(h[4:])) }

// Checksum returns the checksum field; 0 means that there is none.
func (h UDP) Checksum() uint16 { return be.Uint16(h[6:]) }

// SetSrcPort stores the source port; the checksum is left to the caller.
func (h UDP) SetSrcPort(port uint16) { be.PutUint16(h, port) }

// SetDstPort stores the destination port; the checksum is left to the caller.
func (h UDP) SetDstPort(port uint16) { be.PutUint16(h[2:], port) }

// SetLength stores the length; the checksum is left to the caller.
func (h UDP) SetLength(n int) { be.PutUint16(h[4:], uint16(n)) }

// SetChecksum stores the checksum field.
func (h UDP) SetChecksum(sum uint16) { be.PutUint16(h[6:], sum) }

// UDPFields is what [PutUDP] writes.
type UDPFields struct {
	SrcPort, DstPort uint16
	Length           int // of header and payload, in bytes
}

// PutUDP writes a UDP header of eight bytes to the front of b. The checksum is 0,
// which says that there is none; see [PutChecksum].
func PutUDP(b []byte, f *UDPFields) {
	h := UDP(b[:UDPLen])
	h.SetSrcPort(f.SrcPort)
	h.SetDstPort(f.DstPort)
	h.SetLength(f.Length)
	h.SetChecksum(0)
}

// ChecksumOffset returns where the checksum of a protocol lies in its header, in
// bytes; ok is false for protocols that this package does not know.
func ChecksumOffset(proto uint8) (offset int, ok bool) {
	switch proto {
	case ProtoTCP:
		return 16, true
	case ProtoUDP:
		return 6, true
	case ProtoICMP, ProtoICMPv6:
		return 2, true
	}
	return 0, false
}

// transportSum returns the sum that the checksum of a transport header and its
// payload is made of. ICMP for IPv4 has no pseudo-header.
func transportSum(l4 []byte, proto uint8, src, dst *Addr) uint16 {
	var initial uint32
	if proto != ProtoICMP {
		initial = checksum.Pseudo(src[:], dst[:], proto, uint32(len(l4)))
	}
	return checksum.Fold(checksum.Sum(l4, initial))
}

// PutChecksum computes the checksum of l4, a whole TCP, UDP, ICMP or ICMPv6
// message, and stores it there. It does nothing for other protocols.
func PutChecksum(l4 []byte, proto uint8, src, dst *Addr) {
	offset, ok := ChecksumOffset(proto)
	if !ok {
		return
	}
	be.PutUint16(l4[offset:], 0)
	sum := ^transportSum(l4, proto, src, dst)
	if proto == ProtoUDP {
		sum = checksum.NonZero(sum)
	}
	be.PutUint16(l4[offset:], sum)
}

// ChecksumOK reports whether the checksum of l4, a whole TCP, UDP, ICMP or ICMPv6
// message, is right. A UDP checksum of 0 is not: whether a datagram may go without
// one is the caller's to say. Behind an IPv6 routing header with segments left,
// dst is the last segment, not the destination of the IP header (RFC 8200,
// section 8.1).
func ChecksumOK(l4 []byte, proto uint8, src, dst *Addr) bool {
	if _, ok := ChecksumOffset(proto); !ok {
		return false
	}
	if proto == ProtoUDP && UDP(l4).Checksum() == 0 {
		return false
	}
	return transportSum(l4, proto, src, dst) == 0xffff
}
