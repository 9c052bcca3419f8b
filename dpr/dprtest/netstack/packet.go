package netstack

import (
	"encoding/binary"
	"net/netip"

	"github.com/carom-dpr/carom/dpr"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// destination returns the destination address of an IP packet, the zero Addr if
// it is none.
func destination(b []byte) netip.Addr {
	switch {
	case len(b) >= header.IPv4MinimumSize && b[0]>>4 == 4:
		return netip.AddrFrom4([4]byte(b[16:]))
	case len(b) >= header.IPv6MinimumSize && b[0]>>4 == 6:
		return netip.AddrFrom16([16]byte(b[24:]))
	}
	return netip.Addr{}
}

// source returns the source address of an IP packet, the zero Addr if it is none.
func source(b []byte) netip.Addr {
	switch {
	case len(b) >= header.IPv4MinimumSize && b[0]>>4 == 4:
		return netip.AddrFrom4([4]byte(b[12:]))
	case len(b) >= header.IPv6MinimumSize && b[0]>>4 == 6:
		return netip.AddrFrom16([16]byte(b[8:]))
	}
	return netip.Addr{}
}

// udpChecksum is the offset of the checksum in a UDP header, in bytes.
const udpChecksum = 6

// complete stores a transport checksum that was left to the device.
func complete(p *dpr.Packet) {
	if !p.GSO.NeedsCsum {
		return
	}
	b := p.Bytes()
	start, at := int(p.GSO.CsumStart), int(p.GSO.CsumStart)+int(p.GSO.CsumOffset)
	if at+2 <= len(b) {
		// The field holds the sum of the pseudo-header, so that is included.
		sum := ^checksum.Checksum(b[start:], 0)
		if sum == 0 && p.GSO.CsumOffset == udpChecksum {
			sum = 0xffff // RFC 768: 0 says that there is none
		}
		binary.BigEndian.PutUint16(b[at:], sum)
	}
	p.GSO = dpr.GSO{}
}

// holds reports whether the stack has a socket for the very TCP connection that
// the packet belongs to, in a state other than LISTEN and TIME_WAIT.
func (h *Host) holds(b []byte) bool {
	id, proto, ok := tcpFlow(b)
	return ok && h.connected(proto, id)
}

// tcpFlow returns the connection of a TCP packet as this host's end sees it. A
// later fragment has none.
func tcpFlow(b []byte) (id stack.TransportEndpointID, proto tcpip.NetworkProtocolNumber, ok bool) {
	var rest []byte
	switch {
	case len(b) >= header.IPv4MinimumSize && b[0]>>4 == 4:
		ip := header.IPv4(b)
		hl := int(ip.HeaderLength())
		if ip.Protocol() != uint8(header.TCPProtocolNumber) || ip.FragmentOffset() != 0 || hl < header.IPv4MinimumSize || hl > len(b) {
			return id, 0, false
		}
		proto, rest = header.IPv4ProtocolNumber, b[hl:]
		id.RemoteAddress, id.LocalAddress = ip.SourceAddress(), ip.DestinationAddress()
	case len(b) >= header.IPv6MinimumSize && b[0]>>4 == 6:
		ip := header.IPv6(b)
		if ip.NextHeader() != uint8(header.TCPProtocolNumber) {
			return id, 0, false
		}
		proto, rest = header.IPv6ProtocolNumber, b[header.IPv6MinimumSize:]
		id.RemoteAddress, id.LocalAddress = ip.SourceAddress(), ip.DestinationAddress()
	}
	if len(rest) < 4 {
		return id, 0, false
	}
	id.RemotePort, id.LocalPort = binary.BigEndian.Uint16(rest), binary.BigEndian.Uint16(rest[2:])
	return id, proto, true
}
