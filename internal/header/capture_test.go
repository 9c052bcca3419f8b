package header_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/stretchr/testify/require"
)

// captures returns the files of the folder that CAROM_CAPTURES names, nil if it is
// not set: the captures are other people's and not part of this tree. Each kind of
// packet that they show is also made by crafted.
func captures(t testing.TB) (paths []string) {
	dir := os.Getenv("CAROM_CAPTURES")
	if dir == "" {
		return nil
	}
	paths, err := filepath.Glob(filepath.Join(dir, "*.pcap"))
	require.NoError(t, err)
	require.NotEmpty(t, paths, "CAROM_CAPTURES names a folder without captures")
	return paths
}

func captureName(path string) string { return strings.TrimSuffix(filepath.Base(path), ".pcap") }

// capture returns the IP packets of a file as they were recorded: without the link
// header, but with the link's padding. Frames of anything but IP are left out.
func capture(t testing.TB, path string) (pkts [][]byte) {
	f, err := os.Open(path)
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
	if link == 101 || link == layers.LinkTypeIPv4 { // raw IP
		return frame
	}
	for _, layer := range gopacket.NewPacket(frame, link, gopacket.NoCopy).Layers() {
		switch l := layer.(type) {
		case *layers.Ethernet:
			if isIP(l.EthernetType) {
				return l.Payload
			}
		case *layers.Dot1Q:
			if isIP(l.Type) {
				return l.Payload
			}
		case *layers.PPP, *layers.Loopback:
			return l.LayerPayload()
		}
	}
	return nil
}

func isIP(t layers.EthernetType) bool {
	return t == layers.EthernetTypeIPv4 || t == layers.EthernetTypeIPv6
}
