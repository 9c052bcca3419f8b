package gue

import (
	"github.com/carom-dpr/carom/internal/checksum"
	"github.com/carom-dpr/carom/internal/header"
)

// The ECN field of the byte of DSCP and ECN (RFC 3168).
const (
	ecnNone = 0
	ecnECT1 = 1
	ecnECT0 = 2
	ecnCE   = 3
	ecnMask = 3
)

// ecnOut is the table of RFC 6040, figure 4: the ECN field of a packet that leaves
// a tunnel, by its own and by that of the outer header. A mark on a packet whose
// sender would not understand it is a drop.
var ecnOut = [4][4]uint8{ // [inner][outer]
	ecnNone: {ecnNone, ecnNone, ecnNone, ecnDrop},
	ecnECT1: {ecnECT1, ecnECT1, ecnECT1, ecnCE},
	ecnECT0: {ecnECT0, ecnECT1, ecnECT0, ecnCE},
	ecnCE:   {ecnCE, ecnCE, ecnCE, ecnCE},
}

const ecnDrop = 0xff

// mergeECN brings what the outer header says of congestion into the inner packet.
// It reports false if the packet is to be dropped instead.
func mergeECN(inner []byte, outer uint8) bool {
	old := tos(inner)
	ecn := ecnOut[old&ecnMask][outer&ecnMask]
	switch {
	case ecn == ecnDrop:
		return false
	case ecn == old&ecnMask:
		return true
	}
	next := old&^ecnMask | ecn
	if header.Version(inner) == 6 {
		header.IPv6(inner).SetTOS(next)
		return true
	}
	ip := header.IPv4(inner)
	word := be.Uint16(ip)
	ip.SetTOS(next)
	ip.SetChecksum(checksum.Update16(ip.Checksum(), word, be.Uint16(ip)))
	return true
}
