package segment_test

import (
	"encoding/binary"

	"github.com/carom-dpr/carom/dpr"
)

var be = binary.BigEndian

const (
	fin = 0x01
	syn = 0x02
	rst = 0x04
	psh = 0x08
	ack = 0x10
	urg = 0x20
	ece = 0x40
	cwr = 0x80
)

// spec describes a packet, field by field. Its bytes are the oracle for what
// Splitter and Merger make.
type spec struct {
	is6, udp    bool
	tos, ttl    byte
	flow        uint32 // IPv6 flow label
	id, frag    uint16 // frag: flags and offset of IPv4
	ipOpts      []byte
	ports       uint32
	seq, ack    uint32
	flags, rsvd byte
	window, urg uint16
	tcpOpts     []byte
	payload     []byte
}

var timestamps = []byte{1, 1, 8, 10, 0, 0, 1, 2, 0, 0, 3, 4}

func tcp4(payload int) spec {
	return spec{
		tos: 2, ttl: 63, id: 0xfffe, frag: 0x4000, ports: 0xc0010050, seq: 0xfffffff0, ack: 77,
		flags: ack, window: 501, tcpOpts: timestamps, payload: pattern(payload),
	}
}

func tcp6(payload int) spec {
	s := tcp4(payload)
	s.is6, s.flow = true, 0x12345
	return s
}

func udp4(payload int) spec {
	return spec{udp: true, ttl: 63, id: 9, ports: 0xc0010035, payload: pattern(payload)}
}

func udp6(payload int) spec {
	s := udp4(payload)
	s.is6 = true
	return s
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

// slowSum is RFC 1071 as it is written there.
func slowSum(b []byte) uint32 {
	var sum uint32
	for i, c := range b {
		if i%2 == 0 {
			sum += uint32(c) << 8
		} else {
			sum += uint32(c)
		}
		sum = sum>>16 + sum&0xffff
	}
	return sum
}

func (s spec) ipLen() int {
	if s.is6 {
		return 40
	}
	return 20 + len(s.ipOpts)
}

func (s spec) hdrLen() int {
	if s.udp {
		return s.ipLen() + 8
	}
	return s.ipLen() + 20 + len(s.tcpOpts)
}

// bytes builds the packet. With partial it leaves the transport checksum to be
// completed.
func (s spec) bytes(partial bool) []byte {
	l4 := s.transport()
	ip := s.network(len(l4))
	proto, field := byte(6), 16
	if s.udp {
		proto, field = 17, 6
	}
	pseudo := append([]byte(nil), ip[12:20]...)
	if s.is6 {
		pseudo = append([]byte(nil), ip[8:40]...)
	}
	pseudo = append(pseudo, 0, 0, byte(len(l4)>>8), byte(len(l4)), 0, proto)
	sum := uint16(slowSum(pseudo))
	if !partial {
		sum = ^uint16(slowSum(append(pseudo, l4...)))
		if s.udp && sum == 0 {
			sum = 0xffff
		}
	}
	be.PutUint16(l4[field:], sum)
	return append(ip, l4...)
}

func (s spec) transport() []byte {
	h := be.AppendUint32(nil, s.ports)
	if s.udp {
		h = be.AppendUint16(h, uint16(8+len(s.payload)))
		return append(append(h, 0, 0), s.payload...)
	}
	h = be.AppendUint32(h, s.seq)
	h = be.AppendUint32(h, s.ack)
	h = append(h, byte(20+len(s.tcpOpts))<<2|s.rsvd, s.flags)
	h = be.AppendUint16(h, s.window)
	h = be.AppendUint16(append(h, 0, 0), s.urg)
	return append(append(h, s.tcpOpts...), s.payload...)
}

func (s spec) network(l4 int) []byte {
	proto := byte(6)
	if s.udp {
		proto = 17
	}
	if s.is6 {
		h := be.AppendUint32(nil, 6<<28|uint32(s.tos)<<20|s.flow)
		h = be.AppendUint16(h, uint16(l4))
		h = append(h, proto, s.ttl)
		for i := range 32 {
			h = append(h, byte(0x20+i))
		}
		return h
	}
	h := []byte{byte(0x40 | (20+len(s.ipOpts))/4), s.tos}
	h = be.AppendUint16(h, uint16(s.ipLen()+l4))
	h = be.AppendUint16(be.AppendUint16(h, s.id), s.frag)
	h = append(h, s.ttl, proto, 0, 0, 192, 0, 2, 1, 198, 51, 100, 2)
	h = append(h, s.ipOpts...)
	be.PutUint16(h[10:], ^uint16(slowSum(h)))
	return h
}

// segments are what a network card makes of the packet.
func (s spec) segments(size int) [][]byte {
	var out [][]byte
	for at := 0; at < len(s.payload) || at == 0; at += size {
		seg := s
		seg.payload = s.payload[at:min(at+size, len(s.payload))]
		seg.id += uint16(at / size)
		seg.seq += uint32(at)
		if at > 0 {
			seg.flags &^= cwr
		}
		if at+size < len(s.payload) {
			seg.flags &^= fin | psh
		}
		out = append(out, seg.bytes(false))
	}
	return out
}

// super is the packet as a super-frame.
func (s spec) super(size int) dpr.Packet {
	g := dpr.GSO{
		Type: dpr.GSOTCP4, NeedsCsum: true, CsumStart: uint16(s.ipLen()), CsumOffset: 16,
		HdrLen: uint16(s.hdrLen()), Size: uint16(size),
	}
	if s.is6 {
		g.Type = dpr.GSOTCP6
	}
	if s.udp {
		g.Type, g.CsumOffset = dpr.GSOUDP, 6
	}
	return packet(s.bytes(true), g)
}

func packet(b []byte, g dpr.GSO) dpr.Packet {
	p := dpr.NewPackets(1, dpr.MaxPacket)[0]
	p.Len, p.GSO = copy(p.Buf[p.Off:], b), g
	return p
}
