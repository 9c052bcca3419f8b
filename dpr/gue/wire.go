package gue

import (
	"encoding/binary"
	"fmt"

	"github.com/carom-dpr/carom/internal/header"
	"github.com/carom-dpr/carom/internal/tunnel"
)

// Port is the UDP port that IANA gave GUE.
const Port = 6080

// HopLimit is the highest hop count that is accepted: a packet may be passed on
// once by a host that turns out not to serve its flow, and once more.
const HopLimit = 2

const (
	baseLen    = 4  // of the variant 0 header, in bytes
	privateLen = 12 // of our private field
	maxLen     = baseLen + privateLen

	variantMask = 0xc0
	variant1    = 0x40 // the two first bits of IPv4 (0100) and of IPv6 (0110)
	controlBit  = 0x20
	hlenMask    = 0x1f // header length beyond the base, in words of 4 bytes
)

var be = binary.BigEndian

// Overhead is what the tunnel adds to each packet, in bytes: the outer IP and UDP
// headers, and the GUE header if there is one, which is the case with keys.
//
//	               variant 1  variant 0
//	IPv4 outside       28         44
//	IPv6 outside       48         64
func Overhead(outerIs6, variant0 bool) int {
	if variant0 {
		return tunnel.GUE(outerIs6, maxLen)
	}
	return tunnel.GUE(outerIs6, 0)
}

// A Reason says why a packet was dropped. The zero Reason is OK: it was not.
type Reason uint8

// The reasons.
const (
	OK Reason = iota

	// On receipt.

	// UnknownPeer: the outer source is no peer's address.
	UnknownPeer
	// Short: the datagram ends inside a header.
	Short
	// BadHeader: the GUE header is of an unknown variant, or has fields that this
	// package does not know.
	BadHeader
	// Control: a control message, and nobody who takes it.
	Control
	// TooManyHops: the hop count is above HopLimit.
	TooManyHops
	// NoTag: there are keys, and the datagram is not tagged.
	NoTag
	// UnknownKey: the datagram is tagged with a key that this host does not have.
	UnknownKey
	// BadTag: the tag does not match.
	BadTag
	// BadInner: what the tunnel carries is no whole IP packet.
	BadInner
	// Congested: the outer packet was marked with congestion experienced, and the
	// inner one says that its sender does not understand ECN (RFC 6040, section 4.2).
	Congested
	// Cut: the datagram was longer than the receive buffer.
	Cut
	// NotOurs: the packet is no UDP datagram for this tunnel's port. A device
	// under OverIP may deliver such.
	NotOurs
	// BadOuter: the outer headers are malformed, their checksum is wrong, or they
	// are those of a fragment.
	BadOuter

	// On sending.

	// NoPeer: the packet's Peer is not in the list.
	NoPeer
	// Malformed: the packet is no IP packet, or no valid super-frame.
	Malformed
	// TooBig: the packet with its overhead exceeds the MTU towards the peer.
	TooBig
	// NoRoom: the packet's buffer has no room for outer headers.
	NoRoom
	// Refused: the kernel would not send the datagram: no route, a firewall.
	Refused

	// On receipt of control messages.

	// Replayed: the message is not newer than the last one of its sender.
	Replayed

	// NumReasons is the number of reasons, for arrays of counters.
	NumReasons
)

// String returns the reason in lower-case words joined by hyphens, as labels of
// metrics are.
func (r Reason) String() string {
	if r >= NumReasons {
		return fmt.Sprintf("reason %d", uint8(r))
	}
	return [...]string{
		"ok", "unknown-peer", "short", "bad-header", "control", "too-many-hops", "no-tag", "unknown-key",
		"bad-tag", "bad-inner-packet", "congested", "cut", "not-ours", "bad-outer-header",
		"no-peer", "malformed", "too-big", "no-room", "refused", "replayed",
	}[r]
}

// df reports whether an IP packet must not be fragmented.
func df(ip []byte) bool {
	return header.Version(ip) != 4 || header.IPv4(ip).DF()
}
