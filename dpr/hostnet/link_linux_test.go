package hostnet

import (
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/internal/lab"
)

// A packetSocket sends and receives frames on a host's eth0.
type packetSocket struct{ fd, index int }

func openLink(t *testing.T, h *lab.Host, protocol uint16) packetSocket {
	t.Helper()
	link, err := h.Netlink().LinkByName("eth0")
	require.NoError(t, err)
	s := packetSocket{index: link.Attrs().Index}
	protocol = protocol<<8 | protocol>>8
	require.NoError(t, h.Do(func() (err error) {
		s.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(protocol))
		return err
	}))
	t.Cleanup(func() { unix.Close(s.fd) })
	timeout := unix.NsecToTimeval(int64(limit))
	require.NoError(t, unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout))
	require.NoError(t, unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20))
	require.NoError(t, unix.Bind(s.fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: s.index}))
	return s
}

func (s packetSocket) send(t *testing.T, frame ...gopacket.SerializableLayer) {
	t.Helper()
	b := gopacket.NewSerializeBuffer()
	require.NoError(t, gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true}, frame...))
	require.NoError(t, unix.Sendto(s.fd, b.Bytes(), 0, &unix.SockaddrLinklayer{Ifindex: s.index, Halen: 6}))
}

// receive returns the next frame that arrived, or that the host itself sent.
func (s packetSocket) receive(t *testing.T) gopacket.Packet {
	t.Helper()
	b := make([]byte, 2000)
	n, _, err := unix.Recvfrom(s.fd, b, 0)
	require.NoError(t, err)
	return gopacket.NewPacket(b[:n], layers.LayerTypeEthernet, gopacket.Default)
}

func TestExtensionHeaders(t *testing.T) {
	w := newWorld(t)
	e := startEngine(t, w.a, Config{Services: services(w.a)}, nil)
	e.net.Beat()
	tcp := packet(t, w.client.Addr6(), w.a.Addr6(), layers.IPProtocolTCP, &layers.TCP{SrcPort: 1, DstPort: port, SYN: true})[40:]
	options := func(kinds ...byte) []byte {
		kinds = append(kinds, byte(layers.IPProtocolTCP))
		var chain []byte
		for _, next := range kinds[1:] {
			chain = append(chain, next, 0, 1, 4, 0, 0, 0, 0) // one padding option
		}
		return packet(t, w.client.Addr6(), w.a.Addr6(), layers.IPProtocol(kinds[0]), payload(append(chain, tcp...)))
	}
	send(t, w.client,
		options(60, 60, 60, 60, 60), // more than the program walks
		options(43),                 // routing
		options(0, 60),
		options(60, 60, 60, 60))
	require.Len(t, e.await(t, 2), 2)
	stats, err := e.net.Stats()
	require.NoError(t, err)
	require.Equal(t, uint64(2), stats.CapturedSYN)
}
