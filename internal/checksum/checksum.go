// Package checksum computes and updates the Internet checksum of RFC 1071.
//
// A sum is a ones-complement sum of 16-bit big-endian words; a checksum is what
// a header field holds, the complement of a folded sum. Sums are built with
// [Sum] and [Pseudo], one on top of the other, and end in [Fold]. Checksums that
// are there already are changed with the Update functions, which follow
// equation 3 of RFC 1624: a packet that came in wrong leaves wrong by the same
// difference, and is never laundered into a valid one.
//
// No function allocates, keeps its arguments or fails.
package checksum

import (
	"encoding/binary"
	"math/bits"
)

// Sum adds the bytes of b to a sum and returns the new sum, which is not folded.
// A last odd byte counts as if a zero byte followed it, so only the last of
// several runs may be of odd length.
//
// The words are loaded in little-endian order, eight bytes at a step, and the
// two bytes of the result are swapped at the end: a ones-complement sum does not
// depend on byte order (RFC 1071, section 2B). Long runs are added up in two chains
// of carries, each of which ends after 32 bytes, so that the processor works on
// several at once.
func Sum(b []byte, initial uint32) uint32 {
	var acc, other, carries, carry uint64
	for len(b) >= 64 {
		acc, carry = add32(acc, b)
		carries += carry
		other, carry = add32(other, b[32:])
		carries += carry
		b = b[64:]
	}
	acc, carry = bits.Add64(acc, other, 0)
	acc, carry = bits.Add64(acc, carries, carry)
	for len(b) >= 8 {
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(b), carry)
		b = b[8:]
	}
	acc, carry = bits.Add64(acc, tail(b), carry)
	acc, carry = bits.Add64(acc, 0, carry)
	acc += carry // cannot overflow: the addition before left 0 if it carried

	acc = acc>>32 + acc&0xffffffff
	acc = acc>>32 + acc&0xffffffff
	sum := bits.ReverseBytes16(Fold(uint32(acc)))
	low, over := bits.Add32(initial, uint32(sum), 0)
	return low + over
}

// add32 adds the first 32 bytes of b to acc, and returns the carry apart.
func add32(acc uint64, b []byte) (sum, carry uint64) {
	_ = b[31]
	acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(b), 0)
	acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(b[8:]), carry)
	acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(b[16:]), carry)
	return bits.Add64(acc, binary.LittleEndian.Uint64(b[24:]), carry)
}

// tail returns the fewer than eight bytes of b as a little-endian number.
func tail(b []byte) uint64 {
	var v uint64
	shift := 0
	if len(b) >= 4 {
		v = uint64(binary.LittleEndian.Uint32(b))
		b, shift = b[4:], 32
	}
	if len(b) >= 2 {
		v |= uint64(binary.LittleEndian.Uint16(b)) << shift
		b, shift = b[2:], shift+16
	}
	if len(b) > 0 {
		v |= uint64(b[0]) << shift
	}
	return v
}

// Fold reduces a sum to 16 bits with end-around carry. It does not complement:
// the checksum of a packet is ^Fold(sum). A packet whose checksum field is part
// of the sum is valid if the sum folds to 0xFFFF.
func Fold(sum uint32) uint16 {
	sum = sum>>16 + sum&0xffff
	return uint16(sum>>16 + sum)
}

// Pseudo returns the sum of the pseudo-header that transport checksums cover:
// both addresses, of 4 or of 16 bytes each, the protocol, and the length in bytes
// of the transport header and its payload (RFC 9293, section 3.1; RFC 8200,
// section 8.1). An IPv4 address in its v4-mapped form of 16 bytes gives an equal
// sum, since 0xFFFF is a zero of ones-complement arithmetic.
func Pseudo(src, dst []byte, proto uint8, length uint32) uint32 {
	return Sum(src, Sum(dst, length>>16+length&0xffff+uint32(proto)))
}

// Update16 returns the checksum field of a packet in which one aligned 16-bit
// word, old, has been replaced by new (RFC 1624, equation 3). It is right for
// every field but that of UDP over which [UpdateUDP] watches.
func Update16(sum, old, new uint16) uint16 {
	return ^Fold(uint32(^sum) + uint32(^old) + uint32(new))
}

// Update is [Update16] for a run of bytes, such as an address. Both runs start
// at an even offset in the packet and are of even length; they need not be
// equally long.
func Update(sum uint16, old, new []byte) uint16 {
	return Update16(sum, Fold(Sum(old, 0)), Fold(Sum(new, 0)))
}

// UpdatePartial is [Update] for a checksum field that holds the folded sum of the
// pseudo-header alone, not complemented, because the device has yet to add the
// rest (virtio_net_hdr's NEEDS_CSUM). Only changes of the pseudo-header count.
func UpdatePartial(sum uint16, old, new []byte) uint16 {
	return ^Update(^sum, old, new)
}

// UpdateUDP is [Update] for the checksum field of UDP, where zero means that the
// sender computed none: zero stays zero, and a zero that comes out is stored as
// 0xFFFF, which is the same sum (RFC 768).
func UpdateUDP(sum uint16, old, new []byte) uint16 {
	if sum == 0 {
		return 0
	}
	return NonZero(Update(sum, old, new))
}

// NonZero returns the value to store in a UDP checksum field for a computed
// checksum: 0xFFFF for 0, which would mean that there is none (RFC 768). TCP,
// ICMP and the IPv4 header have no such case.
func NonZero(sum uint16) uint16 {
	if sum == 0 {
		return 0xffff
	}
	return sum
}
