package header

// AppendFragment appends to dst a fragment of an IPv4 packet: the room bytes of its
// payload that begin at the offset at, or what is left there (RFC 791, section 3.2).
// Both are multiples of eight. Fragments but the first carry only those options that
// each must have. The packet may be a fragment itself, and must not be a part of dst.
func AppendFragment(dst []byte, packet IPv4, at, room int) []byte {
	payload := packet.Payload()
	end := min(at+room, len(payload))
	begin := len(dst)
	if at == 0 {
		dst = append(dst, packet[:packet.HeaderLen()]...)
	} else {
		dst = appendLaterHeader(dst, packet)
	}
	dst = append(dst, payload[at:end]...)
	piece := IPv4(dst[begin:])
	piece.SetTotalLen(len(piece))
	piece.SetFragment(false, end < len(payload) || packet.More(), packet.FragOffset()+at)
	piece.ComputeChecksum()
	return dst
}

// FragmentRoom returns how many bytes of the packet's payload go into each fragment of
// at most mtu bytes: a multiple of eight, in which offsets count.
func FragmentRoom(packet IPv4, mtu int) int { return (mtu - packet.HeaderLen()) &^ 7 }

// appendLaterHeader appends the header of fragments but the first: it keeps only those
// options whose copied flag is set.
func appendLaterHeader(dst []byte, ip IPv4) []byte {
	begin := len(dst)
	dst = append(dst, ip[:IPv4Len]...)
	for opts := ip[IPv4Len:ip.HeaderLen()]; len(opts) > 0; {
		n := 1
		if opts[0] > 1 { // neither end of list nor no operation, which are one byte
			n = int(opts[1])
		}
		if opts[0]&copied != 0 {
			dst = append(dst, opts[:n]...)
		}
		opts = opts[n:]
	}
	for (len(dst)-begin)%4 != 0 {
		dst = append(dst, 0)
	}
	dst[begin] = 0x40 | byte((len(dst)-begin)/4)
	return dst
}

// copied is the flag of IPv4 options that each fragment carries.
const copied = 0x80
