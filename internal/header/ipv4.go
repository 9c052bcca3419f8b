package header

import "github.com/carom-dpr/carom/internal/checksum"

// Bits of the IPv4 word that holds flags and fragment offset.
const (
	ipv4DF         = 0x4000
	ipv4MF         = 0x2000
	ipv4OffsetMask = 0x1fff // in units of eight bytes
)

// IPv4 is an IPv4 packet, at least its header (RFC 791).
type IPv4 []byte

// HeaderLen returns the length of the header and its options, in bytes.
func (h IPv4) HeaderLen() int { return int(h[0]&0xf) * 4 }

// TOS returns the byte of DSCP and ECN.
func (h IPv4) TOS() uint8 { return h[1] }

// TotalLen returns the length of the packet, in bytes, by its header.
func (h IPv4) TotalLen() int { return int(be.Uint16(h[2:])) }

// ID returns the identification that the fragments of a packet share.
func (h IPv4) ID() uint16 { return be.Uint16(h[4:]) }

// DF reports whether the packet must not be fragmented.
func (h IPv4) DF() bool { return h[6]&(ipv4DF>>8) != 0 }

// More reports whether more fragments follow this one.
func (h IPv4) More() bool { return h[6]&(ipv4MF>>8) != 0 }

// FragOffset returns the place of the fragment's payload in the whole, in bytes.
func (h IPv4) FragOffset() int { return int(be.Uint16(h[6:])&ipv4OffsetMask) * 8 }

// TTL returns the hop limit.
func (h IPv4) TTL() uint8 { return h[8] }

// Protocol returns the number of the protocol of the payload.
func (h IPv4) Protocol() uint8 { return h[9] }

// Checksum returns the checksum field.
func (h IPv4) Checksum() uint16 { return be.Uint16(h[10:]) }

// Src returns the bytes of the source address.
func (h IPv4) Src() []byte { return h[12:16:16] }

// Dst returns the bytes of the destination address.
func (h IPv4) Dst() []byte { return h[16:20:20] }

// Payload returns what follows the header up to the total length.
func (h IPv4) Payload() []byte { return h[h.HeaderLen():h.TotalLen()] }

// SetTOS stores the byte of DSCP and ECN; the checksum is left to the caller.
func (h IPv4) SetTOS(tos uint8) { h[1] = tos }

// SetTotalLen stores the length of the packet; the checksum is left to the caller.
func (h IPv4) SetTotalLen(n int) { be.PutUint16(h[2:], uint16(n)) }

// SetID stores the identification; the checksum is left to the caller.
func (h IPv4) SetID(id uint16) { be.PutUint16(h[4:], id) }

// SetFragment stores the three fields of fragmentation; offset is in bytes, a
// multiple of eight. The checksum is left to the caller.
func (h IPv4) SetFragment(df, more bool, offset int) {
	word := uint16(offset/8) & ipv4OffsetMask
	if df {
		word |= ipv4DF
	}
	if more {
		word |= ipv4MF
	}
	be.PutUint16(h[6:], word)
}

// SetTTL stores the hop limit; the checksum is left to the caller.
func (h IPv4) SetTTL(ttl uint8) { h[8] = ttl }

// SetChecksum stores the checksum field.
func (h IPv4) SetChecksum(sum uint16) { be.PutUint16(h[10:], sum) }

// ComputeChecksum computes the header's checksum from zero and stores it.
func (h IPv4) ComputeChecksum() {
	h.SetChecksum(0)
	h.SetChecksum(^checksum.Fold(checksum.Sum(h[:h.HeaderLen()], 0)))
}

// ChecksumOK reports whether the header's checksum is right.
func (h IPv4) ChecksumOK() bool {
	return checksum.Fold(checksum.Sum(h[:h.HeaderLen()], 0)) == 0xffff
}

// DecrementTTL lowers the hop limit by one and updates the checksum. The hop
// limit must not be 0.
func (h IPv4) DecrementTTL() {
	b := (*[12]byte)(h)
	b[8]--
	// Equation 3 of RFC 1624, in which ~m + m' is the same whatever m is.
	sum := uint32(^be.Uint16(b[10:])) + 0xfeff
	be.PutUint16(b[10:], ^uint16(sum+sum>>16))
}

// IPv4Fields is what [PutIPv4] writes.
type IPv4Fields struct {
	TOS        uint8
	TotalLen   int // of header and payload, in bytes
	ID         uint16
	DF, More   bool
	FragOffset int // in bytes, a multiple of eight
	TTL        uint8
	Protocol   uint8
	Src, Dst   Addr // v4-mapped
}

// PutIPv4 writes an IPv4 header of 20 bytes, with its checksum, to the front of b.
func PutIPv4(b []byte, f *IPv4Fields) {
	h := IPv4(b[:IPv4Len])
	h[0] = 4<<4 | IPv4Len/4
	h[1] = f.TOS
	h.SetTotalLen(f.TotalLen)
	h.SetID(f.ID)
	h.SetFragment(f.DF, f.More, f.FragOffset)
	h[8], h[9] = f.TTL, f.Protocol
	copy(h[12:], f.Src[12:])
	copy(h[16:], f.Dst[12:])
	h.ComputeChecksum()
}
