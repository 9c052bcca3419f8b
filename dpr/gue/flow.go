package gue

import (
	"encoding/binary"
	"math/bits"

	"github.com/carom-dpr/carom/internal/header"
)

// flowHash returns a hash of the flow of an IP packet: of its addresses and, if
// they are at hand, its ports. All packets of a flow have one hash, fragments
// another than the rest. It spreads, it does not protect.
func flowHash(ip []byte) uint32 {
	var addrs [32]byte
	var ports uint32
	l4 := header.IPv6Len
	proto := uint8(0)
	if header.Version(ip) == 4 {
		h := header.IPv4(ip)
		copy(addrs[:], ip[12:20])
		l4 = h.HeaderLen()
		if !h.More() && h.FragOffset() == 0 {
			proto = h.Protocol()
		}
	} else {
		copy(addrs[:], ip[8:40])
		proto = header.IPv6(ip).NextHeader()
	}
	if (proto == header.ProtoTCP || proto == header.ProtoUDP) && len(ip) >= l4+4 {
		ports = be.Uint32(ip[l4:])
	}
	sum := mix(uint64(ports)<<8 | uint64(proto))
	for i := 0; i < len(addrs); i += 8 {
		sum = mix(sum ^ binary.LittleEndian.Uint64(addrs[i:]))
	}
	return uint32(sum >> 32)
}

// mix spreads every bit of x over the result: the two halves of the product with
// an odd constant, the golden ratio's fraction.
func mix(x uint64) uint64 {
	hi, lo := bits.Mul64(x^0x9e3779b97f4a7c15, 0x9e3779b97f4a7c15)
	return hi ^ lo
}
