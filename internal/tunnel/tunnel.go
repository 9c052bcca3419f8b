// Package tunnel has what all tunnels between hosts do alike: what the outer header
// takes over from the inner packet, what comes back from it, and what the kernel must be
// told and asked of the way.
package tunnel

import (
	"encoding/binary"

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

// MergeECN brings what the outer header's byte of DSCP and ECN says of congestion
// into the inner packet, a whole IP packet, and keeps its checksum right. It reports
// false if the packet is to be dropped instead.
func MergeECN(inner []byte, outer uint8) bool {
	old := TOS(inner)
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
	word := binary.BigEndian.Uint16(ip)
	ip.SetTOS(next)
	ip.SetChecksum(checksum.Update16(ip.Checksum(), word, binary.BigEndian.Uint16(ip)))
	return true
}

// TOS returns the byte of DSCP and ECN of an IP packet, which the outer header takes
// over (RFC 6040, normal mode; RFC 2983, uniform going in).
func TOS(ip []byte) uint8 {
	if header.Version(ip) == 4 {
		return header.IPv4(ip).TOS()
	}
	return header.IPv6(ip).TOS()
}

// MayFragment reports whether the outer packet of an IP packet may be fragmented,
// in a tunnel whose longest packet is mtu bytes: where the packet itself may be (RFC
// 2003, section 3.1), and where the tunnel could not carry the 1280 bytes that IPv6
// asks of every link otherwise (RFC 2473, section 7.1). All of a peer's IPv6 packets
// are alike in that, or those of a flow would overtake each other.
func MayFragment(ip []byte, mtu int) bool {
	if header.Version(ip) == 4 {
		return !header.IPv4(ip).DF()
	}
	return mtu < header.IPv6MinMTU
}

// The lengths of what the methods put in front of a packet, in bytes. This is the
// one place that has them.
const (
	outer4 = header.IPv4Len
	outer6 = header.IPv6Len
	udp    = header.UDPLen
)

// IPIP returns what IP in IP adds to a packet, in bytes.
func IPIP(outerIs6 bool) int {
	if outerIs6 {
		return outer6
	}
	return outer4
}

// GUE returns what GUE adds to a packet, in bytes, with a GUE header of that length.
func GUE(outerIs6 bool, gueHeader int) int { return IPIP(outerIs6) + udp + gueHeader }
