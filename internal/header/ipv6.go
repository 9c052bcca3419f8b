package header

// IPv6 is an IPv6 packet, at least its fixed header (RFC 8200).
type IPv6 []byte

// TOS returns the traffic class: DSCP and ECN.
func (h IPv6) TOS() uint8 { return h[0]<<4 | h[1]>>4 }

// FlowLabel returns the flow label, 20 bits.
func (h IPv6) FlowLabel() uint32 { return be.Uint32(h) & 0xfffff }

// PayloadLen returns the number of bytes after the fixed header, by that header.
func (h IPv6) PayloadLen() int { return int(be.Uint16(h[4:])) }

// NextHeader returns the number of the header that follows.
func (h IPv6) NextHeader() uint8 { return h[6] }

// HopLimit returns the hop limit.
func (h IPv6) HopLimit() uint8 { return h[7] }

// Src returns the bytes of the source address.
func (h IPv6) Src() []byte { return h[8:24:24] }

// Dst returns the bytes of the destination address.
func (h IPv6) Dst() []byte { return h[24:40:40] }

// Payload returns what follows the fixed header up to the payload length.
func (h IPv6) Payload() []byte { return h[IPv6Len : IPv6Len+h.PayloadLen()] }

// SetTOS stores the traffic class.
func (h IPv6) SetTOS(tos uint8) {
	h[0] = 6<<4 | tos>>4
	h[1] = tos<<4 | h[1]&0xf
}

// SetPayloadLen stores the number of bytes after the fixed header.
func (h IPv6) SetPayloadLen(n int) { be.PutUint16(h[4:], uint16(n)) }

// SetNextHeader stores the number of the header that follows.
func (h IPv6) SetNextHeader(proto uint8) { h[6] = proto }

// SetHopLimit stores the hop limit.
func (h IPv6) SetHopLimit(limit uint8) { h[7] = limit }

// IPv6Fields is what [PutIPv6] writes.
type IPv6Fields struct {
	TOS        uint8
	FlowLabel  uint32 // 20 bits
	PayloadLen int    // of all that follows, in bytes
	NextHeader uint8
	HopLimit   uint8
	Src, Dst   Addr
}

// PutIPv6 writes an IPv6 header of 40 bytes to the front of b.
func PutIPv6(b []byte, f *IPv6Fields) {
	h := IPv6(b[:IPv6Len])
	be.PutUint32(h, 6<<28|uint32(f.TOS)<<20|f.FlowLabel&0xfffff)
	h.SetPayloadLen(f.PayloadLen)
	h[6], h[7] = f.NextHeader, f.HopLimit
	copy(h[8:], f.Src[:])
	copy(h[24:], f.Dst[:])
}

// PutIPv6Fragment writes a fragment header of eight bytes to the front of b;
// offset is in bytes, a multiple of eight.
func PutIPv6Fragment(b []byte, nextHeader uint8, offset int, more bool, id uint32) {
	b[0], b[1] = nextHeader, 0
	word := uint16(offset)
	if more {
		word |= 1
	}
	be.PutUint16(b[2:], word)
	be.PutUint32(b[4:], id)
}
