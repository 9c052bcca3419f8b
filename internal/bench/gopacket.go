package main

import (
	"net/netip"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// gopacketRouter is a router as a Go programmer writes it in an afternoon: decode the
// layers, look the 5-tuple up in a map, rewrite the destination, serialize.
type gopacketRouter struct {
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

func newGopacket(flows int) *gopacketRouter {
	r := &gopacketRouter{
		flows:    make(map[tuple]netip.Addr, flows),
		out:      gopacket.NewSerializeBuffer(),
		template: packetTemplate(0x10, 24),
	}
	r.packet = make([]byte, len(r.template))
	r.parser = gopacket.NewDecodingLayerParser(layers.LayerTypeIPv4, &r.ip, &r.tcp, &r.payload)
	for i := range flows {
		copy(r.packet, r.template)
		client(r.packet, uint32(i))
		r.parser.DecodeLayers(r.packet, &r.decoded)
		r.flows[r.tuple()] = netip.MustParseAddr("203.0.113.2")
	}
	return r
}

func (r *gopacketRouter) tuple() tuple {
	src, _ := netip.AddrFromSlice(r.ip.SrcIP)
	dst, _ := netip.AddrFromSlice(r.ip.DstIP)
	return tuple{src, dst, uint16(r.tcp.SrcPort), uint16(r.tcp.DstPort), uint8(r.ip.Protocol)}
}

func (r *gopacketRouter) run(flows *[32]uint32) {
	for _, f := range flows {
		copy(r.packet, r.template)
		client(r.packet, f)
		if err := r.parser.DecodeLayers(r.packet, &r.decoded); err != nil {
			panic(err) // the packet is our own
		}
		to, ok := r.flows[r.tuple()]
		if !ok {
			panic("unknown flow")
		}
		r.ip.DstIP = to.AsSlice()
		r.ip.TTL--
		r.tcp.SetNetworkLayerForChecksum(&r.ip)
		r.out.Clear()
		err := gopacket.SerializeLayers(r.out, gopacket.SerializeOptions{ComputeChecksums: true, FixLengths: true}, &r.ip, &r.tcp, r.payload)
		if err != nil {
			panic(err)
		}
	}
}
