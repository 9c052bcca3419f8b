package header_test

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/stretchr/testify/require"
)

// capture returns the IP packets of a file in testdata, as they were recorded:
// without the link header, but with the link's padding. Frames of anything but IP
// are left out.
func capture(t testing.TB, name string) (pkts [][]byte) {
	f, err := os.Open(filepath.Join("testdata", name+".pcap"))
	require.NoError(t, err)
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	require.NoError(t, err)
	for {
		frame, _, err := r.ReadPacketData()
		if err == io.EOF {
			return pkts
		}
		require.NoError(t, err)
		if pkt := network(frame, r.LinkType()); pkt != nil {
			pkts = append(pkts, pkt)
		}
	}
}

// network strips the link header.
func network(frame []byte, link layers.LinkType) []byte {
	var first gopacket.Decoder = link
	if link == 101 || link == layers.LinkTypeIPv4 { // raw IP
		return frame
	}
	packet := gopacket.NewPacket(frame, first, gopacket.NoCopy)
	below := packet.LinkLayer()
	for _, layer := range packet.Layers() {
		if tag, ok := layer.(*layers.Dot1Q); ok && (tag.Type == layers.EthernetTypeIPv4 || tag.Type == layers.EthernetTypeIPv6) {
			return tag.Payload
		}
	}
	if eth, ok := below.(*layers.Ethernet); ok && eth.EthernetType != layers.EthernetTypeIPv4 && eth.EthernetType != layers.EthernetTypeIPv6 {
		return nil
	}
	return below.LayerPayload()
}

func captures(t testing.TB) (names []string) {
	paths, err := filepath.Glob(filepath.Join("testdata", "*.pcap"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		name := filepath.Base(path)
		names = append(names, name[:len(name)-len(".pcap")])
	}
	return names
}
