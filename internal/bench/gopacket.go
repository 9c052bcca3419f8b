package main

import (
	"net/netip"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// gopacketRouter is a router as a Go programmer writes it in an afternoon: decode the
// layers, look the 5-tuple up in a map, rewrite the destination, serialize. It decodes
// into new layers, as gopacket's documentation begins with, or into the same ones
// again and again, which is as fast as gopacket can.
type gopacketRouter struct {
	reuse    bool
	flows    map[tuple]netip.Addr
	parser   *gopacket.DecodingLayerParser
	ip       layers.IPv4
	tcp      layers.TCP
	payload  gopacket.Payload
	decoded  []gopacket.LayerType
	out      gopacket.SerializeBuffer
	packet   []byte
	template []byte
}

type tuple struct {
	src, dst         netip.Addr
	srcPort, dstPort uint16
	proto            uint8
}

func newGopacket(flows int, reuse bool) *gopacketRouter {
	r := &gopacketRouter{
		reuse:    reuse,
		flows:    make(map[tuple]netip.Addr, flows),
		out:      gopacket.NewSerializeBuffer(),
		template: packetTemplate(0x10, 24),
	}
	r.packet = make([]byte, len(r.template))
	r.parser = gopacket.NewDecodingLayerParser(layers.LayerTypeIPv4, &r.ip, &r.tcp, &r.payload)
	for i := range flows {
		copy(r.packet, r.template)
		client(r.packet, uint32(i))
		ip, tcp, _ := r.decode()
		r.flows[tupleOf(ip, tcp)] = netip.MustParseAddr("203.0.113.2")
	}
	return r
}

func tupleOf(ip *layers.IPv4, tcp *layers.TCP) tuple {
	src, _ := netip.AddrFromSlice(ip.SrcIP)
	dst, _ := netip.AddrFromSlice(ip.DstIP)
	return tuple{src, dst, uint16(tcp.SrcPort), uint16(tcp.DstPort), uint8(ip.Protocol)}
}

func (r *gopacketRouter) run(flows *[32]uint32) {
	for _, f := range flows {
		copy(r.packet, r.template)
		client(r.packet, f)
		ip, tcp, payload := r.decode()
		to, ok := r.flows[tupleOf(ip, tcp)]
		if !ok {
			panic("unknown flow")
		}
		ip.DstIP = to.AsSlice()
		ip.TTL--
		tcp.SetNetworkLayerForChecksum(ip)
		r.out.Clear()
		err := gopacket.SerializeLayers(r.out, gopacket.SerializeOptions{ComputeChecksums: true, FixLengths: true}, ip, tcp, payload)
		if err != nil {
			panic(err)
		}
	}
}

// decode reads the packet, which is our own: it fails for none.
func (r *gopacketRouter) decode() (*layers.IPv4, *layers.TCP, gopacket.Payload) {
	if r.reuse {
		if err := r.parser.DecodeLayers(r.packet, &r.decoded); err != nil {
			panic(err)
		}
		return &r.ip, &r.tcp, r.payload
	}
	p := gopacket.NewPacket(r.packet, layers.LayerTypeIPv4, gopacket.Default)
	ip, tcp := p.NetworkLayer().(*layers.IPv4), p.TransportLayer().(*layers.TCP)
	return ip, tcp, gopacket.Payload(tcp.Payload)
}
