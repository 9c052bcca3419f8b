// Package dprtest helps to test what handles packets: it builds them, checks them,
// and carries them.
//
// [TCP], [UDP], [ICMP] and their relatives build whole IP packets, right by
// default and wrong on request. [Check] gives an independent opinion on a packet,
// with gopacket as its decoder, and [Describe] and [Diff] put packets into words.
// A [Network] joins endpoints in memory over links with loss, delay, reordering,
// duplication and an MTU; an [Endpoint] is a dpr.Device, and works under
// testing/synctest, where seconds of delay cost no time.
//
// The builders panic on arguments that make no sense, such as addresses of two
// versions: that is a mistake in a test, and is best seen there.
package dprtest

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"slices"
	"strings"

	"github.com/carom-dpr/carom/internal/checksum"
	"github.com/carom-dpr/carom/internal/header"
)

// Flags are the flags of a TCP header.
type Flags uint8

// The flags of TCP (RFC 9293, RFC 3168).
const (
	FIN Flags = 1 << iota
	SYN
	RST
	PSH
	ACK
	URG
	ECE
	CWR
)

// String returns the flags' initials, SYN and ACK as "SA". ECE is "E", CWR "C".
func (f Flags) String() string {
	var b strings.Builder
	for i, c := range "FSRPAUEC" {
		if f&(1<<i) != 0 {
			b.WriteRune(c)
		}
	}
	return b.String()
}

// Checksum says what a builder stores in the checksum field of TCP, UDP or ICMP.
type Checksum uint8

const (
	// Right is the checksum that belongs there.
	Right Checksum = iota
	// Wrong is one more than the right one, modulo 0xFFFF.
	Wrong
	// Partial is the sum of the pseudo-header alone, as a stack leaves it to a
	// device that finishes checksums.
	Partial
	// None is 0. Over IPv4 it says that a UDP datagram has no checksum.
	None
)

// Options describes what of a packet is out of the ordinary. The zero Options
// stand for an ordinary packet; fields of other protocols are ignored.
type Options struct {
	// Flags are TCP's.
	Flags Flags
	// Seq and Ack are TCP's sequence and acknowledgement numbers.
	Seq, Ack uint32
	// Window is TCP's, unscaled; 0 stands for 65,535.
	Window uint16
	// MSS, if not 0, is the value of a TCP option of that name, which comes before
	// the TCPOptions.
	MSS uint16
	// TCPOptions are padded to a multiple of four bytes.
	TCPOptions []byte
	// Payload is what follows the transport header. It is copied.
	Payload []byte
	// Checksum is what the checksum field of the transport header holds.
	Checksum Checksum

	// TTL is the TTL or hop limit; 0 stands for 64.
	TTL uint8
	// TOS is DSCP and ECN, the traffic class in IPv6.
	TOS uint8
	// DF forbids to fragment an IPv4 packet.
	DF bool
	// ID is the identification of an IPv4 packet.
	ID uint16
	// IPOptions are those of an IPv4 packet, padded to a multiple of four bytes.
	IPOptions []byte
	// Extensions are the extension headers of an IPv6 packet, in order.
	Extensions []Extension
}

// TCP returns a TCP segment from src to dst.
func TCP(src, dst netip.AddrPort, o Options) []byte {
	f := header.TCPFields{
		SrcPort: src.Port(), DstPort: dst.Port(), Seq: o.Seq, Ack: o.Ack,
		Flags: uint8(o.Flags), Window: o.Window, Options: o.TCPOptions,
	}
	if f.Window == 0 {
		f.Window = 65535
	}
	if o.MSS != 0 {
		f.Options = append([]byte{2, 4, byte(o.MSS >> 8), byte(o.MSS)}, o.TCPOptions...)
	}
	l4 := make([]byte, header.TCPLen+len(f.Options)+3+len(o.Payload))
	n := header.PutTCP(l4, &f)
	n += copy(l4[n:], o.Payload)
	return packet(src.Addr(), dst.Addr(), header.ProtoTCP, l4[:n], o)
}

// UDP returns a UDP datagram from src to dst.
func UDP(src, dst netip.AddrPort, o Options) []byte {
	l4 := make([]byte, header.UDPLen, header.UDPLen+len(o.Payload))
	header.PutUDP(l4, &header.UDPFields{SrcPort: src.Port(), DstPort: dst.Port(), Length: header.UDPLen + len(o.Payload)})
	return packet(src.Addr(), dst.Addr(), header.ProtoUDP, append(l4, o.Payload...), o)
}

// ICMP returns an ICMP message, or an ICMPv6 one between IPv6 addresses. rest is
// bytes four to seven of it, whose meaning depends on the type.
func ICMP(src, dst netip.Addr, kind, code uint8, rest uint32, o Options) []byte {
	l4 := make([]byte, header.ICMPLen, header.ICMPLen+len(o.Payload))
	header.PutICMP(l4, &header.ICMPFields{Type: kind, Code: code, Rest: rest})
	proto := uint8(header.ProtoICMP)
	if src.Unmap().Is6() {
		proto = header.ProtoICMPv6
	}
	return packet(src, dst, proto, append(l4, o.Payload...), o)
}

// IP returns a packet of any other protocol, such as 4 for IPv4 in IP, whose
// payload is o.Payload.
func IP(src, dst netip.Addr, proto uint8, o Options) []byte {
	return packet(src, dst, proto, o.Payload, o)
}

// packet stores the checksum that the options ask for in l4 and puts an IP header
// before it.
func packet(src, dst netip.Addr, proto uint8, l4 []byte, o Options) []byte {
	src, dst = src.Unmap(), dst.Unmap()
	if !src.IsValid() || src.Is4() != dst.Is4() {
		panic("dprtest: addresses " + src.String() + " and " + dst.String() + " are not of one version")
	}
	if o.TTL == 0 {
		o.TTL = 64
	}
	if src.Is4() {
		storeChecksum(l4, proto, src.As16(), dst.As16(), o.Checksum)
		return packet4(src, dst, proto, l4, o)
	}
	storeChecksum(l4, proto, src.As16(), lastStop(dst, o.Extensions), o.Checksum)
	return packet6(src, dst, proto, l4, o)
}

func packet4(src, dst netip.Addr, proto uint8, l4 []byte, o Options) []byte {
	headerLen := header.IPv4Len + (len(o.IPOptions)+3)/4*4
	if headerLen > header.IPv4MaxLen || headerLen+len(l4) > 65535 {
		panic("dprtest: the IPv4 packet is too long")
	}
	b := make([]byte, headerLen, headerLen+len(l4))
	header.PutIPv4(b, &header.IPv4Fields{
		TOS: o.TOS, TotalLen: headerLen + len(l4), ID: o.ID, DF: o.DF, TTL: o.TTL, Protocol: proto,
		Src: src.As16(), Dst: dst.As16(),
	})
	b[0] = 4<<4 | byte(headerLen/4)
	copy(b[header.IPv4Len:], o.IPOptions)
	header.IPv4(b).ComputeChecksum()
	return append(b, l4...)
}

func packet6(src, dst netip.Addr, proto uint8, l4 []byte, o Options) []byte {
	b := make([]byte, header.IPv6Len)
	next := 6 // where the number of the header that follows goes
	for _, e := range o.Extensions {
		b[next] = e.Proto
		next = len(b)
		b = append(b, e.Header...)
	}
	b[next] = proto
	first := b[6]
	b = append(b, l4...)
	if len(b)-header.IPv6Len > 65535 {
		panic("dprtest: the IPv6 packet is too long")
	}
	header.PutIPv6(b, &header.IPv6Fields{
		TOS: o.TOS, PayloadLen: len(b) - header.IPv6Len, NextHeader: first, HopLimit: o.TTL,
		Src: src.As16(), Dst: dst.As16(),
	})
	return b
}

func storeChecksum(l4 []byte, proto uint8, src, dst header.Addr, c Checksum) {
	offset, ok := header.ChecksumOffset(proto)
	if !ok || len(l4) < offset+2 {
		return
	}
	header.PutChecksum(l4, proto, &src, &dst)
	field := l4[offset : offset+2]
	switch c {
	case Wrong:
		binary.BigEndian.PutUint16(field, checksum.Fold(uint32(binary.BigEndian.Uint16(field))+1))
	case Partial:
		sum := checksum.Pseudo(src[:], dst[:], proto, uint32(len(l4)))
		binary.BigEndian.PutUint16(field, checksum.Fold(sum))
	case None:
		clear(field)
	}
}

// An Extension is an IPv6 extension header: its number, and its bytes, of which
// the first, the number of the header that follows, is filled in by the builders.
type Extension struct {
	// Proto is the number by which the header before names this one.
	Proto uint8
	// Header is the whole header, a multiple of eight bytes, an authentication header
	// of four.
	Header []byte
}

// HopByHop returns hop-by-hop options of 8 bytes of padding.
func HopByHop() Extension {
	return Extension{header.ProtoHopByHop, []byte{0, 0, 1, 4, 0, 0, 0, 0}}
}

// DestOpts returns destination options of n bytes of padding, a multiple of eight
// of at most 256.
func DestOpts(n int) Extension {
	b := make([]byte, n)
	b[1], b[2], b[3] = byte(n/8-1), 1, byte(n-4)
	return Extension{header.ProtoDestOpts, b}
}

// Routing returns a routing header of type 0 with the stops of the way, of which
// the last left are still to come. RFC 5095 deprecates the type; a checksum still
// has to be right behind it.
func Routing(left int, stops ...netip.Addr) Extension {
	b := []byte{0, byte(2 * len(stops)), 0, byte(left), 0, 0, 0, 0}
	for _, stop := range stops {
		b = append(b, stop.AsSlice()...)
	}
	return Extension{header.ProtoRouting, b}
}

// AtomicFragment returns a fragment header of a packet that is whole (RFC 6946).
func AtomicFragment(id uint32) Extension {
	b := make([]byte, header.IPv6FragmentLen)
	header.PutIPv6Fragment(b, 0, 0, false, id)
	return Extension{header.ProtoFragment, b}
}

// Auth returns an authentication header with an integrity value of twelve zeros.
func Auth(spi, seq uint32) Extension {
	b := make([]byte, 24)
	b[1] = 24/4 - 2
	binary.BigEndian.PutUint32(b[4:], spi)
	binary.BigEndian.PutUint32(b[8:], seq)
	return Extension{header.ProtoAH, b}
}

// lastStop returns the address that the transport checksum covers: the end of the
// way that a routing header describes (RFC 8200, section 8.1).
func lastStop(dst netip.Addr, extensions []Extension) header.Addr {
	for _, e := range extensions {
		if n := len(e.Header); e.Proto == header.ProtoRouting && e.Header[3] > 0 && n >= 24 {
			return header.Addr(e.Header[n-16:])
		}
	}
	return dst.As16()
}

// Quote lengths, in bytes behind the IP header, for the builders of ICMP errors.
const (
	// ShortQuote is what RFC 792 promises: the first eight bytes.
	ShortQuote = 8
	// LongQuote is as much as fits the packet that every link carries: 576 bytes in
	// IPv4 (RFC 1812, section 4.3.2.3), 1,280 bytes in IPv6 (RFC 4443).
	LongQuote = 1 << 16
)

// TooBig returns the ICMP error by which a router, from, tells the sender of pkt
// that the next link's MTU is mtu bytes. quote is the number of bytes quoted behind
// the IP header.
func TooBig(from netip.Addr, pkt []byte, mtu uint16, quote int) []byte {
	if from.Unmap().Is4() {
		return ICMPError(from, pkt, header.ICMPUnreachable, header.ICMPCodeFragNeed, uint32(mtu), quote)
	}
	return ICMPError(from, pkt, header.ICMPv6TooBig, 0, uint32(mtu), quote)
}

// PortUnreachable returns the ICMP error by which a host, from, tells the sender of
// pkt that nobody listens.
func PortUnreachable(from netip.Addr, pkt []byte, quote int) []byte {
	if from.Unmap().Is4() {
		return ICMPError(from, pkt, header.ICMPUnreachable, header.ICMPCodePort, 0, quote)
	}
	return ICMPError(from, pkt, header.ICMPv6Unreachable, header.ICMPv6CodePort, 0, quote)
}

// ICMPError returns an ICMP error of any type about pkt, sent from the address from
// to the sender of pkt. rest is bytes four to seven of it; quote is the number of
// bytes quoted behind the IP header.
func ICMPError(from netip.Addr, pkt []byte, kind, code uint8, rest uint32, quote int) []byte {
	p := mustParse(pkt)
	longest, ipLen := 576-header.IPv4Len-header.ICMPLen, 0
	if p.Version == 4 {
		ipLen = header.IPv4(pkt).HeaderLen()
	} else {
		longest, ipLen = header.IPv6MinMTU-header.IPv6Len-header.ICMPLen, header.IPv6Len
	}
	quoted := pkt[:min(ipLen+quote, longest, p.Len)]
	return ICMP(from, p.Source().Addr(), kind, code, rest, Options{Payload: quoted})
}

// Fragment cuts a packet into fragments of at most mtu bytes each and returns them
// in order. A packet that fits comes back as it is, in a copy. The DF bit is
// ignored; all fragments repeat all IPv4 options. The identification of IPv6 fragments is derived from the packet's bytes.
func Fragment(pkt []byte, mtu int) [][]byte {
	p := mustParse(pkt)
	switch {
	case p.Fragment:
		panic("dprtest: the packet is a fragment: " + Describe(pkt))
	case p.Len <= mtu:
		return [][]byte{slices.Clone(pkt[:p.Len])}
	case p.Version == 4:
		return fragment4(header.IPv4(pkt[:p.Len]), mtu)
	}
	return fragment6(pkt[:p.Len], mtu)
}

func fragment4(pkt header.IPv4, mtu int) (frags [][]byte) {
	head, body := pkt[:pkt.HeaderLen()], pkt.Payload()
	for _, c := range cut(len(body), mtu-len(head)) {
		f := header.IPv4(append(slices.Clone(head), body[c.from:c.to]...))
		f.SetTotalLen(len(f))
		f.SetFragment(false, c.to < len(body), c.from)
		f.ComputeChecksum()
		frags = append(frags, f)
	}
	return frags
}

func fragment6(pkt []byte, mtu int) (frags [][]byte) {
	next, head := unfragmentable(pkt)
	proto := pkt[next]
	body := pkt[head:]
	id := crc32.ChecksumIEEE(pkt)
	for _, c := range cut(len(body), mtu-head-header.IPv6FragmentLen) {
		f := append(slices.Clone(pkt[:head]), make([]byte, header.IPv6FragmentLen)...)
		f[next] = header.ProtoFragment
		header.PutIPv6Fragment(f[head:], proto, c.from, c.to < len(body), id)
		f = append(f, body[c.from:c.to]...)
		header.IPv6(f).SetPayloadLen(len(f) - header.IPv6Len)
		frags = append(frags, f)
	}
	return frags
}

// unfragmentable returns how many bytes at the front of an IPv6 packet every
// fragment repeats, all up to the last hop-by-hop or routing header (RFC 8200,
// section 4.5), and where among them the number of the header that follows is.
func unfragmentable(pkt []byte) (next, length int) {
	next, length = 6, header.IPv6Len
	for at, number := length, next; ; {
		switch pkt[number] {
		case header.ProtoHopByHop, header.ProtoRouting, header.ProtoDestOpts:
		default:
			return next, length
		}
		repeated := pkt[number] != header.ProtoDestOpts
		number, at = at, at+8+8*int(pkt[at+1])
		if repeated {
			next, length = number, at
		}
	}
}

// A piece is a part of a payload, from one offset up to another.
type piece struct{ from, to int }

// cut divides n bytes into pieces of at most size bytes, all but the last of which
// are a multiple of eight long.
func cut(n, size int) (pieces []piece) {
	size &^= 7
	if size <= 0 {
		panic("dprtest: the MTU leaves no room for eight bytes of payload")
	}
	for from := 0; from < n; from += size {
		pieces = append(pieces, piece{from, min(from+size, n)})
	}
	return pieces
}

func mustParse(pkt []byte) *header.Packet {
	p := new(header.Packet)
	if r := p.Parse(pkt); r != header.OK {
		panic("dprtest: the packet is no packet: " + r.String())
	}
	return p
}
