// Package header reads and writes the headers of IPv4, IPv6, TCP, UDP and ICMP.
//
// It has two halves. [Packet.Parse] looks once at a packet that came from
// outside, judges whether its headers can be trusted, and notes what an engine
// needs to know. The views ([IPv4], [IPv6], [TCP], [UDP], [ICMP]) are byte slices
// with accessors for the fields; they check nothing, and are for bytes that Parse
// has accepted or that the caller wrote. A view shares the packet's memory.
//
// Nothing here allocates, keeps its arguments or verifies a checksum unasked.
package header

import "encoding/binary"

// Protocol numbers of the IP header and of IPv6 extension headers (IANA).
const (
	ProtoHopByHop = 0
	ProtoICMP     = 1
	ProtoIPIP     = 4
	ProtoTCP      = 6
	ProtoUDP      = 17
	ProtoIPv6     = 41
	ProtoRouting  = 43
	ProtoFragment = 44
	ProtoESP      = 50
	ProtoAH       = 51
	ProtoICMPv6   = 58
	ProtoNone     = 59
	ProtoDestOpts = 60
)

// Lengths of headers, in bytes, without options.
const (
	IPv4Len         = 20
	IPv4MaxLen      = 60
	IPv6Len         = 40
	IPv6FragmentLen = 8
	TCPLen          = 20
	UDPLen          = 8
	ICMPLen         = 8
)

// The smallest MTU, in bytes, that a link of each version must have (RFC 791,
// RFC 8200); an ICMP error never announces less.
const (
	IPv4MinMTU = 68
	IPv6MinMTU = 1280
)

var be = binary.BigEndian

// An Addr is an IPv6 address, or an IPv4 address in its v4-mapped form
// (::ffff:192.0.2.1), so that both versions share code and tables. It converts
// to and from netip with netip.AddrFrom16 and Addr.As16.
type Addr = [16]byte

// V4 returns the v4-mapped form of the first four bytes of b.
func V4(b []byte) (a Addr) {
	mapV4(&a, b)
	return a
}

// mapV4 writes the v4-mapped form of the first four bytes of b to a, which is
// zero. It writes in place, since the parser would otherwise wait for an Addr
// that was stored in parts to be loaded whole.
func mapV4(a *Addr, b []byte) {
	be.PutUint64(a[8:], 0xffff<<32|uint64(be.Uint32(b))) // one store, which later loads need not wait for
}

// Version returns the version that the first nibble of a packet names, 0 for an
// empty packet.
func Version(b []byte) uint8 {
	if len(b) == 0 {
		return 0
	}
	return b[0] >> 4
}
