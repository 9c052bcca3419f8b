// Package segment cuts super-frames into the packets they stand for, joins
// received packets into super-frames, and finishes checksums that were left to
// the hardware.
//
// A super-frame is one TCP or UDP packet of up to 64 KiB with a [dpr.GSO] that
// says how long its segments are. A [Splitter] makes of it exactly the packets
// that a network card would send; a [Merger] does the reverse for packets that
// may be joined without loss: cutting what it joined gives the same bytes again.
// Nothing here allocates or blocks, and no value may be used by two goroutines
// at once.
package segment

import (
	"encoding/binary"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/internal/checksum"
	"github.com/carom-dpr/carom/internal/header"
)

// Offsets of the checksum fields in their headers, in bytes.
const (
	tcpCsumOff = 16
	udpCsumOff = 6
	ip4CsumOff = 10
)

var be = binary.BigEndian

// Whole returns the IP packet at the front of b, without what follows it there,
// such as the padding of a short Ethernet frame. It reports false for what is no
// IP packet or is shorter than its header says: that must not be sent on.
func Whole(b []byte) (packet []byte, ok bool) {
	n := 0
	switch {
	case len(b) >= header.IPv4Len && header.Version(b) == 4:
		n = header.IPv4(b).TotalLen()
	case len(b) >= header.IPv6Len && header.Version(b) == 6:
		n = header.IPv6Len + header.IPv6(b).PayloadLen()
	}
	if n < header.IPv4Len || n > len(b) {
		return nil, false
	}
	return b[:n], true
}

// Complete computes the transport checksum of an ordinary packet whose GSO says
// that it is partial, and clears that mark. A packet without the mark is left
// alone. It reports false, and changes nothing, if the checksum would lie outside
// the packet or p is a super-frame.
func Complete(p *dpr.Packet) bool {
	if p.GSO.Type != dpr.GSONone {
		return false
	}
	if !p.GSO.NeedsCsum {
		return true
	}
	b := p.Bytes()
	start, field := int(p.GSO.CsumStart), int(p.GSO.CsumStart)+int(p.GSO.CsumOffset)
	if field+2 > len(b) {
		return false
	}
	sum := ^checksum.Fold(checksum.Sum(b[start:], 0))
	if p.GSO.CsumOffset == udpCsumOff {
		sum = checksum.NonZero(sum)
	}
	be.PutUint16(b[field:], sum)
	p.GSO = dpr.GSO{}
	return true
}
