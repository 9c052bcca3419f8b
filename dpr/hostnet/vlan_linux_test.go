package hostnet

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"
)

const (
	customerTag = uint32(layers.EthernetTypeDot1Q) << 16 // 802.1Q
	serviceTag  = uint32(layers.EthernetTypeQinQ) << 16  // 802.1ad
	priority    = 5 << 13                                // no VLAN, but a priority
)

// A framer sends SYNs from a client to a host in frames of its own making.
type framer struct {
	link       packetSocket
	own, other net.HardwareAddr
	from, to   netip.Addr
}

func newFramer(t *testing.T, w *world, from, to netip.Addr) *framer {
	t.Helper()
	f := &framer{link: openLink(t, w.client, 0), from: from, to: to}
	var err error
	f.own, err = net.ParseMAC(mac(t, w.client))
	require.NoError(t, err)
	f.other, err = net.ParseMAC(mac(t, w.a))
	require.NoError(t, err)
	return f
}

// send sends a SYN from the port with the tags, outermost first: their Ethernet type
// and below it priority and VLAN.
func (f *framer) send(t *testing.T, sport uint16, to net.HardwareAddr, tags ...uint32) {
	t.Helper()
	f.sendLong(t, sport, to, 0, tags...)
}

// sendLong is send with so many bytes of data.
func (f *framer) sendLong(t *testing.T, sport uint16, to net.HardwareAddr, data int, tags ...uint32) {
	t.Helper()
	inner := uint16(layers.EthernetTypeIPv4)
	if f.to.Is6() {
		inner = uint16(layers.EthernetTypeIPv6)
	}
	frame := append(append([]byte{}, to...), f.own...)
	for _, tag := range tags {
		frame = binary.BigEndian.AppendUint32(frame, tag)
	}
	frame = binary.BigEndian.AppendUint16(frame, inner)
	frame = append(frame, packet(t, f.from, f.to, layers.IPProtocolTCP,
		&layers.TCP{SrcPort: layers.TCPPort(sport), DstPort: port, SYN: true}, payload(make([]byte, data)))...)
	f.link.send(t, payload(frame))
}

// sourcePorts returns those of the packets, which must be whole TCP segments.
func sourcePorts(t *testing.T, pkts []gopacket.Packet) (ports []int) {
	t.Helper()
	for _, p := range pkts {
		tcp, ok := p.TransportLayer().(*layers.TCP)
		require.True(t, ok, "not a whole TCP packet: %v", p)
		ports = append(ports, int(tcp.SrcPort))
	}
	return ports
}

// Frames for other machines, and those with tags that are not this interface's, stay
// with the kernel. A priority is taken off, or its tag would be in the packet (A50).
func TestFrames(t *testing.T) {
	cases := []struct {
		name     string
		tags     []uint32
		captured bool
	}{
		{"plain", nil, true},
		{"priority", []uint32{customerTag | priority}, true},
		{"priority, 802.1ad", []uint32{serviceTag | priority}, true},
		{"VLAN", []uint32{customerTag | 7}, false},
		{"VLAN and priority", []uint32{customerTag | priority | 7}, false},
		{"VLAN, 802.1ad", []uint32{serviceTag | 7}, false},
		{"two tags", []uint32{serviceTag | 7, customerTag | 8}, false},
		{"two of one kind", []uint32{customerTag | 7, customerTag | 8}, false},
		{"priority before a VLAN", []uint32{customerTag | priority, customerTag | 7}, false},
		{"two priorities", []uint32{serviceTag | priority, customerTag | priority}, false},
		{"three tags", []uint32{serviceTag | 7, customerTag | 8, customerTag | 9}, false},
		{"three priorities", []uint32{customerTag | priority, customerTag | priority, customerTag | priority}, false},
	}
	eachFamily(t, func(t *testing.T, w *world, e *engine, a, client netip.Addr) {
		f := newFramer(t, w, client, a)
		f.send(t, 999, net.HardwareAddr{2, 0, 0, 0, 0, 9}) // flooded by the bridge
		var want []int
		tagged := 0
		for i, tt := range cases {
			f.send(t, uint16(i+1), f.other, tt.tags...)
			if tt.captured {
				want = append(want, i+1)
			} else {
				tagged++
			}
		}
		stats := e.awaitStats(t, "all have come", func(s Stats) bool { return s.CapturedSYN+s.Tagged >= uint64(len(cases)) })
		f.send(t, 1000, f.other) // what was captured of them comes up before it
		require.ElementsMatch(t, append(want, 1000), sourcePorts(t, e.await(t, len(want)+1)))
		require.EqualValues(t, len(want), stats.CapturedSYN)
		require.EqualValues(t, tagged, stats.Tagged)
	})
}

// An MTU is of what follows the Ethernet header and its tags: a packet as long as it
// comes up whole from a frame with a tag, and the tag costs it nothing (A16).
func TestTagIsNotInTheMTU(t *testing.T) {
	eachFamily(t, func(t *testing.T, w *world, e *engine, a, client netip.Addr) {
		f, headers := newFramer(t, w, client, a), 40
		if a.Is6() {
			headers = 60
		}
		f.sendLong(t, 1, f.other, 1500-headers)
		f.sendLong(t, 2, f.other, 1500-headers, customerTag|priority)
		seen := e.await(t, 2)
		require.ElementsMatch(t, []int{1, 2}, sourcePorts(t, seen))
		for _, p := range seen {
			require.Len(t, p.Data(), 1500)
		}
	})
}
