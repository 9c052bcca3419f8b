package gue

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/internal/segment"
	"github.com/carom-dpr/carom/internal/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	client4 = netip.MustParseAddrPort("203.0.113.7:50001")
	server4 = netip.MustParseAddrPort("192.0.2.1:80")
	client6 = netip.MustParseAddrPort("[2001:db8:1::7]:50001")
	server6 = netip.MustParseAddrPort("[2001:db8::1]:80")
	aKey    = Key{ID: 5, Secret: [16]byte{9}}
)

const (
	peerA = dpr.PeerID(11) // as B calls it
	peerB = dpr.PeerID(22) // as A calls it
)

// freePort returns a UDP port that nobody uses.
func freePort(t testing.TB) uint16 {
	t.Helper()
	c, err := net.ListenPacket("udp", ":0")
	require.NoError(t, err)
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Port()
}

func open(t testing.TB, cfg Config) *Uplink {
	t.Helper()
	u, err := Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, u.Close()) })
	return u
}

// pair returns two uplinks that know each other, on 127.0.0.1 and .2, or on ::1
// and the other of it, which knows itself by that address.
func pair(t testing.TB, is6 bool, cfg Config) (a, b *Uplink) {
	t.Helper()
	port := freePort(t)
	if is6 {
		// There is only one IPv6 loopback address: the uplink is its own peer.
		at := netip.AddrPortFrom(netip.IPv6Loopback(), port)
		cfg.Listen = []netip.AddrPort{at}
		u := open(t, cfg)
		require.NoError(t, u.SetPeers([]Peer{{ID: peerB, Addr: at}}))
		return u, u
	}
	var ends [2]netip.AddrPort
	var ups [2]*Uplink
	for i := range ups {
		ends[i] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, byte(i + 1)}), port)
		cfg.Listen = []netip.AddrPort{ends[i]}
		ups[i] = open(t, cfg)
	}
	require.NoError(t, ups[0].SetPeers([]Peer{{ID: peerB, Addr: ends[1]}}))
	require.NoError(t, ups[1].SetPeers([]Peer{{ID: peerA, Addr: ends[0]}}))
	return ups[0], ups[1]
}

func packet(b []byte, to dpr.PeerID) dpr.Packet {
	p := dpr.NewPackets(1, dpr.MaxPacket)[0]
	p.Len, p.Peer = copy(p.Buf[p.Off:], b), to
	return p
}

// super returns a super-frame with its segments, of 1,000 bytes each.
func super(t testing.TB, src, dst netip.AddrPort, payload int, to dpr.PeerID) (dpr.Packet, [][]byte) {
	t.Helper()
	data := make([]byte, payload)
	for i := range data {
		data[i] = byte(i * 31 >> 3)
	}
	o := dprtest.Options{Flags: dprtest.ACK | dprtest.PSH, Seq: 1000, TOS: 2, DF: true, Payload: data, Checksum: dprtest.Partial}
	p := packet(dprtest.TCP(src, dst, o), to)
	ip, kind := 20, dpr.GSOTCP4
	if src.Addr().Is6() {
		ip, kind = 40, dpr.GSOTCP6
	}
	p.GSO = dpr.GSO{
		Type: kind, NeedsCsum: true, CsumStart: uint16(ip), CsumOffset: 16, HdrLen: uint16(ip + 20), Size: 1000,
	}
	return p, segments(t, p)
}

func segments(t testing.TB, p dpr.Packet) (out [][]byte) {
	t.Helper()
	if p.GSO == (dpr.GSO{}) {
		return [][]byte{append([]byte{}, p.Bytes()...)}
	}
	var s segment.Splitter
	require.True(t, s.Start(&p))
	dst := dpr.NewPackets(s.Left(), s.MaxLen())
	n, ok := s.Next(dst)
	require.True(t, ok)
	for _, q := range dst[:n] {
		out = append(out, append([]byte{}, q.Bytes()...))
	}
	return out
}

// read reads until it has the given number of segments.
func read(t testing.TB, d dpr.Device, want int, from dpr.PeerID) (segs [][]byte, packets int) {
	t.Helper()
	pkts := dpr.NewPackets(8, dpr.MaxPacket)
	for len(segs) < want {
		n, err := d.Read(pkts)
		require.NoError(t, err)
		for _, p := range pkts[:n] {
			require.Equal(t, from, p.Peer)
			require.Equal(t, dpr.Headroom, p.Off)
			segs = append(segs, segments(t, p)...)
			packets++
		}
	}
	return segs, packets
}

func TestUplink(t *testing.T) {
	for _, is6 := range []bool{false, true} {
		for _, keys := range [][]Key{nil, {aKey}} {
			for _, plain := range []bool{false, true} {
				cfg := Config{Keys: keys, NoOffload: plain}
				t.Run(fmt.Sprintf("IPv6 outside %v, %d keys, no offload %v", is6, len(keys), plain), func(t *testing.T) {
					a, b := pair(t, is6, cfg)
					from := peerA
					if is6 {
						from = peerB
					}
					for _, ends := range [][2]netip.AddrPort{{client4, server4}, {client6, server6}} {
						frame, want := super(t, ends[0], ends[1], 40_500, peerB)
						single := dprtest.UDP(ends[0], ends[1], dprtest.Options{Payload: []byte("single"), TOS: 0xb8})
						n, err := a.Queues[0].Write([]dpr.Packet{frame, packet(single, peerB)})
						require.NoError(t, err)
						require.Equal(t, 2, n)
						got, packets := read(t, b.Queues[0], len(want)+1, from)
						require.ElementsMatch(t, append(want, single), got)
						if plain {
							require.Equal(t, len(want)+1, packets)
						} else {
							require.Equal(t, 2, packets, "the super-frame arrives as one")
						}
					}
					require.Equal(t, uint64(2*42), a.Stats().Sent)
					require.Equal(t, uint64(2*42), b.Stats().Received)
					require.Zero(t, a.Stats().Dropped)
					require.Zero(t, b.Stats().Dropped)
				})
			}
		}
	}
}

// TestBatchKeepsOrder sends many flows at once and sees each in order and whole.
func TestBatchKeepsOrder(t *testing.T) {
	a, b := pair(t, false, Config{})
	const flows, each = 20, 15
	var pkts []dpr.Packet
	for k := range each {
		for f := range flows {
			src := netip.AddrPortFrom(client4.Addr(), uint16(40000+f))
			pkts = append(pkts, packet(dprtest.UDP(src, server4, dprtest.Options{
				ID: uint16(k * 7), Payload: []byte{byte(f), byte(k)}, DF: f%2 == 0,
			}), peerB))
		}
	}
	n, err := a.Queues[0].Write(pkts)
	require.NoError(t, err)
	require.Equal(t, len(pkts), n)
	got, _ := read(t, b.Queues[0], len(pkts), peerA)
	next := map[byte]byte{}
	for _, p := range got {
		f, k := p[28], p[29]
		require.Equal(t, next[f], k, "flow %d", f)
		next[f]++
	}
	require.Less(t, a.Stats().SendCalls, uint64(len(pkts)/2))
}

// TestReadWithFewPackets: what does not fit waits for the next Read.
func TestReadWithFewPackets(t *testing.T) {
	a, b := pair(t, false, Config{Keys: []Key{aKey}})
	var pkts []dpr.Packet
	var want [][]byte
	for k := range 30 { // ECN-marked, so that a packet taken out twice would fail its tag
		w := dprtest.TCP(client4, server4, dprtest.Options{
			Flags: dprtest.ACK, Seq: uint32(k * 1000), Payload: []byte{byte(k)}, TOS: 2,
		})
		want = append(want, w)
		pkts = append(pkts, packet(w, peerB))
	}
	_, err := a.Queues[0].Write(pkts)
	require.NoError(t, err)
	one := dpr.NewPackets(1, dpr.MaxPacket)
	for k := range want {
		n, err := b.Queues[0].Read(one)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, want[k], one[0].Bytes())
	}
	require.Zero(t, b.Stats().Dropped)
}

// TestTOSTravels is A19: DSCP and ECN go out with the packet and stay in it, whatever
// the families inside and outside.
func TestTOSTravels(t *testing.T) {
	for _, is6 := range []bool{false, true} {
		a, b := pair(t, is6, Config{})
		for _, ends := range [][2]netip.AddrPort{{client4, server4}, {client6, server6}} {
			for _, want := range []uint8{0, 1, 2, 3, 0x2e<<2 | 2} {
				p := packet(dprtest.UDP(ends[0], ends[1], dprtest.Options{TOS: want}), peerB)
				_, err := a.Queues[0].Write([]dpr.Packet{p})
				require.NoError(t, err)
				pkts := dpr.NewPackets(1, 2000)
				_, err = b.Queues[0].Read(pkts)
				require.NoError(t, err)
				require.Equal(t, want, b.Queues[0].in.tos, "outer")
				require.Equal(t, want, tunnel.TOS(pkts[0].Bytes()), "inner")
			}
		}
	}
}

func TestStrangersAreDropped(t *testing.T) {
	a, b := pair(t, false, Config{})
	inner := dprtest.UDP(client4, server4, dprtest.Options{})
	require.NoError(t, b.SetPeers(nil))
	_, err := a.Queues[0].Write([]dpr.Packet{packet(inner, peerB)})
	require.NoError(t, err)

	// A peer whose key is wrong, and one that sends what is no tunnel packet.
	to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), b.cfg.Listen[0].Port())
	conn, err := net.DialUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 3)}, net.UDPAddrFromAddrPort(to))
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, b.SetPeers([]Peer{
		{ID: peerA, Addr: a.cfg.Listen[0]},
		{ID: 33, Addr: netip.MustParseAddrPort("127.0.0.3:9")},
	}))
	// The first datagram waits in the socket: the peers count when it is read.
	require.NoError(t, b.SetPeers([]Peer{{ID: 33, Addr: netip.MustParseAddrPort("127.0.0.3:9")}}))
	for _, payload := range []string{"", "\x55garbage", "\x23\x01\x00\x00" + string(make([]byte, 12)), string(inner)} {
		_, err := conn.Write([]byte(payload))
		require.NoError(t, err)
	}
	got, _ := read(t, b.Queues[0], 1, 33)
	require.Equal(t, [][]byte{inner}, got)
	want := Stats{}
	want.Dropped[UnknownPeer] = 1
	want.Dropped[Short] = 1
	want.Dropped[BadInner] = 1
	want.Dropped[Control] = 1
	require.Equal(t, want.Dropped, b.Stats().Dropped)
}

func TestWriteDropsAndCounts(t *testing.T) {
	a, b := pair(t, false, Config{})
	good := dprtest.UDP(client4, server4, dprtest.Options{Payload: []byte("x")})
	// The loopback device has an MTU of 65,536: only UDP's own limit is below a packet's.
	long := func(df bool) dpr.Packet {
		return packet(dprtest.UDP(client4, server4, dprtest.Options{Payload: make([]byte, 65535-28), DF: df}), peerB)
	}
	cut := packet(good[:len(good)-1], peerB)
	broken, _ := super(t, client4, server4, 3000, peerB)
	broken.GSO.CsumStart = 60000
	n, err := a.Queues[0].Write([]dpr.Packet{
		packet(good, 99), cut, broken, long(true), long(false), packet(good, peerB),
	})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	got, _ := read(t, b.Queues[0], 1, peerA)
	require.Equal(t, [][]byte{good}, got)
	var want [NumReasons]uint64
	want[NoPeer], want[Malformed], want[TooBig] = 1, 2, 2
	require.Equal(t, want, a.Stats().Dropped)
}

// TestRefusedOffload gives the kernel what it refuses, a socket without checksums,
// and sees every segment arrive all the same.
func TestRefusedOffload(t *testing.T) {
	var log strings.Builder
	a, b := pair(t, false, Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	for _, s := range a.sources[0] {
		require.NoError(t, s.raw.Control(func(fd uintptr) {
			require.NoError(t, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_NO_CHECK, 1))
		}))
	}
	for range 2 {
		frame, want := super(t, client4, server4, 40_500, peerB)
		n, err := a.Queues[0].Write([]dpr.Packet{frame})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		got, _ := read(t, b.Queues[0], len(want), peerA)
		require.Equal(t, want, got)
	}
	require.Equal(t, 1, strings.Count(log.String(), "\n"), "logged once: %s", log.String())
	require.Equal(t, uint64(82), a.Stats().Sent)
	require.Zero(t, a.Stats().Dropped)
}

func TestClose(t *testing.T) {
	before := descriptors(t)
	for range 100 {
		port := freePort(t)
		u, err := Open(Config{Listen: []netip.AddrPort{
			netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port), netip.AddrPortFrom(netip.IPv6Loopback(), port),
		}, Queues: 2})
		require.NoError(t, err)
		require.Len(t, u.Queues, 4)
		got := make(chan error)
		for _, q := range u.Queues {
			go func() {
				_, err := q.Read(dpr.NewPackets(1, 2000))
				got <- err
			}()
		}
		require.NoError(t, u.Queues[0].Close())
		require.ErrorIs(t, <-got, os.ErrClosed)
		_, err = u.Queues[0].Write(nil)
		require.ErrorIs(t, err, os.ErrClosed)
		require.NoError(t, u.Close())
		for range 3 {
			require.ErrorIs(t, <-got, os.ErrClosed)
		}
		require.NoError(t, u.Close())
	}
	require.Equal(t, before, descriptors(t))
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

func TestQueuesShareTheLoad(t *testing.T) {
	a, b := pair(t, false, Config{Queues: 2, Sources: maxSources})
	var pkts []dpr.Packet
	for f := range 128 {
		src := netip.AddrPortFrom(client4.Addr(), uint16(40000+f))
		pkts = append(pkts, packet(dprtest.UDP(src, server4, dprtest.Options{}), peerB))
	}
	_, err := a.Queues[1].Write(pkts)
	require.NoError(t, err)
	// If one queue had all flows, once in 2^50 runs,
	// the second Read would wait for ever.
	for _, q := range b.Queues {
		n, err := q.Read(dpr.NewPackets(128, 2000))
		require.NoError(t, err)
		require.NotZero(t, n)
	}
}

func TestFailedOpenLeavesNothing(t *testing.T) {
	port := freePort(t)
	here := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)
	open(t, Config{Listen: []netip.AddrPort{here}})
	before := descriptors(t)
	for name, tc := range map[string]struct {
		cfg  Config
		says string
	}{
		"port taken":        {Config{Listen: []netip.AddrPort{here}}, here.String()},
		"second port taken": {Config{Listen: []netip.AddrPort{netip.AddrPortFrom(netip.IPv6Loopback(), port), here}}, here.String()},
		"foreign address":   {Config{Listen: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.9:6080")}}, "192.0.2.9"},
		"two of a family":   {Config{Listen: []netip.AddrPort{here, here}}, "Listen[1]"},
		"no address":        {Config{Listen: []netip.AddrPort{{}}}, "Listen[0]"},
		"keys, anywhere":    {Config{Keys: []Key{aKey}}, "Listen"},
		"keys, wildcard":    {Config{Keys: []Key{aKey}, Listen: []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:0")}}, "Listen[0]"},
		"key":               {Config{Keys: []Key{{}}, Listen: []netip.AddrPort{here}}, "Keys[0]"},
		"queues":            {Config{Queues: -1}, "Queues"},
		"sources":           {Config{Sources: 65}, "Sources"},
	} {
		_, err := Open(tc.cfg)
		require.ErrorContains(t, err, tc.says, name)
	}
	require.Equal(t, before, descriptors(t))
}

func TestSetPeers(t *testing.T) {
	a, _ := pair(t, false, Config{})
	one := netip.MustParseAddrPort("192.0.2.1:0")
	for name, tc := range map[string]struct {
		peers []Peer
		says  string
	}{
		"ID 0":          {[]Peer{{ID: 0, Addr: one}}, "ID 0"},
		"ID twice":      {[]Peer{{ID: 1, Addr: one}, {ID: 1, Addr: netip.MustParseAddrPort("192.0.2.2:0")}}, "ID 1"},
		"address twice": {[]Peer{{ID: 1, Addr: one}, {ID: 2, Addr: netip.MustParseAddrPort("192.0.2.1:99")}}, "192.0.2.1"},
		"no address":    {[]Peer{{ID: 1}}, "peer 1"},
		"multicast":     {[]Peer{{ID: 1, Addr: netip.MustParseAddrPort("224.0.0.1:0")}}, "224.0.0.1"},
		"one link's":    {[]Peer{{ID: 1, Addr: netip.MustParseAddrPort("[fe80::1%eth0]:0")}}, "fe80::1"},
		"other family":  {[]Peer{{ID: 1, Addr: netip.MustParseAddrPort("[fd00::1]:0")}}, "fd00::1"},
	} {
		require.ErrorContains(t, a.SetPeers(tc.peers), tc.says, name)
	}
	require.NotNil(t, a.peers.Load().byID[peerB], "an error changes nothing")
	require.NoError(t, a.SetPeers([]Peer{{ID: 1, Addr: netip.MustParseAddrPort("[::ffff:192.0.2.1]:0")}}))
	require.Equal(t, "192.0.2.1:6080", a.peers.Load().byID[1].addr.String())
	require.Error(t, a.SetKeys(aKey), "keys change the overhead")
	require.Equal(t, 28, a.Overhead(one.Addr()))
}

func TestNothingAllocates(t *testing.T) {
	a, b := pair(t, false, Config{Keys: []Key{aKey}})
	frame, _ := super(t, client4, server4, 40_500, peerB)
	pkts := dpr.NewPackets(4, dpr.MaxPacket)
	out := make([]dpr.Packet, 1)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		out[0] = frame
		a.Queues[0].Write(out)
		b.Queues[0].Read(pkts)
	}))
	require.Equal(t, uint64(101*41), b.Stats().Received)
}

func BenchmarkSuperFrame(b *testing.B) {
	for name, cfg := range map[string]Config{"offload": {}, "offload, tag": {Keys: []Key{aKey}}, "no offload": {NoOffload: true}} {
		b.Run(name, func(b *testing.B) {
			from, to := pair(b, false, cfg)
			frame, segs := super(b, client4, server4, 60_000, peerB)
			pkts := dpr.NewPackets(64, dpr.MaxPacket)
			b.SetBytes(60_000)
			for b.Loop() {
				if _, err := from.Queues[0].Write([]dpr.Packet{frame}); err != nil {
					b.Fatal(err)
				}
				for got := 0; got < len(segs); {
					n, err := to.Queues[0].Read(pkts)
					if err != nil {
						b.Fatal(err)
					}
					for _, p := range pkts[:n] {
						got += max(1, int(p.Len-int(p.GSO.HdrLen)+999)/1000*min(1, int(p.GSO.Size)))
					}
				}
			}
		})
	}
}

func BenchmarkSmall(b *testing.B) {
	from, to := pair(b, false, Config{})
	ack := dprtest.TCP(client4, server4, dprtest.Options{Flags: dprtest.ACK})
	out := make([]dpr.Packet, 64)
	for i := range out {
		out[i] = packet(ack, peerB)
	}
	pkts := dpr.NewPackets(64, dpr.MaxPacket)
	for b.Loop() {
		from.Queues[0].Write(out)
		for got := 0; got < len(out); {
			n, err := to.Queues[0].Read(pkts)
			if err != nil {
				b.Fatal(err)
			}
			got += n
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(out)), "ns/packet")
}
