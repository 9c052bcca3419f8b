package header

// Bounds on the chain of IPv6 extension headers. Honest packets have one or two,
// a few dozen bytes in all; RFC 8883 lets a node give up at limits of its own,
// and RFC 8504, section 5.3, names eight as a sensible number of options.
const (
	MaxExtHeaders = 8
	MaxExtBytes   = 256
)

// lenience says what a parser may overlook.
type lenience uint8

const (
	// strict: the packet must be whole.
	strict lenience = iota
	// frameLen: an IP length of 0 stands for the length of the frame.
	frameLen
	// quoted: the packet may be cut off behind the ports.
	quoted
)

// Parse fills p with what the headers of b say, and returns why they cannot be
// trusted, or OK. It overwrites all of p; what p holds after a refusal means
// nothing. b may be longer than the packet, by padding, but not shorter. Parse
// verifies no checksum and accepts any bytes without a panic.
func (p *Packet) Parse(b []byte) Reason { return p.parse(b, strict) }

// ParseFrame is [Packet.Parse] for super-frames from a device that may leave the
// IP length field 0 because the frame is longer than the field can say: the
// length is then that of b. Who sends such a packet on must store its length.
func (p *Packet) ParseFrame(b []byte) Reason { return p.parse(b, frameLen) }

// ParseQuote is [Packet.Parse] for the packet that an ICMP error quotes, whose end
// is usually cut off. The IP header and the two ports must be there; Seq is 0 in
// a quote of fewer than eight transport bytes (RFC 792 promises eight), Ack and
// TCPFlags in one of fewer than 14, and PayloadLen counts the bytes there are.
func (p *Packet) ParseQuote(b []byte) Reason { return p.parse(b, quoted) }

func (p *Packet) parse(b []byte, l lenience) Reason {
	*p = Packet{}
	if len(b) == 0 {
		return Short
	}
	switch p.Version = b[0] >> 4; p.Version {
	case 4:
		return p.parseIPv4(b, l)
	case 6:
		return p.parseIPv6(b, l)
	}
	return BadVersion
}

func (p *Packet) parseIPv4(b []byte, l lenience) Reason {
	if len(b) < IPv4Len {
		return Short
	}
	h := IPv4(b)
	headerLen := h.HeaderLen()
	if headerLen < IPv4Len {
		return BadHeaderLen
	}
	length := h.TotalLen()
	if length == 0 && l == frameLen {
		length = len(b)
	}
	if length < headerLen {
		return BadTotalLen
	}
	if length > len(b) {
		if l != quoted || headerLen > len(b) {
			return Short
		}
		length = len(b)
	}
	if headerLen > IPv4Len {
		if r := checkIPv4Options(b[IPv4Len:headerLen]); r != OK {
			return r
		}
	}
	mapV4(&p.Src, b[12:16])
	mapV4(&p.Dst, b[16:20])
	p.Len = length
	p.TOS, p.HopLimit = b[1], b[8]
	p.Proto, p.FragProto = b[9], b[9]
	p.FragID = uint32(h.ID())
	p.L4 = uint16(headerLen)
	word := be.Uint16(b[6:])
	p.DF = word&ipv4DF != 0
	if word&(ipv4MF|ipv4OffsetMask) != 0 {
		p.Fragment, p.More, p.FragOffset = true, word&ipv4MF != 0, word&ipv4OffsetMask*8
		return p.parseFragment(b, l)
	}
	return p.parseTransport(b, l)
}

// IPv4 options that matter (RFC 791, section 3.1).
const (
	ipv4OptEnd  = 0
	ipv4OptNop  = 1
	ipv4OptLSRR = 131
	ipv4OptSSRR = 137
)

func checkIPv4Options(opts []byte) Reason {
	for len(opts) > 0 {
		switch opts[0] {
		case ipv4OptEnd:
			return OK
		case ipv4OptNop:
			opts = opts[1:]
			continue
		case ipv4OptLSRR, ipv4OptSSRR:
			return SourceRoute
		}
		if len(opts) < 2 || opts[1] < 2 || int(opts[1]) > len(opts) {
			return BadOption
		}
		opts = opts[opts[1]:]
	}
	return OK
}

func (p *Packet) parseIPv6(b []byte, l lenience) Reason {
	if len(b) < IPv6Len {
		return Short
	}
	h := IPv6(b)
	length := IPv6Len + h.PayloadLen()
	if length == IPv6Len && l == frameLen {
		length = len(b)
	}
	if length > len(b) {
		if l != quoted {
			return Short
		}
		length = len(b)
	}
	p.Src, p.Dst = Addr(b[8:24]), Addr(b[24:40])
	p.Len = length
	p.TOS, p.HopLimit = h.TOS(), h.HopLimit()
	p.Proto = h.NextHeader()
	p.L4 = IPv6Len
	p.DF = true
	switch p.Proto {
	case ProtoTCP, ProtoUDP, ProtoICMPv6:
		return p.parseTransport(b, l)
	}
	return p.parseExtensions(b, l)
}

// parseExtensions walks the chain of extension headers from p.Proto and p.L4 on,
// and leaves there the first protocol that is none of them. In fragments but the
// first the chain ends at the fragment header.
func (p *Packet) parseExtensions(b []byte, l lenience) Reason {
	for n := 0; isExtension(p.Proto) && p.FragOffset == 0; n++ {
		switch {
		case n == MaxExtHeaders:
			return ExtLimit
		case n > 0 && p.Proto == ProtoHopByHop, p.Fragment && p.Proto == ProtoFragment:
			return BadExtension
		}
		rest := b[p.L4:p.Len]
		if len(rest) < 8 { // no extension header is shorter
			return p.cutOff(l)
		}
		size := p.readExtension(rest)
		p.Proto = rest[0]
		p.L4 += uint16(size)
		if p.L4 > IPv6Len+MaxExtBytes {
			return ExtLimit
		}
		if size > len(rest) {
			return p.cutOff(l)
		}
	}
	if p.Fragment {
		return p.parseFragment(b, l)
	}
	return p.parseTransport(b, l)
}

// readExtension notes what the extension header at the front of b, of the kind
// p.Proto, says, and returns its length in bytes.
func (p *Packet) readExtension(b []byte) int {
	switch p.Proto {
	case ProtoRouting:
		p.RouteDst = p.RouteDst || b[3] > 0
	case ProtoAH:
		p.AH = true
		return 8 + int(b[1])*4 // RFC 4302, section 2.2: in words, less two
	case ProtoFragment:
		word := be.Uint16(b[2:])
		p.FragOffset, p.More = word&^7, word&1 != 0
		p.Fragment = p.More || p.FragOffset > 0
		p.FragID = be.Uint32(b[4:])
		return IPv6FragmentLen
	}
	return 8 + int(b[1])*8
}

// isExtension reports whether an IPv6 header number is one to walk over.
func isExtension(proto uint8) bool {
	switch proto {
	case ProtoHopByHop, ProtoRouting, ProtoFragment, ProtoDestOpts, ProtoAH:
		return true
	}
	return false
}

// cutOff names the fault of a packet that ends inside its headers.
func (p *Packet) cutOff(l lenience) Reason {
	if p.Fragment && l != quoted {
		return FirstFragmentShort
	}
	return Short
}

// parseFragment judges a fragment whose payload starts at p.L4.
func (p *Packet) parseFragment(b []byte, l lenience) Reason {
	n, offset := p.Len-int(p.L4), int(p.FragOffset)
	// The reassembled packet must fit the 16-bit length: that of an IPv4 packet
	// counts its header, that of an IPv6 packet what follows the fixed header.
	end := offset + n + int(p.L4)
	if p.Version == 6 {
		end -= IPv6Len + IPv6FragmentLen
	}
	switch {
	case l == quoted:
	case n == 0, p.More && n%8 != 0, end > 65535:
		return BadFragment
	case offset > 0 && offset < TCPLen && p.Proto == ProtoTCP:
		return BadFragment
	}
	if offset > 0 {
		p.PayloadLen = n
		return OK
	}
	return p.parseTransport(b, l)
}

// parseTransport reads the transport header at p.L4, if it is one that has ports
// or that reports errors.
func (p *Packet) parseTransport(b []byte, l lenience) Reason {
	l4 := b[p.L4:p.Len]
	switch p.Proto {
	case ProtoTCP:
		return p.parseTCP(l4, l)
	case ProtoUDP:
		return p.parseUDP(l4, l)
	case ProtoICMP:
		if p.Version == 4 {
			return p.parseICMP(l4, l)
		}
	case ProtoICMPv6:
		if p.Version == 6 {
			return p.parseICMP(l4, l)
		}
	}
	p.PayloadLen = len(l4)
	return OK
}

func (p *Packet) parseTCP(l4 []byte, l lenience) Reason {
	if len(l4) < TCPLen {
		if l == quoted {
			return p.parseCutPorts(l4)
		}
		return p.cutOff(l)
	}
	h := TCP(l4)
	n := h.HeaderLen()
	if n < TCPLen {
		return BadTCPOffset
	}
	if n > len(l4) {
		switch {
		case l == quoted:
			n = len(l4)
		case p.Fragment:
			return FirstFragmentShort
		default:
			return BadTCPOffset
		}
	}
	p.SrcPort, p.DstPort = h.SrcPort(), h.DstPort()
	p.Seq, p.Ack = h.Seq(), h.Ack()
	p.TCPFlags = h.Flags()
	p.PayloadLen = len(l4) - n
	return OK
}

// parseCutPorts reads as much of a quoted transport header as there is.
func (p *Packet) parseCutPorts(l4 []byte) Reason {
	if len(l4) < 4 {
		return Short
	}
	p.SrcPort, p.DstPort = be.Uint16(l4), be.Uint16(l4[2:])
	if p.Proto != ProtoTCP {
		return OK
	}
	if len(l4) >= 8 {
		p.Seq = be.Uint32(l4[4:])
	}
	if len(l4) >= 14 {
		p.Ack, p.TCPFlags = be.Uint32(l4[8:]), l4[13]
	}
	return OK
}

func (p *Packet) parseUDP(l4 []byte, l lenience) Reason {
	if len(l4) < UDPLen {
		if l == quoted {
			return p.parseCutPorts(l4)
		}
		return p.cutOff(l)
	}
	h := UDP(l4)
	n := h.Length()
	if n < UDPLen {
		return BadUDPLen
	}
	if n > len(l4) {
		// A first fragment and a quote hold less than the datagram does.
		if l != quoted && !p.Fragment {
			return BadUDPLen
		}
		n = len(l4)
	}
	p.SrcPort, p.DstPort = h.SrcPort(), h.DstPort()
	p.PayloadLen = n - UDPLen
	return OK
}

func (p *Packet) parseICMP(l4 []byte, l lenience) Reason {
	if len(l4) < ICMPLen {
		if l != quoted || len(l4) < 2 {
			return p.cutOff(l)
		}
		p.ICMPType, p.ICMPCode = l4[0], l4[1]
		return OK
	}
	p.ICMPType, p.ICMPCode = l4[0], l4[1]
	p.PayloadLen = len(l4) - ICMPLen
	return OK
}
