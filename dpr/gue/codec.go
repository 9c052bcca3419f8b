package gue

import (
	"net/netip"
	"sync/atomic"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/internal/header"
	"github.com/carom-dpr/carom/internal/segment"
	"github.com/carom-dpr/carom/internal/tunnel"
)

// A Codec puts packets into a tunnel's headers and takes them out. It is safe for
// concurrent use, and neither method allocates.
type Codec struct {
	ring atomic.Pointer[keyring]
}

// NewCodec returns a codec that tags with the first of the keys and accepts all
// of them. Without keys it neither tags nor verifies.
func NewCodec(keys ...Key) (*Codec, error) {
	c := &Codec{}
	if err := c.SetKeys(keys...); err != nil {
		return nil, err
	}
	return c, nil
}

// SetKeys replaces the keys. Whether there are any decides about the overhead.
func (c *Codec) SetKeys(keys ...Key) error {
	ring, err := newKeyring(keys)
	if err != nil {
		return err
	}
	c.ring.Store(ring)
	return nil
}

// Variant0 reports whether packets get a GUE header: whether there are keys.
func (c *Codec) Variant0() bool { return c.ring.Load().send != 0 }

// Outer is what the outer headers of a packet say.
type Outer struct {
	// Src and Dst are the tunnel's ends. Both are of one family.
	Src, Dst netip.AddrPort
	// TOS is the byte of DSCP and ECN. Encap ignores it and copies the inner one.
	TOS uint8
	// ID is the identification of an outer IPv4 header.
	ID uint16
	// Hops says how many hosts have passed the packet on before.
	Hops uint8
}

// outerTTL is the hop limit of outer headers: that of an ordinary host.
const outerTTL = 64

// Encap puts p, an ordinary packet with a complete checksum, into outer IP, UDP
// and GUE headers, in place. It reports why it cannot, and then p is unchanged.
func (c *Codec) Encap(p *dpr.Packet, o *Outer) Reason {
	inner := p.Bytes()
	if _, ok := segment.Whole(inner); !ok || p.GSO != (dpr.GSO{}) {
		return Malformed
	}
	src, dst := o.Src.Addr().As16(), o.Dst.Addr().As16()
	var gue [maxLen]byte
	hdr := c.put(gue[:], o.Hops, &src, &dst, inner, nil)
	is6 := !o.Dst.Addr().Unmap().Is4()
	size := Overhead(is6, len(hdr) > 0)
	switch {
	case p.Off < size:
		return NoRoom
	case p.Len+size > dpr.MaxPacket:
		return TooBig
	}
	fields := outerFields{src: &src, dst: &dst, tos: tunnel.TOS(inner), id: o.ID, df: df(inner)}
	p.Off, p.Len = p.Off-size, p.Len+size
	b := p.Bytes()
	udp := b[size-len(hdr)-header.UDPLen:]
	header.PutUDP(udp, &header.UDPFields{SrcPort: o.Src.Port(), DstPort: o.Dst.Port(), Length: len(udp)})
	copy(udp[header.UDPLen:], hdr)
	header.PutChecksum(udp, header.ProtoUDP, &src, &dst)
	fields.put(b, is6)
	return OK
}

// outerFields is what differs between the outer IP headers of two packets.
type outerFields struct {
	src, dst *header.Addr
	tos      uint8
	id       uint16
	df       bool
}

// put writes the outer IP header to the front of b, the whole packet.
func (f *outerFields) put(b []byte, is6 bool) {
	if is6 {
		header.PutIPv6(b, &header.IPv6Fields{
			TOS: f.tos, PayloadLen: len(b) - header.IPv6Len, NextHeader: header.ProtoUDP, HopLimit: outerTTL,
			Src: *f.src, Dst: *f.dst,
		})
		return
	}
	header.PutIPv4(b, &header.IPv4Fields{
		TOS: f.tos, TotalLen: len(b), ID: f.id, DF: f.df, TTL: outerTTL, Protocol: header.ProtoUDP,
		Src: *f.src, Dst: *f.dst,
	})
}

// Decap takes the packet that p carries out of its outer headers, in place, and
// fills o with what they say. Only OK lets p change. The outer checksum must be
// right; whether the addresses are those of a peer is the caller's to say.
func (c *Codec) Decap(p *dpr.Packet, o *Outer) Reason {
	var outer header.Packet
	b := p.Bytes()
	if outer.Parse(b) != header.OK {
		return BadOuter
	}
	if outer.Proto != header.ProtoUDP {
		return NotOurs
	}
	if outer.Fragment || p.GSO != (dpr.GSO{}) || outer.Version == 4 && !header.IPv4(b).ChecksumOK() {
		return BadOuter
	}
	udp := header.UDP(b[outer.L4:outer.Len])
	udp = udp[:udp.Length()]
	if udp.Checksum() == 0 && outer.Version == 6 ||
		udp.Checksum() != 0 && !header.ChecksumOK(udp, header.ProtoUDP, &outer.Src, &outer.Dst) {
		return BadOuter
	}
	inner, hops, why := c.open(udp[header.UDPLen:], &outer.Src, &outer.Dst, outer.TOS)
	if why != OK {
		return why
	}
	*o = Outer{Src: outer.Source(), Dst: outer.Destination(), TOS: outer.TOS, ID: uint16(outer.FragID), Hops: hops}
	p.Off += cap(b) - cap(inner) // inner is a part of b
	p.Len = len(inner)
	return OK
}

// put writes the GUE header, if one is needed, to the front of b, which has room
// for maxLen bytes, and returns that part of b. The inner packet lies in two
// pieces, first and rest, of which the first may be empty.
func (c *Codec) put(b []byte, hops uint8, src, dst *header.Addr, first, rest []byte) []byte {
	ring := c.ring.Load()
	if ring.send == 0 && hops == 0 {
		return b[:0]
	}
	version := header.Version(first)
	if len(first) == 0 {
		version = header.Version(rest)
	}
	b = b[:maxLen]
	clear(b)
	b[0] = privateLen / 4
	b[1] = header.ProtoIPIP
	if version == 6 {
		b[1] = header.ProtoIPv6
	}
	b[baseLen], b[baseLen+1] = hops, ring.send
	if ring.send != 0 {
		be.PutUint64(b[8:], ring.tag(b, src, dst, first, rest))
	}
	return b
}

// open returns the inner packet of the UDP payload b, a part of b, and its hop
// count. It writes the outer ECN into it.
func (c *Codec) open(b []byte, src, dst *header.Addr, outerTOS uint8) (inner []byte, hops uint8, why Reason) {
	ring := c.ring.Load()
	if len(b) == 0 {
		return nil, 0, Short
	}
	proto := uint8(0) // any
	inner = b
	if b[0]&variantMask == variant1 {
		if ring.send != 0 {
			return nil, 0, NoTag
		}
	} else if inner, proto, hops, why = ring.open(b, src, dst); why != OK {
		return nil, 0, why
	}
	inner, ok := segment.Whole(inner)
	if !ok || proto != 0 && (proto == header.ProtoIPv6) != (header.Version(inner) == 6) {
		return nil, 0, BadInner
	}
	if !tunnel.MergeECN(inner, outerTOS) {
		return nil, 0, Congested
	}
	return inner, hops, OK
}

// open reads the header of variant 0 at the front of b and verifies its tag. It
// returns what follows, and the protocol that it should be.
func (r *keyring) open(b []byte, src, dst *header.Addr) (inner []byte, proto, hops uint8, why Reason) {
	if len(b) < baseLen {
		return nil, 0, 0, Short
	}
	size := baseLen + int(b[0]&hlenMask)*4
	switch {
	case b[0]&variantMask != 0 || b[2] != 0 || b[3] != 0:
		return nil, 0, 0, BadHeader
	case size > len(b):
		return nil, 0, 0, Short
	case b[0]&controlBit != 0:
		return nil, 0, 0, Control
	case b[1] != header.ProtoIPIP && b[1] != header.ProtoIPv6:
		return nil, 0, 0, BadHeader
	}
	inner, proto = b[size:], b[1]
	key := uint8(0)
	switch size {
	case baseLen: // no private field
	case maxLen:
		if b[baseLen+2] != 0 || b[baseLen+3] != 0 {
			return nil, 0, 0, BadHeader
		}
		hops, key = b[baseLen], b[baseLen+1]
	default:
		return nil, 0, 0, BadHeader
	}
	switch {
	case r.send == 0: // without keys a tag cannot be verified, and need not be there
	case key == 0:
		return nil, 0, 0, NoTag
	case !r.have[key]:
		return nil, 0, 0, UnknownKey
	case be.Uint64(b[8:]) != r.tag(b, src, dst, inner, nil):
		return nil, 0, 0, BadTag
	}
	if hops > HopLimit {
		return nil, 0, 0, TooManyHops
	}
	return inner, proto, hops, OK
}
