package tun

import (
	"encoding/binary"

	"github.com/carom-dpr/carom/dpr"
)

// vnetLen is the length of a virtio_net_hdr in bytes: flags, type, header length,
// segment size, checksum start, checksum offset (virtio 1.2, section 5.1.6). The
// numbers are in the host's byte order.
const vnetLen = 10

const (
	vnetNeedsCsum = 0x01 // in flags

	vnetGSONone = 0
	vnetGSOTCP4 = 1
	vnetGSOTCP6 = 4
	vnetGSOUDP  = 5
	vnetGSOECN  = 0x80 // added to a TCP type when CWR is set
)

const (
	tcpCWR     = 0x80
	tcpFlags   = 13 // offset in the TCP header
	tcpDataOff = 12
	udpHdrLen  = 8
)

var native = binary.NativeEndian

// parseVnet returns what the virtio_net_hdr h says of the packet b. It reports
// false for what no kernel that keeps to the offloads asked for sends. The header
// length is counted afresh: in h it is the length of the kernel's linear data.
func parseVnet(h, b []byte) (g dpr.GSO, ok bool) {
	if h[0]&vnetNeedsCsum != 0 {
		g.NeedsCsum = true
		g.CsumStart, g.CsumOffset = native.Uint16(h[6:]), native.Uint16(h[8:])
		if int(g.CsumStart)+int(g.CsumOffset)+2 > len(b) {
			return g, false
		}
	}
	hdr := int(g.CsumStart)
	switch h[1] &^ vnetGSOECN {
	case vnetGSONone:
		return g, true
	case vnetGSOTCP4, vnetGSOTCP6:
		g.Type = dpr.GSOTCP4
		if h[1]&^vnetGSOECN == vnetGSOTCP6 {
			g.Type = dpr.GSOTCP6
		}
		if hdr+tcpDataOff >= len(b) {
			return g, false
		}
		hdr += int(b[hdr+tcpDataOff]>>4) * 4
	case vnetGSOUDP:
		g.Type = dpr.GSOUDP
		hdr += udpHdrLen
	default:
		return g, false
	}
	g.HdrLen, g.Size = uint16(hdr), native.Uint16(h[4:])
	return g, g.NeedsCsum && g.Size > 0 && hdr <= len(b)
}

// putVnet writes the virtio_net_hdr of the packet b to h.
func putVnet(h, b []byte, g dpr.GSO) {
	clear(h[:vnetLen])
	if g.NeedsCsum {
		h[0] = vnetNeedsCsum
		native.PutUint16(h[6:], g.CsumStart)
		native.PutUint16(h[8:], g.CsumOffset)
	}
	switch g.Type {
	case dpr.GSONone:
		return
	case dpr.GSOTCP4:
		h[1] = vnetGSOTCP4
	case dpr.GSOTCP6:
		h[1] = vnetGSOTCP6
	case dpr.GSOUDP:
		h[1] = vnetGSOUDP
	}
	if at := int(g.CsumStart) + tcpFlags; g.Type != dpr.GSOUDP && at < len(b) && b[at]&tcpCWR != 0 {
		h[1] |= vnetGSOECN
	}
	native.PutUint16(h[2:], g.HdrLen)
	native.PutUint16(h[4:], g.Size)
}
