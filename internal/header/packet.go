package header

import "net/netip"

// A Packet is what [Packet.Parse] found out about an IP packet. It holds no
// pointer and none of the packet's bytes. Keep one per goroutine or batch slot
// and parse into it again and again; it is too large to copy about.
type Packet struct {
	// Src and Dst are the addresses of the IP header; IPv4 addresses are v4-mapped.
	Src, Dst Addr
	// Len is the length of the packet, in bytes, by its header. What the frame
	// holds beyond it is padding. In a quote it is the bytes that are there.
	Len int
	// PayloadLen is the number of bytes after the transport header: of TCP or UDP
	// payload, of an ICMP message after its first eight bytes. For other protocols,
	// and for fragments but the first, it is all bytes from L4 on.
	PayloadLen int
	// Seq and Ack are TCP's sequence and acknowledgement numbers, 0 otherwise.
	Seq, Ack uint32
	// FragID is the identification that the fragments of a packet share. It is set
	// on all IPv4 packets, and on those IPv6 packets that have a fragment header.
	FragID uint32
	// L4 is the offset of the transport header, in bytes, from the start of the
	// packet; in fragments but the first, that of the fragment's payload.
	L4 uint16
	// SrcPort and DstPort are those of TCP and UDP, 0 for all else and in
	// fragments but the first.
	SrcPort, DstPort uint16
	// FragOffset is the fragment's place in the whole, in bytes.
	FragOffset uint16
	// Version is 4 or 6.
	Version uint8
	// Proto is the protocol at L4, behind all IPv6 extension headers. In IPv6
	// fragments but the first it is the header the fragmentable part starts with,
	// which may be an extension header that only the first fragment holds.
	Proto uint8
	// FragProto is the protocol as far as it distinguishes the fragments of one
	// packet from those of another: that of the header in IPv4, always 0 in IPv6,
	// where addresses and FragID alone do (RFC 8200, section 4.5). It is equal in
	// all fragments of a packet.
	FragProto uint8
	// TCPFlags are TCP's flags, 0 otherwise.
	TCPFlags uint8
	// ICMPType and ICMPCode are those of ICMP in IPv4 and of ICMPv6 in IPv6.
	ICMPType, ICMPCode uint8
	// HopLimit is the TTL or hop limit.
	HopLimit uint8
	// TOS is the byte of DSCP and ECN, the traffic class in IPv6.
	TOS uint8
	// Fragment: the packet is a fragment, first or not. An atomic fragment, which
	// is whole, is none (RFC 6946).
	Fragment bool
	// More: more fragments follow this one.
	More bool
	// DF: the packet must not be fragmented on its way, as is every IPv6 packet.
	DF bool
	// RouteDst: an IPv6 routing header has segments left, so Dst is a stop on the
	// way, and the transport checksum covers the last segment instead of it.
	RouteDst bool
	// AH: an authentication header covers the addresses, which must not be changed.
	AH bool
}

// Source returns the source address and port, for people to read.
func (p *Packet) Source() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(p.Src).Unmap(), p.SrcPort)
}

// Destination returns the destination address and port, for people to read.
func (p *Packet) Destination() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(p.Dst).Unmap(), p.DstPort)
}

// IsICMPError reports whether the packet is an ICMP message about another packet,
// which it quotes from offset L4 + ICMPLen on. A fragment but the first is not.
func (p *Packet) IsICMPError() bool {
	switch {
	case p.Fragment && p.FragOffset > 0:
		return false
	case p.Version == 4 && p.Proto == ProtoICMP:
		switch p.ICMPType {
		case ICMPUnreachable, ICMPSourceQuench, ICMPRedirect, ICMPTimeExceeded, ICMPParamProblem:
			return true
		}
		return false
	}
	return p.Version == 6 && p.Proto == ProtoICMPv6 && p.ICMPType < ICMPv6Echo
}
