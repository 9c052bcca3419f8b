package header

import "github.com/carom-dpr/carom/internal/checksum"

// ClampMSS lowers the maximum segment size that a SYN or a SYN-ACK announces, so
// that no segment in answer to it makes a packet of more than mtu bytes: to mtu
// less 40 bytes in IPv4 and 60 in IPv6, the fixed headers alone, since whoever
// sends options takes them off himself (RFC 6691). mtu is that of the path less
// what a tunnel adds, and counts as 68 or 1280 if it is less, which every link
// carries. It limits the other end only, so both packets of a handshake must pass.
//
// b is the packet that p describes. partial says that its checksum is still that of
// the pseudo-header, which does not cover the option. The result says whether b was
// changed: other packets, those without the option, those that announce less and
// those whose bytes an authentication header covers are left alone.
func (p *Packet) ClampMSS(b []byte, mtu int, partial bool) bool {
	if p.TCPFlags&(SYN|RST|FIN) != SYN || p.AH {
		return false
	}
	limit := max(mtu, IPv4MinMTU) - IPv4Len - TCPLen
	if p.Version == 6 {
		limit = max(mtu, IPv6MinMTU) - IPv6Len - TCPLen
	}
	h := TCP(b[p.L4:p.Len])
	value, offset, ok := FindMSS(h)
	if !ok || int(value) <= limit {
		return false
	}
	if partial {
		be.PutUint16(h[offset:], uint16(limit))
	} else {
		SetMSS(h, offset, uint16(limit))
	}
	return true
}

// Kinds of TCP options (RFC 9293, section 3.2).
const (
	tcpOptEnd    = 0
	tcpOptNop    = 1
	tcpOptMSS    = 2
	tcpOptMSSLen = 4
)

// FindMSS looks for the maximum segment size among the options of a TCP header.
// It returns the value in bytes and the offset of the value's two bytes from the
// start of the header, which may be odd. It is safe on any bytes: options that
// are cut or malformed end the search.
func FindMSS(h TCP) (value uint16, offset int, ok bool) {
	if len(h) < TCPLen || len(h) < h.HeaderLen() {
		return 0, 0, false
	}
	end := h.HeaderLen()
	for i := TCPLen; i < end; {
		switch h[i] {
		case tcpOptEnd:
			return 0, 0, false
		case tcpOptNop:
			i++
			continue
		}
		if i+1 >= end || h[i+1] < 2 || i+int(h[i+1]) > end {
			return 0, 0, false
		}
		if h[i] == tcpOptMSS && h[i+1] == tcpOptMSSLen {
			return be.Uint16(h[i+2:]), i + 2, true
		}
		i += int(h[i+1])
	}
	return 0, 0, false
}

// SetMSS stores a maximum segment size at the offset that [FindMSS] returned and
// updates the checksum, also where the offset is odd and the value straddles two
// words.
func SetMSS(h TCP, offset int, value uint16) {
	// Both words of a straddling value lie in the header, whose length is even.
	words := h[offset&^1 : (offset+3)&^1]
	var old [4]byte
	n := copy(old[:], words)
	be.PutUint16(h[offset:], value)
	h.SetChecksum(checksum.Update(h.Checksum(), old[:n], words))
}
