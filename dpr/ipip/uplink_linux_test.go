package ipip

import (
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/internal/lab"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	peerA = dpr.PeerID(11) // as b calls it
	peerB = dpr.PeerID(22) // as a calls it
)

// pair are two hosts with an uplink each that know each other in one family.
type pair struct {
	hostA, hostB *lab.Host
	a, b         *Uplink
	at           netip.Addr // of b
}

func newPair(t *testing.T, v6 bool) *pair {
	t.Helper()
	lab.Require(t)
	l, err := lab.New(lab.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	p := &pair{}
	p.hostA, err = l.AddHost("a", netip.MustParsePrefix("10.1.0.1/24"), netip.MustParsePrefix("fd01::1/64"))
	require.NoError(t, err)
	p.hostB, err = l.AddHost("b", netip.MustParsePrefix("10.1.0.2/24"), netip.MustParsePrefix("fd01::2/64"))
	require.NoError(t, err)
	from := p.hostA.Addr4()
	if p.at = p.hostB.Addr4(); v6 {
		from, p.at = p.hostA.Addr6(), p.hostB.Addr6()
	}
	p.a = open(t, p.hostA, Config{Listen: []netip.Addr{p.hostA.Addr4(), p.hostA.Addr6()}, SendOnly: true})
	p.b = open(t, p.hostB, Config{Listen: []netip.Addr{p.at}})
	mtu, err := p.a.MTU(p.at)
	require.NoError(t, err)
	require.NoError(t, p.a.SetPeers([]Peer{{ID: peerB, Addr: p.at, MTU: mtu}}))
	require.NoError(t, p.b.SetPeers([]Peer{{ID: peerA, Addr: from, MTU: mtu}}))
	return p
}

func open(t *testing.T, h *lab.Host, cfg Config) (u *Uplink) {
	t.Helper()
	require.NoError(t, h.Do(func() (err error) {
		u, err = Open(cfg)
		return err
	}))
	t.Cleanup(func() { require.NoError(t, u.Close()) })
	return u
}

// each runs a test for each family outside and inside.
func each(t *testing.T, test func(t *testing.T, p *pair, queue *Queue, src, dst netip.AddrPort)) {
	for _, outer := range []string{"IPv4", "IPv6"} {
		t.Run("over "+outer, func(t *testing.T) {
			p := newPair(t, outer == "IPv6")
			t.Run("IPv4", func(t *testing.T) { test(t, p, p.b.Queues[0], client4, server4) })
			t.Run("IPv6", func(t *testing.T) { test(t, p, p.b.Queues[1], client6, server6) })
		})
	}
}

func packet(b []byte) dpr.Packet {
	p := dpr.NewPackets(1, dpr.MaxPacket)[0]
	p.Len, p.Peer = copy(p.Buf[p.Off:], b), peerB
	return p
}

// limit ends a test that hangs; no result depends on it.
const limit = time.Minute

// receive reads until there are so many packets.
func receive(t *testing.T, q *Queue, n int) (all [][]byte) {
	t.Helper()
	require.NoError(t, q.sock.file.SetReadDeadline(time.Now().Add(limit)))
	pkts := dpr.NewPackets(8, dpr.MaxPacket)
	for len(all) < n {
		got, err := q.Read(pkts)
		require.NoError(t, err)
		for _, p := range pkts[:got] {
			require.Equal(t, peerA, p.Peer)
			if p.GSO.Type == dpr.GSONone {
				require.NoError(t, dprtest.Check(p.Bytes()))
			}
			all = append(all, slices.Clone(p.Bytes()))
		}
	}
	return all
}

func TestPacketsArriveAsTheyWere(t *testing.T) {
	each(t, func(t *testing.T, p *pair, q *Queue, src, dst netip.AddrPort) {
		var want [][]byte
		var pkts []dpr.Packet
		for i := range 100 {
			b := dprtest.UDP(src, dst, dprtest.Options{DF: i%2 == 0, TOS: 0xb8, Payload: make([]byte, i*10)})
			want = append(want, b)
			pkts = append(pkts, packet(b))
		}
		n, err := p.a.Write(pkts)
		require.NoError(t, err)
		require.Equal(t, len(pkts), n)
		require.ElementsMatch(t, want, receive(t, q, len(want)))
	})
}

// A super-frame is cut, and joined again from what arrives.
func TestSuperFrames(t *testing.T) {
	each(t, func(t *testing.T, p *pair, q *Queue, src, dst netip.AddrPort) {
		b := dprtest.TCP(src, dst, dprtest.Options{Flags: dprtest.ACK, Seq: 7, DF: true, Payload: make([]byte, 10_000), Checksum: dprtest.Partial})
		super := packet(b)
		headers, kind := 40, dpr.GSOTCP4
		if src.Addr().Is6() {
			headers, kind = 60, dpr.GSOTCP6
		}
		super.GSO = dpr.GSO{Type: kind, NeedsCsum: true, CsumStart: uint16(headers - 20), CsumOffset: 16, HdrLen: uint16(headers), Size: 1000}
		n, err := p.a.Write([]dpr.Packet{super})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		payload := 0
		for payload < 10_000 {
			payload += len(receive(t, q, 1)[0]) - headers
		}
		require.Equal(t, 10_000, payload)
	})
}

// The outer DF bit is the inner one; the TOS goes out (RFC 2003, RFC 2983, RFC 6040).
func TestOuterHeader(t *testing.T) {
	p := newPair(t, false)
	var fd int
	require.NoError(t, p.hostB.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_IP)))
		return err
	}))
	defer unix.Close(fd)
	require.NoError(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20}))
	for _, c := range []struct {
		name  string
		inner []byte
		df    bool
		proto byte
	}{
		{"DF", dprtest.UDP(client4, server4, dprtest.Options{DF: true, TOS: 0xba}), true, 4},
		{"no DF", dprtest.UDP(client4, server4, dprtest.Options{TOS: 0xba}), false, 4},
		{"IPv6", dprtest.UDP(client6, server6, dprtest.Options{TOS: 0xba}), true, 41},
	} {
		_, err := p.a.Write([]dpr.Packet{packet(c.inner)})
		require.NoError(t, err)
		b := make([]byte, 2000)
		for {
			n, err := unix.Read(fd, b)
			require.NoError(t, err)
			if b[9] != c.proto {
				continue
			}
			require.Equal(t, c.inner, b[20:n], c.name)
			require.Equal(t, byte(0xba), b[1], c.name)
			require.Equal(t, c.df, b[6]&0x40 != 0, c.name)
			break
		}
	}
}

func htons(v uint16) uint16 { return v<<8 | v>>8 } // no test runs on a big-endian machine

func TestDrops(t *testing.T) {
	p := newPair(t, false)
	require.NoError(t, p.b.SetPeers(nil))
	strange := packet(dprtest.UDP(client4, server4, dprtest.Options{}))
	stray := strange
	stray.Peer = 77
	long := packet(dprtest.UDP(client4, server4, dprtest.Options{DF: true, Payload: make([]byte, 1480)}))
	whole := packet(dprtest.UDP(client4, server4, dprtest.Options{DF: true, Payload: make([]byte, 1452)}))
	bad := packet([]byte{0x45, 0, 0, 1})
	n, err := p.a.Write([]dpr.Packet{strange, stray, long, whole, bad})
	require.NoError(t, err)
	require.Equal(t, 5, n)
	sent := p.a.Stats()
	require.EqualValues(t, 2, sent.Sent)
	require.EqualValues(t, 1, sent.Dropped[NoPeer])
	require.EqualValues(t, 1, sent.Dropped[TooBig])
	require.EqualValues(t, 1, sent.Dropped[Malformed])

	done := reading(p.b.Queues[0])
	require.Eventually(t, func() bool { return p.b.Stats().Dropped[UnknownPeer] == 2 }, limit, time.Millisecond)
	require.NoError(t, p.b.Close())
	require.ErrorIs(t, <-done, os.ErrClosed)
	_, err = p.b.Queues[0].Write(nil)
	require.NoError(t, err, "nothing to write")
	_, err = p.b.MTU(p.hostA.Addr4())
	require.ErrorIs(t, err, os.ErrClosed)
}

// reading reads, and returns where its error will be.
func reading(q *Queue) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := q.Read(dpr.NewPackets(1, dpr.MaxPacket))
		done <- err
	}()
	return done
}

func TestCloseWakesReadAndLeaksNothing(t *testing.T) {
	lab.Require(t)
	l, err := lab.New(lab.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	h, err := l.AddHost("a", netip.MustParsePrefix("10.1.0.1/24"), netip.MustParsePrefix("fd01::1/64"))
	require.NoError(t, err)
	stranger := open(t, h, Config{Listen: []netip.Addr{h.Addr4(), h.Addr6()}, SendOnly: true})
	require.NoError(t, stranger.SetPeers([]Peer{{ID: 1, Addr: h.Addr4(), MTU: 1400}, {ID: 2, Addr: h.Addr6(), MTU: 1400}}))
	var each []dpr.Packet // one for each queue
	for id := range dpr.PeerID(2) {
		each = append(each, packet(dprtest.UDP(client4, server4, dprtest.Options{})), packet(dprtest.UDP(client6, server6, dprtest.Options{})))
		each[2*id].Peer, each[2*id+1].Peer = id+1, id+1
	}
	before := descriptors(t)
	fastest := limit // one of many, since the machine may be busy
	for range 50 {
		u := open(t, h, Config{Listen: []netip.Addr{h.Addr4(), h.Addr6()}})
		require.Len(t, u.Queues, len(each))
		var done []<-chan error
		for _, q := range u.Queues {
			done = append(done, reading(q))
		}
		_, err := stranger.Write(each)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return u.Stats().Dropped[UnknownPeer] == uint64(len(each)) }, limit, time.Millisecond, "all queues are read")
		start := time.Now()
		require.NoError(t, u.Close())
		for _, err := range done {
			require.ErrorIs(t, <-err, os.ErrClosed)
		}
		fastest = min(fastest, time.Since(start))
		require.NoError(t, u.Close())
		require.Equal(t, before, descriptors(t))
	}
	require.Less(t, fastest, 100*time.Millisecond, "Read was not woken")
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

// The MTU follows the route's.
func TestMTU(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		p := newPair(t, v6)
		mtu, err := p.a.MTU(p.at)
		require.NoError(t, err)
		require.Equal(t, 1500-Overhead(v6), mtu)
		require.NoError(t, p.hostA.SetMTU("eth0", 1400))
		mtu, err = p.a.MTU(p.at)
		require.NoError(t, err)
		require.Equal(t, 1400-Overhead(v6), mtu)
	}
}

// A path too narrow for IPv6's 1280 bytes gets them in fragments.
func TestNarrowPath(t *testing.T) {
	p := newPair(t, false)
	require.NoError(t, p.hostA.SetMTU("eth0", 1280))
	require.NoError(t, p.a.SetPeers([]Peer{{ID: peerB, Addr: p.at, MTU: 1260}}))
	b := dprtest.UDP(client6, server6, dprtest.Options{Payload: make([]byte, 1280-48)})
	_, err := p.a.Write([]dpr.Packet{packet(b)})
	require.NoError(t, err)
	require.Equal(t, [][]byte{b}, receive(t, p.b.Queues[1], 1))
}

// Where the kernel joins what it receives, packets may come joined, with no length of
// a segment and a checksum that is none; see TestJoined.
func TestReceiveOffload(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		p := newPair(t, v6)
		require.NoError(t, p.hostB.Do(func() error { return switchGRO("eth0") }))
		data := make([]byte, 60_000)
		for i := range data {
			data[i] = byte(i >> 3)
		}
		b := dprtest.TCP(client4, server4, dprtest.Options{Flags: dprtest.ACK, DF: true, Payload: data, Checksum: dprtest.Partial})
		super := packet(b)
		super.GSO = dpr.GSO{Type: dpr.GSOTCP4, NeedsCsum: true, CsumStart: 20, CsumOffset: 16, HdrLen: 40, Size: 1000}
		_, err := p.a.Write([]dpr.Packet{super})
		require.NoError(t, err)
		var got []byte
		for len(got) < len(data) {
			for _, b := range receive(t, p.b.Queues[0], 1) {
				got = append(got, b[40:]...)
			}
		}
		require.Equal(t, data, got)
		t.Logf("60 segments came as %d packets", p.b.Stats().Received)
	}
}

// switchGRO has an interface join what it receives, as network cards do.
func switchGRO(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	value := struct{ cmd, data uint32 }{0x2c, 1} // ETHTOOL_SGRO
	var req struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(req.name[:], name)
	req.data = unsafe.Pointer(&value)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req))); errno != 0 {
		return errno
	}
	return nil
}
