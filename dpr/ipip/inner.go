package ipip

import (
	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/internal/checksum"
	"github.com/carom-dpr/carom/internal/header"
	"github.com/carom-dpr/carom/internal/segment"
	"github.com/carom-dpr/carom/internal/tunnel"
)

// unwrap returns the inner packet of what a raw socket delivered, a part of b, with
// the outer ECN in it. Over IPv4 the socket delivers the outer header, too.
func unwrap(b []byte, outerIs4, innerIs6 bool, tos uint8) (inner []byte, why Reason) {
	if outerIs4 {
		if len(b) < header.IPv4Len || header.IPv4(b).HeaderLen() > len(b) || header.IPv4(b).HeaderLen() < header.IPv4Len {
			return nil, BadInner
		}
		tos = header.IPv4(b).TOS()
		b = b[header.IPv4(b).HeaderLen():]
	}
	inner, ok := segment.Whole(b)
	if !ok || (header.Version(inner) == 6) != innerIs6 {
		return nil, BadInner
	}
	if !tunnel.MergeECN(inner, tos) {
		return nil, Congested
	}
	return inner, OK
}

// joined describes a TCP packet that the kernel has joined from several before the
// socket got it, for which it need not be long: its checksum field then holds the sum
// of the pseudo-header, and nobody says how long the segments were. It reports false
// for any other packet.
//
// The kernel joins only segments whose checksums are right, so nothing is hidden by
// calling it partial. For the length of the segments the longest that the tunnel
// carries is a safe guess: it decides nothing but how many there are taken for.
func joined(b []byte, mtu int) (dpr.GSO, bool) {
	var h header.Packet
	if h.Parse(b) != header.OK || h.Fragment || h.Proto != header.ProtoTCP {
		return dpr.GSO{}, false
	}
	tcp := header.TCP(b[h.L4:h.Len])
	if tcp.Checksum() != checksum.Fold(checksum.Pseudo(h.Src[:], h.Dst[:], h.Proto, uint32(h.Len-int(h.L4)))) {
		return dpr.GSO{}, false
	}
	headers := int(h.L4) + tcp.HeaderLen()
	g := dpr.GSO{NeedsCsum: true, CsumStart: h.L4, CsumOffset: tcpChecksum}
	if h.Len > mtu && mtu > headers {
		g.Type, g.Size, g.HdrLen = dpr.GSOTCP4, uint16(mtu-headers), uint16(headers)
		if h.Version == 6 {
			g.Type = dpr.GSOTCP6
		}
	}
	return g, true
}

// tcpChecksum is the offset of the checksum in a TCP header, in bytes.
const tcpChecksum = 16
