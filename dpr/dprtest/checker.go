package dprtest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// Check returns what is wrong with an IP packet, or nil: lengths that do not agree
// with each other and with the number of bytes, headers that cannot be decoded, a
// TTL of 0, any checksum that is not right. The bytes must be those of the packet
// alone, without padding. Of fragments only the IP header is checked. Packets in
// IP-in-IP tunnels are checked too, and so are the IPv4 headers that ICMP errors
// quote.
//
// The opinion is independent of what the engine uses: gopacket decodes, and the
// checksums are computed in the simplest way.
func Check(pkt []byte) error {
	if err := checkLengths(pkt); err != nil {
		return err
	}
	c := checker{pkt: pkt}
	return c.from(firstLayer(pkt))
}

// checkLengths compares the lengths in the IP header with the number of bytes.
func checkLengths(pkt []byte) error {
	switch {
	case len(pkt) >= 20 && pkt[0]>>4 == 4:
		if n := int(pkt[0]&15) * 4; n < 20 || n > len(pkt) {
			return fmt.Errorf("IPv4 header length is %d of %d bytes", n, len(pkt))
		}
		if n := int(binary.BigEndian.Uint16(pkt[2:])); n != len(pkt) {
			return fmt.Errorf("IPv4 total length is %d of %d bytes", n, len(pkt))
		}
	case len(pkt) >= 40 && pkt[0]>>4 == 6:
		if n := 40 + int(binary.BigEndian.Uint16(pkt[4:])); n != len(pkt) {
			return fmt.Errorf("IPv6 header and payload length are %d of %d bytes", n, len(pkt))
		}
	default:
		return fmt.Errorf("no IP packet in %d bytes", len(pkt))
	}
	return nil
}

func firstLayer(pkt []byte) gopacket.LayerType {
	if len(pkt) > 0 && pkt[0]>>4 == 6 {
		return layers.LayerTypeIPv6
	}
	return layers.LayerTypeIPv4
}

// A checker looks at the layers of a packet from the outside in.
type checker struct {
	pkt      []byte
	at       int // offset of the layer
	src, dst []byte
	next     layers.IPProtocol // what the last header says that follows
	done     bool              // what follows is not for this checker
}

// from decodes what is left of the packet, starting with the given kind of layer.
func (c *checker) from(first gopacket.LayerType) error {
	decoded := gopacket.NewPacket(c.pkt[c.at:], first, gopacket.NoCopy)
	for _, layer := range decoded.Layers() {
		if err := c.layer(layer); err != nil || c.done {
			return err
		}
		c.at += len(layer.LayerContents())
	}
	return nil
}

func (c *checker) layer(layer gopacket.Layer) error {
	switch l := layer.(type) {
	case *layers.IPv4:
		return c.ipv4(l)
	case *layers.IPv6:
		return c.ipv6(l)
	case *layers.IPv6HopByHop:
		c.next = l.NextHeader
	case *layers.IPv6Destination:
		c.next = l.NextHeader
	case *layers.IPSecAH:
		c.next = l.NextHeader
	case *layers.IPv6Routing:
		c.next = l.NextHeader
		if n := len(l.SourceRoutingIPs); l.SegmentsLeft > 0 && n > 0 {
			c.dst = l.SourceRoutingIPs[n-1]
		}
	case *layers.IPv6Fragment:
		return c.fragment(l)
	default:
		c.done = true
		return c.upper(layer)
	}
	return nil
}

// upper looks at the first layer that is no IP header. What it carries is not
// looked at: gopacket takes any payload on port 53 for DNS.
func (c *checker) upper(layer gopacket.Layer) error {
	switch l := layer.(type) {
	case *layers.TCP:
		return c.tcp()
	case *layers.UDP:
		return c.udp(l)
	case *layers.ICMPv4:
		return errors.Join(c.transport("ICMP", 1), c.quote(l.TypeCode.Type()))
	case *layers.ICMPv6:
		return c.transport("ICMPv6", 58)
	case *gopacket.DecodeFailure:
		if c.mustDecode() {
			return fmt.Errorf("at byte %d: %w", c.at, l.Error())
		}
	}
	return nil
}

// mustDecode reports whether what follows is of a kind that gopacket knows well
// enough for its failure to mean something.
func (c *checker) mustDecode() bool {
	switch c.next {
	case layers.IPProtocolTCP, layers.IPProtocolUDP, layers.IPProtocolICMPv4, layers.IPProtocolICMPv6,
		layers.IPProtocolIPv4, layers.IPProtocolIPv6, layers.IPProtocolIPv6HopByHop, layers.IPProtocolIPv6Routing,
		layers.IPProtocolIPv6Fragment, layers.IPProtocolIPv6Destination, layers.IPProtocolAH:
		return true
	}
	return c.at == 0
}

func (c *checker) ipv4(ip *layers.IPv4) error {
	if c.at > 0 {
		return c.tunnelled()
	}
	c.src, c.dst, c.next = ip.SrcIP, ip.DstIP, ip.Protocol
	last := ip.Flags&layers.IPv4MoreFragments == 0
	c.done = !last || ip.FragOffset > 0
	switch {
	case ip.TTL == 0:
		return errors.New("IPv4 TTL is 0")
	case sum(ip.Contents) != 0xffff:
		return fmt.Errorf("IPv4 header checksum %#04x is wrong by %#04x", ip.Checksum, sum(ip.Contents))
	}
	return fragmentLength(len(ip.Payload), int(ip.FragOffset), last)
}

func (c *checker) ipv6(ip *layers.IPv6) error {
	if c.at > 0 {
		return c.tunnelled()
	}
	c.src, c.dst, c.next = ip.SrcIP, ip.DstIP, ip.NextHeader
	if ip.HopLimit == 0 {
		return errors.New("IPv6 hop limit is 0")
	}
	return nil
}

func (c *checker) tunnelled() error {
	c.done = true
	if err := Check(c.pkt[c.at:]); err != nil {
		return fmt.Errorf("in the tunnel: %w", err)
	}
	return nil
}

// fragment looks at a fragment header. gopacket does not look behind it, though
// there is a whole packet behind an atomic one.
func (c *checker) fragment(f *layers.IPv6Fragment) error {
	c.done = true
	if f.MoreFragments || f.FragmentOffset > 0 {
		return fragmentLength(len(f.Payload), int(f.FragmentOffset), !f.MoreFragments)
	}
	c.done, c.next = false, f.NextHeader
	c.at += len(f.Contents)
	err := c.from(f.NextHeader.LayerType())
	c.done = true
	return err
}

// fragmentLength checks the number of payload bytes of a packet that may be a
// fragment; the offset is in units of eight bytes.
func fragmentLength(n, offset int, last bool) error {
	switch {
	case !last && n%8 != 0:
		return fmt.Errorf("fragment of %d bytes is not the last and no multiple of eight", n)
	case offset*8+n > 65535:
		return fmt.Errorf("fragment ends at byte %d", offset*8+n)
	case n == 0 && (offset > 0 || !last):
		return errors.New("fragment is empty")
	}
	return nil
}

func (c *checker) tcp() error {
	l4 := c.pkt[c.at:]
	if len(l4) < 20 {
		return fmt.Errorf("TCP header has %d bytes", len(l4))
	}
	if n := int(l4[12]>>4) * 4; n < 20 || n > len(l4) {
		return fmt.Errorf("TCP header length is %d of %d bytes", n, len(l4))
	}
	return c.transport("TCP", 6)
}

func (c *checker) udp(u *layers.UDP) error {
	switch {
	case int(u.Length) != len(c.pkt)-c.at:
		return fmt.Errorf("UDP length is %d of %d bytes", u.Length, len(c.pkt)-c.at)
	case u.Checksum == 0 && len(c.src) == 4:
		return nil
	case u.Checksum == 0:
		return errors.New("UDP checksum is missing, which IPv6 does not allow")
	}
	return c.transport("UDP", 17)
}

// transport checks the checksum of all that is left of the packet.
func (c *checker) transport(name string, proto byte) error {
	l4 := c.pkt[c.at:]
	var pseudo []byte
	if proto != 1 {
		pseudo = append(append(pseudo, c.src...), c.dst...)
		pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(l4)))
		pseudo = append(pseudo, 0, 0, 0, proto)
	}
	if s := sum(append(pseudo, l4...)); s != 0xffff {
		return fmt.Errorf("%s checksum is wrong by %#04x", name, s)
	}
	return nil
}

// quote checks the header of the IPv4 packet that an ICMP error quotes.
func (c *checker) quote(kind uint8) error {
	quoted := c.pkt[min(c.at+8, len(c.pkt)):]
	switch kind {
	case layers.ICMPv4TypeDestinationUnreachable, layers.ICMPv4TypeTimeExceeded,
		layers.ICMPv4TypeParameterProblem, layers.ICMPv4TypeRedirect:
	default:
		return nil
	}
	if len(quoted) < 20 || len(quoted) < int(quoted[0]&15)*4 {
		return fmt.Errorf("ICMP error quotes %d bytes", len(quoted))
	}
	if s := sum(quoted[:quoted[0]&15*4]); s != 0xffff {
		return fmt.Errorf("header checksum of the quoted packet is wrong by %#04x", s)
	}
	return nil
}

// sum is the ones-complement sum of RFC 1071, as its definition has it.
func sum(b []byte) uint16 {
	var s uint32
	for i, c := range b {
		s += uint32(c) << (8 * (1 - i%2))
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// Describe puts a packet into one line of words: addresses and ports, protocol,
// what distinguishes it, and the number of bytes.
func Describe(pkt []byte) string {
	decoded := gopacket.NewPacket(pkt, firstLayer(pkt), gopacket.NoCopy)
	if ip := decoded.NetworkLayer(); ip == nil || len(ip.LayerContents()) == 0 {
		return fmt.Sprintf("no IP packet, %d bytes", len(pkt))
	}
	var words []string
	for _, layer := range decoded.Layers() {
		if w := describe(layer); w != "" {
			words = append(words, w)
		}
	}
	return fmt.Sprintf("%s, %d bytes", strings.Join(words, ", "), len(pkt))
}

func describe(layer gopacket.Layer) string {
	switch l := layer.(type) {
	case *layers.IPv4:
		s := fmt.Sprintf("%v > %v ttl %d id %#x", l.SrcIP, l.DstIP, l.TTL, l.Id)
		if l.FragOffset > 0 || l.Flags&layers.IPv4MoreFragments != 0 {
			s += fmt.Sprintf(" fragment at %d more %t", int(l.FragOffset)*8, l.Flags&layers.IPv4MoreFragments != 0)
		}
		return s
	case *layers.IPv6:
		return fmt.Sprintf("%v > %v hops %d", l.SrcIP, l.DstIP, l.HopLimit)
	case *layers.IPv6Fragment:
		return fmt.Sprintf("fragment at %d more %t id %#x", int(l.FragmentOffset)*8, l.MoreFragments, l.Identification)
	case *layers.TCP:
		if len(l.Contents) < 20 { // gopacket keeps the layer of a header it could not read
			return "TCP"
		}
		return fmt.Sprintf("TCP %d > %d %v seq %d ack %d win %d payload %d",
			l.SrcPort, l.DstPort, Flags(l.Contents[13]), l.Seq, l.Ack, l.Window, len(l.Payload))
	case *layers.UDP:
		return fmt.Sprintf("UDP %d > %d payload %d", l.SrcPort, l.DstPort, len(l.Payload))
	case *layers.ICMPv4:
		return fmt.Sprintf("ICMP %v", l.TypeCode)
	case *layers.ICMPv6:
		return fmt.Sprintf("ICMPv6 %v", l.TypeCode)
	case *gopacket.DecodeFailure:
		return "cannot decode: " + l.Error().Error()
	}
	return ""
}

// Diff says in words how two packets differ: the layers that do, before and after,
// and the bytes. It returns an empty string if they are equal. Its text is for
// people and may change.
func Diff(want, got []byte) string {
	if string(want) == string(got) {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "want %s\n got %s\n", Describe(want), Describe(got))
	w, g := layerStrings(want), layerStrings(got)
	for i := range max(len(w), len(g)) {
		if at(w, i) != at(g, i) {
			fmt.Fprintf(&b, "- %s\n+ %s\n", at(w, i), at(g, i))
		}
	}
	for i := 0; i < min(len(want), len(got)); i++ {
		if from := i; want[i] != got[i] {
			for i < min(len(want), len(got)) && want[i] != got[i] {
				i++
			}
			fmt.Fprintf(&b, "bytes %d to %d: want %x, got %x\n", from, i-1, want[from:i], got[from:i])
		}
	}
	if len(want) != len(got) {
		fmt.Fprintf(&b, "length: want %d, got %d bytes\n", len(want), len(got))
	}
	return b.String()
}

func layerStrings(pkt []byte) (s []string) {
	for _, layer := range gopacket.NewPacket(pkt, firstLayer(pkt), gopacket.NoCopy).Layers() {
		s = append(s, gopacket.LayerString(layer))
	}
	return s
}

func at(s []string, i int) string {
	if i < len(s) {
		return s[i]
	}
	return "nothing"
}
