package dpr

import "fmt"

// A Packet is one IP packet, or one super-frame that stands for several, in a
// buffer that has room to grow at both ends.
//
// The bytes belong to whoever called Read, or to the device until its next Read
// where the device says so; see [Device].
type Packet struct {
	// Buf holds the packet in Buf[Off:Off+Len]. What lies before Off is headroom
	// for outer headers.
	Buf []byte
	// Off is where the packet begins in Buf, Len its length, both in bytes. With
	// less than Headroom before it, a packet is not answered by an ICMP error.
	Off, Len int
	// GSO is the segmentation and checksum-offload state. The zero GSO is that of
	// an ordinary packet with a complete checksum.
	GSO GSO
	// Peer is the host that the packet goes to, when the verdict is Forward, or
	// that it came from, when it was read from an uplink. It is zero for a packet
	// that was read from a device.
	Peer PeerID
	// Verdict is what the engine decided.
	Verdict Verdict
}

// Bytes returns the packet itself. The slice shares the packet's buffer.
func (p *Packet) Bytes() []byte { return p.Buf[p.Off : p.Off+p.Len] }

// longest returns the length of the longest packet that p stands for, if it has so much
// payload.
func (p *Packet) longest(payload int) int {
	if p.GSO.Size == 0 {
		return p.Len
	}
	return min(p.Len, p.Len-payload+int(p.GSO.Size))
}

// Headroom is the space, in bytes, that Read leaves before a packet: enough for
// an outer IPv6 header, UDP, and GUE with its private field, or for a
// virtio_net_hdr and the ICMP error that the engine makes of a packet.
const Headroom = 128

// MaxPacket is the length, in bytes, of the longest IP packet or super-frame.
const MaxPacket = 65535

// NewPackets returns n packets, each with its own buffer for a packet of the
// given length behind [Headroom].
func NewPackets(n, length int) []Packet {
	pkts := make([]Packet, n)
	slab := make([]byte, n*(Headroom+length))
	for i := range pkts {
		lo, hi := i*(Headroom+length), (i+1)*(Headroom+length)
		pkts[i].Buf = slab[lo:hi:hi]
		pkts[i].Off = Headroom
	}
	return pkts
}

// GSO is what virtio_net_hdr says of a packet: whether its transport checksum is
// still partial, and whether it is a super-frame that stands for several
// segments.
type GSO struct {
	// Type says how the packet is to be segmented.
	Type GSOType
	// NeedsCsum means that the transport checksum field holds the sum of the
	// pseudo-header only, and that the checksum from CsumStart to the end is to be
	// stored at CsumStart + CsumOffset.
	NeedsCsum bool
	// CsumStart and CsumOffset are in bytes; CsumStart counts from the start of
	// the packet.
	CsumStart, CsumOffset uint16
	// HdrLen is the length of all headers that each segment repeats, in bytes.
	HdrLen uint16
	// Size is the payload of each segment but the last, in bytes.
	Size uint16
}

// GSOType says how a super-frame is to be segmented.
type GSOType uint8

// The kinds of super-frame.
const (
	GSONone GSOType = iota // one ordinary packet
	GSOTCP4                // TCP over IPv4
	GSOTCP6                // TCP over IPv6
	GSOUDP                 // UDP datagrams of equal length (USO)
)

// PeerID names a peer of an engine: a slot, and a generation that tells
// successive users of the slot apart. The zero PeerID is no peer.
type PeerID uint32

// A Verdict is what the engine decided about a packet. The zero Verdict is Drop.
type Verdict uint8

// The verdicts.
const (
	// Drop: the packet goes nowhere. The reason is counted.
	Drop Verdict = iota
	// Pass: the packet is not of a service; the kernel gets it back unchanged.
	Pass
	// Local: the packet is for the server on this host.
	Local
	// Forward: the packet goes to Peer through the uplink.
	Forward
	// Reply: the engine turned the packet into an answer to its sender, such as an
	// ICMP error; it leaves this host as one of its own.
	Reply
	// Transmit: the packet leaves this host for its destination, as one of its own.
	Transmit
	// Hold: the engine keeps a copy, which Engine.Extra may deliver later.
	Hold

	numVerdicts
)

// String returns the verdict's name in lower case.
func (v Verdict) String() string {
	if v >= numVerdicts {
		return fmt.Sprintf("verdict %d", uint8(v))
	}
	return [...]string{"drop", "pass", "local", "forward", "reply", "transmit", "hold"}[v]
}
