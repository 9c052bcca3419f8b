package dpr_test

import (
	"encoding/binary"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/lb"
)

// A captureRun is one way through a capture, and what must come of it. All of it was
// written down by hand from what tcpdump shows of the capture.
type captureRun struct {
	name    string // tells runs of one file apart
	service dpr.Service
	first   []byte // a packet that opens a flow before the capture begins
	gso     dpr.GSO
	peer    bool // the packets come through the tunnel from h2
	mtu     int  // of the tunnel to h2; 0 for the default
	strip   int  // length, in bytes, of a tunnel's headers that are taken off
	ttl     byte // what the TTL is set to, where the recorder wiped it; 0 leaves it

	// verdicts has one letter for each IP packet; see verdictLetters.
	verdicts string
	extra    string // of the packets that were held
	drops    map[dpr.Reason]uint64
	states   map[dpr.State]int
	unknown  uint64
	out, in  uint64 // flows redirected
	open     int    // flows that h2 has at the end
}

// The letters of the verdicts: drop, pass, local, forward, reply, transmit, hold.
const verdictLetters = "dplfrth"

// TestCaptures runs each file of the folder CAROM_CAPTURES, which is not part of
// this tree, through an engine that sends all new flows to h2.
func TestCaptures(t *testing.T) {
	dir := os.Getenv("CAROM_CAPTURES")
	if dir == "" {
		t.Skip("CAROM_CAPTURES is not set")
	}
	paths, err := filepath.Glob(filepath.Join(dir, "*.pcap*"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	runs := captureRuns()
	for _, path := range paths {
		file := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
		require.NotEmpty(t, runs[file], "%s: read it and write down what must come of it", file)
		pkts := readCapture(t, path)
		for _, run := range runs[file] {
			t.Run(strings.TrimSuffix(file+"/"+run.name, "/"), func(t *testing.T) { run.test(t, pkts) })
		}
	}
}

// A captured packet is an IP packet with the link's padding, and when it came.
type captured struct {
	data []byte
	at   time.Time
}

func readCapture(t *testing.T, path string) (pkts []captured) {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	require.NoError(t, err)
	for {
		frame, info, err := r.ReadPacketData()
		if err == io.EOF {
			return pkts
		}
		require.NoError(t, err)
		if data := stripLink(frame, r.LinkType()); data != nil {
			pkts = append(pkts, captured{data, info.Timestamp})
		}
	}
}

// stripLink returns the IP packet of a frame, nil if there is none.
func stripLink(frame []byte, link layers.LinkType) []byte {
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

func (r *captureRun) test(t *testing.T, pkts []captured) {
	b := r.bench(t)
	start := b.now
	if r.first != nil {
		b.requireForward(b.from(r.first), "h2")
	}
	var verdicts, extra strings.Builder
	var held [][]byte
	for _, in := range pkts {
		in.data = slices.Clone(in.data[r.strip:])
		if r.ttl != 0 {
			in.data[8] = r.ttl
		}
		b.now = start.Add(max(0, in.at.Sub(pkts[0].at)))
		b.Tick(b.now)
		p := r.process(b, in.data)
		verdicts.WriteByte(verdictLetters[p.Verdict])
		r.requireRight(b, in.data, &p)
		if p.Verdict == dpr.Hold {
			held = append(held, in.data)
		}
		for _, p := range b.extra() {
			extra.WriteByte(verdictLetters[p.Verdict])
			i := slices.IndexFunc(held, func(in []byte) bool { return lowered(in, p.Bytes()) })
			require.GreaterOrEqual(t, i, 0, "no packet that was held: %s", dprtest.Describe(p.Bytes()))
			held = slices.Delete(held, i, i+1)
		}
	}
	require.Equal(t, r.verdicts, verdicts.String())
	require.Equal(t, r.extra, extra.String())
	r.requireStats(t, b)
}

func (r *captureRun) bench(t *testing.T) *bench {
	e, err := dpr.New(dpr.Config{Services: []dpr.Service{r.service}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	b := &bench{t: t, Engine: e, now: time.Now(), policy: sendTo("h2")}
	require.NoError(t, e.SetPeers([]dpr.Peer{{ID: "h2", MTU: r.mtu}}))
	require.NoError(t, e.SetSnapshot("s", b.policy, &lb.Snapshot{Hosts: []lb.Host{
		{ID: "h1", Weight: 1, Flags: lb.Local}, {ID: "h2", Weight: 1},
	}}))
	return b
}

func (r *captureRun) process(b *bench, data []byte) dpr.Packet {
	pkts := []dpr.Packet{packet(data)}
	pkts[0].GSO = r.gso
	if r.peer {
		pkts[0].Peer = b.PeerID("h2")
	}
	b.Process(pkts, b.now)
	return pkts[0]
}

func (r *captureRun) requireStats(t *testing.T, b *bench) {
	s := b.Stats()
	drops, states := map[dpr.Reason]uint64{}, map[dpr.State]int{}
	for reason, n := range s.Drops {
		if n > 0 {
			drops[reason] = n
		}
	}
	for state, n := range s.Flows {
		if n > 0 {
			states[state] = n
		}
	}
	if r.drops == nil {
		r.drops = map[dpr.Reason]uint64{}
	}
	if r.states == nil {
		r.states = map[dpr.State]int{}
	}
	require.Equal(t, r.drops, drops)
	require.Equal(t, r.states, states)
	require.Equal(t, r.unknown, s.Unknown, "unknown")
	require.Equal(t, r.out, s.Services["s"].RedirectedOut, "redirected out")
	require.Equal(t, r.in, s.Services["s"].RedirectedIn, "redirected in")
	require.Equal(t, r.open, s.Open["h2"]["s"], "open")
	require.Equal(t, uint64(strings.Count(r.verdicts, "r")), s.Errors, "errors")
	for v, letter := range verdictLetters {
		n := strings.Count(r.verdicts+r.extra, string(letter))
		if r.first != nil && letter == 'f' {
			n++
		}
		require.Equal(t, uint64(n), s.Verdicts[dpr.Verdict(v)], dpr.Verdict(v).String())
	}
}

// requireRight judges what leaves the engine, with gopacket as its decoder.
func (r *captureRun) requireRight(b *bench, in []byte, p *dpr.Packet) {
	t, out := b.t, p.Bytes()
	t.Helper()
	switch p.Verdict {
	case dpr.Pass, dpr.Local:
		require.Equal(t, in[:length(in)], out, "the kernel gets it as it came, without padding")
	case dpr.Forward:
		require.Equal(t, b.PeerID("h2"), p.Peer)
		require.Equal(t, r.gso, p.GSO)
		require.True(t, lowered(in, out), dprtest.Diff(in[:length(in)], out))
	case dpr.Reply:
		r.requireError(t, in, out)
	}
}

// requireError expects an ICMP error about in, with nothing wrong but what it quotes.
func (r *captureRun) requireError(t *testing.T, in, out []byte) {
	t.Helper()
	requireSound(t, out)
	src, dst := addresses(in)
	from, to := addresses(out)
	require.Equal(t, []netip.Addr{dst, src}, []netip.Addr{from, to})
	message, ttl, want := out[20:], in[8], []byte{3, 4}
	if src.Is6() {
		message, ttl, want = out[40:], in[7], []byte{2, 0}
	}
	mtu := uint32(r.mtu)
	switch {
	case ttl <= 1 && src.Is4():
		want, mtu = []byte{11, 0}, 0
	case ttl <= 1:
		want, mtu = []byte{3, 0}, 0
	case mtu == 0:
		mtu = 1452
	}
	require.Equal(t, want, message[:2], "type and code")
	require.Equal(t, mtu, binary.BigEndian.Uint32(message[4:]))
	require.Equal(t, in[:len(message)-8], message[8:], "the packet as it came")
}

// requireSound expects a packet with right lengths and checksums, whatever it quotes.
func requireSound(t *testing.T, pkt []byte) {
	t.Helper()
	require.Equal(t, len(pkt), length(pkt))
	for _, sum := range residuals(pkt) {
		require.Zero(t, sum, "checksum")
	}
}

func decode(pkt []byte) gopacket.Packet {
	if pkt[0]>>4 == 6 {
		return gopacket.NewPacket(pkt, layers.LayerTypeIPv6, gopacket.Default)
	}
	return gopacket.NewPacket(pkt, layers.LayerTypeIPv4, gopacket.Default)
}

// length is the length that the IP header gives.
func length(pkt []byte) int {
	switch ip := decode(pkt).Layers()[0].(type) {
	case *layers.IPv4:
		return int(ip.Length)
	case *layers.IPv6:
		return 40 + int(ip.Length)
	}
	return -1
}

func addresses(pkt []byte) (src, dst netip.Addr) {
	s, d := decode(pkt).NetworkLayer().NetworkFlow().Endpoints()
	src, _ = netip.AddrFromSlice(s.Raw())
	dst, _ = netip.AddrFromSlice(d.Raw())
	return src, dst
}

// lowered reports whether out is in without its padding and with a TTL one lower,
// all other bytes equal, and each checksum as right or as wrong as before.
func lowered(in, out []byte) bool {
	if length(in) != len(out) || length(out) != len(out) {
		return false
	}
	want, got := slices.Clone(in[:len(out)]), slices.Clone(out)
	ttl, sum := 8, 10
	if out[0]>>4 == 6 {
		ttl, sum = 7, 0
	}
	if got[ttl] != want[ttl]-1 || !slices.Equal(residuals(in[:len(out)]), residuals(out)) {
		return false
	}
	want[ttl] = got[ttl]
	if sum > 0 {
		copy(want[sum:sum+2], got[sum:sum+2])
	}
	return slices.Equal(want, got)
}

// residuals sums up each part of a packet that a checksum covers: 0 where the
// checksum is right, and otherwise by how much it is wrong.
func residuals(pkt []byte) (sums []uint32) {
	var pseudo uint32
	for _, layer := range decode(pkt).Layers() {
		covered := append(slices.Clone(layer.LayerContents()), layer.LayerPayload()...)
		switch l := layer.(type) {
		case *layers.IPv4:
			sums = append(sums, onesSum(l.Contents))
			pseudo = onesSum(append(slices.Clone([]byte(l.SrcIP.To4())), l.DstIP.To4()...))
		case *layers.IPv6:
			pseudo = onesSum(append(slices.Clone([]byte(l.SrcIP)), l.DstIP...))
		case *layers.TCP:
			return append(sums, (onesSum(covered)+pseudo+6+uint32(len(covered)))%0xffff)
		case *layers.UDP:
			return append(sums, (onesSum(covered)+pseudo+17+uint32(len(covered)))%0xffff)
		case *layers.ICMPv4:
			return append(sums, onesSum(covered))
		case *layers.ICMPv6:
			return append(sums, (onesSum(covered)+pseudo+58+uint32(len(covered)))%0xffff)
		}
	}
	return sums
}

// onesSum is the ones' complement sum of RFC 1071, in the slowest way: modulo
// 0xffff, so that both of its zeros are 0.
func onesSum(b []byte) (sum uint32) {
	for i := range b {
		if i%2 == 0 {
			sum += uint32(b[i]) << 8
		} else {
			sum += uint32(b[i])
		}
		sum %= 0xffff
	}
	return sum
}
