package main

import (
	"bytes"
	"encoding/binary"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr/dprtest"
)

var (
	client = netip.MustParseAddrPort("192.0.2.10:40000")
	vip    = netip.MustParseAddrPort("198.51.100.1:80")
	began  = time.Unix(1_000_000_000, 0).UTC()
)

func tcp(flags dprtest.Flags, seq uint32, payload int) []byte {
	return dprtest.TCP(client, vip, dprtest.Options{Flags: flags, Seq: seq, Payload: make([]byte, payload), DF: true})
}

// A frame is what a test puts into a capture.
type frame struct {
	after time.Duration
	data  []byte
}

func ethernet(tags int, pkt []byte) []byte {
	b := make([]byte, 12)
	for range tags {
		b = append(b, 0x81, 0, 0, 13)
	}
	return append(append(b, 8, 0), pkt...)
}

// pcap writes a capture and returns its name.
func pcap(t *testing.T, link layers.LinkType, frames ...frame) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "test.pcap")
	f, err := os.Create(name)
	require.NoError(t, err)
	w := pcapgo.NewWriter(f)
	require.NoError(t, w.WriteFileHeader(65535, link))
	for _, fr := range frames {
		require.NoError(t, w.WritePacket(gopacket.CaptureInfo{
			Timestamp: began.Add(fr.after), CaptureLength: len(fr.data), Length: len(fr.data),
		}, fr.data))
	}
	require.NoError(t, f.Close())
	return name
}

// replayed runs the command and returns its lines.
func replayed(t *testing.T, args ...string) []string {
	t.Helper()
	var out, problems strings.Builder
	args = append([]string{"-service", "web=tcp:80@198.51.100.1", "-service", "dns=udp:53@198.51.100.1", "-peer", "h2", "-peer", "h3,mtu=1280"}, args...)
	require.Zero(t, run(args, &out, &problems), problems.String())
	return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
}

// requireWords expects words in the order given.
func requireWords(t *testing.T, line string, words ...string) {
	t.Helper()
	rest := line
	for _, w := range words {
		_, after, ok := strings.Cut(rest, w)
		require.True(t, ok, "no %q in its place in %q", w, line)
		rest = after
	}
}

func TestConnection(t *testing.T) {
	arp := append(make([]byte, 12), 8, 6, 0, 1)
	answer := dprtest.TCP(vip, client, dprtest.Options{Flags: dprtest.ACK, Payload: make([]byte, 1400), DF: true})
	name := pcap(t, layers.LinkTypeEthernet,
		frame{0, ethernet(0, tcp(dprtest.SYN, 1000, 0))},
		frame{time.Millisecond, arp},
		frame{time.Second, ethernet(2, append(tcp(dprtest.ACK, 1001, 0), make([]byte, 6)...))},
		frame{time.Second, ethernet(1, tcp(dprtest.ACK, 1001, 1460))},
		frame{time.Second, ethernet(0, dprtest.TooBig(netip.MustParseAddr("192.0.2.254"), answer, 1400, 8))},
		frame{2 * time.Second, ethernet(0, answer)},
		frame{2 * time.Second, ethernet(0, tcp(dprtest.ACK, 1001, 5)[:30])},
		frame{2 * time.Second, ethernet(0, tcp(dprtest.FIN|dprtest.ACK, 2461, 0))},
		frame{time.Hour, ethernet(0, tcp(dprtest.ACK, 2462, 0))},
	)
	lines := replayed(t, "-policy", "send-to h2", name)
	requireWords(t, lines[0], "1 ", "0.000000", "forward h2", "embryonic", "192.0.2.10 > 198.51.100.1", "80 S ", "| ttl 64 to 63, checksum")
	requireWords(t, lines[1], "3 ", "1.000000", "forward h2", "established", "| ttl", "last 6 bytes cut off")
	requireWords(t, lines[2], "4 ", "reply", "established", "| answered: 198.51.100.1 > 192.0.2.10", "FragmentationNeeded", "MTU 1452")
	requireWords(t, lines[3], "5 ", "forward h2", "established", "ICMP", "| ttl")
	requireWords(t, lines[4], "6 ", "2.000000", "pass", " - ", "80 > 40000")
	require.NotContains(t, lines[4], "|")
	requireWords(t, lines[5], "7 ", "drop", " - ", "| short")
	requireWords(t, lines[6], "8 ", "forward h2", "closing")
	require.Equal(t, "------ 1 forgotten", lines[7])
	requireWords(t, lines[8], "9 ", "3600.000000", "local", " - ", "| unknown flow")
	require.Equal(t, []string{"", "9 frames", "       1 drop", "       1 pass", "       1 local", "       4 forward", "       1 reply", "       1 dropped: short"}, lines[9:])
}

// What is translated for a host without an engine, and back.
func TestTranslation(t *testing.T) {
	here, there := netip.MustParseAddrPort("203.0.113.1:61000"), netip.MustParseAddrPort("203.0.113.9:8080")
	name := pcap(t, layers.LinkTypeRaw,
		frame{0, tcp(dprtest.SYN, 1000, 0)},
		frame{time.Millisecond, dprtest.TCP(there, here, dprtest.Options{Flags: dprtest.SYN | dprtest.ACK, Seq: 7000, Ack: 1001})},
		frame{time.Second, dprtest.TCP(client, vip, dprtest.Options{Flags: dprtest.ACK, Seq: 1001, Ack: 7001})},
		frame{time.Second, dprtest.TooBig(netip.MustParseAddr("203.0.113.254"), dprtest.TCP(here, there, dprtest.Options{Flags: dprtest.ACK, DF: true}), 1300, 8)},
	)
	lines := replayed(t, "-server", "s,web=203.0.113.9:8080", "-nat", "203.0.113.1,61000-61000", "-policy", "send-to s", name)
	requireWords(t, lines[0], "transmit s", "embryonic", "| ttl 64 to 63", "source c000020a to cb007101", "destination c6336401 to cb007109",
		"source port 40000 to 61000, destination port 80 to 8080, its checksum")
	requireWords(t, lines[1], "transmit s", "embryonic", "| ttl", "source port 8080 to 80, destination port 61000 to 40000, its checksum")
	requireWords(t, lines[2], "transmit s", "established")
	requireWords(t, lines[3], "transmit s", "| ttl", "what follows the IP header")
	for _, args := range [][]string{{"-server", "s"}, {"-server", "s,web"}, {"-nat", "x"}, {"-nat", "203.0.113.1,5"}} {
		var out, problems strings.Builder
		require.NotZero(t, run(append(args, "-service", "web=tcp:80@198.51.100.1", name), &out, &problems), args)
	}
}

func TestClockStandsStill(t *testing.T) {
	name := pcap(t, layers.LinkTypeRaw, frame{0, tcp(dprtest.SYN, 1, 0)}, frame{time.Hour, tcp(dprtest.ACK, 2, 0)})
	requireWords(t, replayed(t, "-policy", "send-to h2", "-still", name)[1], "3600.000000", "forward h2", "established")
	requireWords(t, replayed(t, "-policy", "send-to h2", name)[2], "3600.000000", "local", "unknown flow")
}

func TestFragments(t *testing.T) {
	frags := dprtest.Fragment(dprtest.UDP(client, netip.AddrPortFrom(vip.Addr(), 53), dprtest.Options{ID: 7, Payload: make([]byte, 3000)}), 1300)
	name := pcap(t, layers.LinkTypeRaw, frame{0, frags[1]}, frame{0, frags[0]}, frame{0, frags[2]})
	lines := replayed(t, "-policy", "send-to h2", name)
	requireWords(t, lines[0], "1 ", "hold", "fragment at 1280")
	requireWords(t, lines[1], "2 ", "forward h2", "udp-new", "| ttl")
	requireWords(t, lines[2], "+", "forward h2", "fragment at 1280")
	requireWords(t, lines[3], "3 ", "forward h2", "fragment at 2560")
	// Towards a peer with a short MTU the first one is cut in two.
	lines = replayed(t, "-policy", "send-to h3", pcap(t, layers.LinkTypeRaw, frame{0, frags[0]}))
	requireWords(t, lines[0], "forward h3", "| length", "ttl", "last")
	requireWords(t, lines[1], "+", "forward h3")
}

func TestPoliciesAndUplink(t *testing.T) {
	syn := pcap(t, layers.LinkTypeIPv4, frame{0, tcp(dprtest.SYN, 1, 0)})
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"-policy", "stay"}, "local"},
		{[]string{"-policy", "refuse"}, "reply"},
		{[]string{"-policy", "send-to h3"}, "forward h3"},
		{[]string{"-policy", "least", "-self", "h1,conns=9", "-peer", "h4,conns=5"}, "forward h"},
		{[]string{"-policy", "send-to h2", "-uplink", "h3"}, "local"},
	} {
		requireWords(t, replayed(t, append(tt.args, syn)...)[0], "1 ", tt.want)
	}
	big := pcap(t, layers.LinkTypeRaw, frame{0, tcp(dprtest.SYN, 1, 0)}, frame{0, tcp(dprtest.ACK, 2, 20000)})
	requireWords(t, replayed(t, "-policy", "send-to h2", big)[1], "reply", "MTU 1452")
	requireWords(t, replayed(t, "-policy", "send-to h2", "-gso", "1400", big)[1], "forward h2")
	requireWords(t, replayed(t, "-policy", "send-to h2", "-gso", "1460", big)[1], "reply", "MTU 1452")
}

func TestWhatLeavesIsWritten(t *testing.T) {
	pkts := [][]byte{tcp(dprtest.SYN, 1000, 0), tcp(dprtest.ACK, 1001, 7), tcp(dprtest.ACK, 1008, 1460), tcp(dprtest.SYN, 1, 0)[:20]}
	var frames []frame
	for i, pkt := range pkts {
		frames = append(frames, frame{time.Duration(i) * time.Millisecond, pkt})
	}
	file := filepath.Join(t.TempDir(), "out.pcapng")
	lines := replayed(t, "-policy", "send-to h2", "-w", file, pcap(t, layers.LinkTypeRaw, frames...))
	written, err := os.ReadFile(file)
	require.NoError(t, err)
	r, err := pcapgo.NewNgReader(bytes.NewReader(written), pcapgo.DefaultNgReaderOptions)
	require.NoError(t, err)
	require.Equal(t, layers.LinkTypeRaw, r.LinkType())
	comments := packetComments(t, written)
	require.Len(t, comments, 3)
	for i, verdict := range []string{"forward h2", "forward h2", "reply"} {
		data, info, err := r.ReadPacketData()
		require.NoError(t, err)
		require.NoError(t, dprtest.Check(data))
		require.Equal(t, began.Add(time.Duration(i)*time.Millisecond), info.Timestamp.UTC())
		if verdict != "reply" {
			require.Equal(t, pkts[i][20:], data[20:])
			require.Equal(t, byte(63), data[8])
		}
		requireWords(t, comments[i], verdict, "flow ")
		_, what, _ := strings.Cut(lines[i], " | ")
		require.True(t, strings.HasSuffix(comments[i], what), "the comment says what the line says")
	}
	_, _, err = r.ReadPacketData()
	require.ErrorIs(t, err, io.EOF)
	// And what was written can be replayed.
	require.Len(t, replayed(t, "-policy", "send-to h2", file), 3+1+1+2+1)
}

// packetComments reads the comments of a little-endian pcapng file's packets.
func packetComments(t *testing.T, file []byte) (comments []string) {
	for len(file) > 0 {
		kind, n := binary.LittleEndian.Uint32(file), binary.LittleEndian.Uint32(file[4:])
		require.Equal(t, n, binary.LittleEndian.Uint32(file[n-4:n]), "the length stands at both ends")
		if kind == 6 {
			at := 28 + (binary.LittleEndian.Uint32(file[20:])+3)&^3
			require.Equal(t, uint16(1), binary.LittleEndian.Uint16(file[at:]))
			length := uint32(binary.LittleEndian.Uint16(file[at+2:]))
			comments = append(comments, string(file[at+4:at+4+length]))
		}
		file = file[n:]
	}
	return comments
}

func TestWrongArguments(t *testing.T) {
	service := []string{"-service", "web=tcp:80@198.51.100.1"}
	for want, args := range map[string][]string{
		"no -service":                         {"x.pcap"},
		"give the name of one capture":        service,
		"must be like web=tcp:80":             {"-service", "web"},
		"must be tcp or udp":                  {"-service", "web=sctp:80@198.51.100.1"},
		"port \"http\"":                       {"-service", "web=tcp:http@198.51.100.1"},
		"unable to parse IP":                  {"-service", "web=tcp:80@here"},
		"add -peer h2":                        append([]string{"-policy", "send-to h2"}, append(service, "x")...),
		"-uplink h3: add -peer h3":            append([]string{"-uplink", "h3"}, append(service, "x")...),
		"-policy: lb: no policy \"nonsense\"": append([]string{"-policy", "nonsense"}, append(service, "x")...),
		"here \"send-to id\" and refuse":      append([]string{"-policy", "nonsense:x=1"}, append(service, "x")...),
		"\"self\" is both this host":          append([]string{"-peer", "self"}, append(service, "x")...),
		"\"h1\" is both this host":            append([]string{"-peer", "h1", "-self", "h1"}, append(service, "x")...),
		"-server s1: service \"nope\": add":   append([]string{"-server", "s1,nope=192.0.2.31:80"}, append(service, "x")...),
		"there are mtu, conns and":            {"-peer", "h2,speed=1"},
		"must be like mtu=1400":               {"-peer", "h2,mtu=x"},
		"the ID is empty":                     {"-peer", ""},
		"mtu is that of the tunnel":           {"-self", "h1,mtu=1400"},
		"-gso -1: must be between":            append([]string{"-gso", "-1"}, append(service, "x")...),
	} {
		var out, problems strings.Builder
		require.Equal(t, 2, run(args, &out, &problems), want)
		require.Contains(t, problems.String(), want)
	}
}

func TestWhatCannotBeRead(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	cut := filepath.Join(t.TempDir(), "cut")
	whole, err := os.ReadFile(pcap(t, layers.LinkTypeRaw, frame{0, tcp(dprtest.SYN, 1, 0)}))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(cut, whole[:len(whole)-1], 0o600))
	for want, args := range map[string][]string{
		"no such file":            {"nowhere.pcap"},
		"too short for a capture": {empty},
		"unexpected EOF":          {cut},
		"link type":               {pcap(t, layers.LinkTypeFDDI, frame{0, make([]byte, 60)})},
		"must be between 68":      {"-peer", "h2,mtu=10", cut},
		"IDs must be unique":      {"-peer", "h2", "-peer", "h2", cut},
	} {
		var out, problems strings.Builder
		args = append([]string{"-service", "web=tcp:80@198.51.100.1"}, args...)
		require.Equal(t, 1, run(args, &out, &problems), want)
		require.Contains(t, problems.String(), want)
	}
}
