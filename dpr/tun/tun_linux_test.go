package tun

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/internal/nonblock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit ends a test that hangs; no result depends on it.
const limit = time.Minute

// inNamespace runs f on a thread in a network namespace of its own, or skips
// where that is not permitted.
func inNamespace(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine, and the namespace with it
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			var fd int
			if fd, err = unix.Open(device, unix.O_RDWR, 0); err == nil {
				unix.Close(fd)
			}
		}
		done <- err
		if err == nil {
			defer close(done)
			f()
		}
	}()
	if err := <-done; err != nil {
		if os.Getenv("CAROM_MUST_RUN") == "1" {
			t.Fatalf("no TUN in a network namespace: %v", err)
		}
		t.Skipf("no TUN in a network namespace: %v", err)
	}
	<-done
}

// open returns an interface that is up and has an address in each family.
func open(t *testing.T, cfg Config) *Interface {
	t.Helper()
	i, err := Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { i.Close() })
	link, err := netlink.LinkByIndex(i.Index)
	require.NoError(t, err)
	for _, a := range []string{"10.9.0.1/24", "fd00::1/64"} {
		addr, err := netlink.ParseAddr(a)
		require.NoError(t, err)
		addr.Flags = unix.IFA_F_NODAD
		require.NoError(t, netlink.AddrAdd(link, addr))
	}
	if cfg.Up {
		awaitLocal(t, i.Index)
	}
	return i
}

// awaitLocal waits until the kernel accepts packets to the interface's IPv6
// address: it makes the route for that in the background.
func awaitLocal(t *testing.T, index int) {
	t.Helper()
	want := netlink.Route{LinkIndex: index, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL}
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); runtime.Gosched() {
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_V6, &want,
			netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
		require.NoError(t, err)
		for _, r := range routes {
			if r.Dst.IP.Equal(net.ParseIP("fd00::1")) {
				return
			}
		}
	}
	t.Fatal("no local route for fd00::1")
}

// reflect swaps source and destination, addresses and ports, which no checksum
// notices.
func reflect(p *dpr.Packet) {
	b := p.Bytes()
	swap := func(at, n int) {
		for i := at; i < at+n; i++ {
			b[i], b[i+n] = b[i+n], b[i]
		}
	}
	if b[0]>>4 == 4 {
		swap(12, 4)
		swap(20, 2)
		return
	}
	swap(8, 16)
	swap(40, 2)
}

// TestEcho sends datagrams, one at a time and in a super-frame, into the
// interface and back to the kernel, which checks every checksum.
func TestEcho(t *testing.T) {
	for _, cfg := range []Config{
		{Name: "echo0", Up: true, MTU: 1400},
		{Name: "echo0", Up: true, NoOffload: true},
		{Name: "echo%d", Up: true, Queues: 3},
	} {
		for _, far := range []string{"10.9.0.2", "fd00::2"} {
			t.Run(fmt.Sprintf("%+v %s", cfg, far), func(t *testing.T) {
				inNamespace(t, func() { echo(t, cfg, far) })
			})
		}
	}
}

func echo(t *testing.T, cfg Config, far string) {
	i := open(t, cfg)
	require.Equal(t, "echo0", i.Name)
	link, err := net.InterfaceByIndex(i.Index)
	require.NoError(t, err)
	require.Equal(t, i.Name, link.Name)
	want := 1500
	if cfg.MTU != 0 {
		want = cfg.MTU
	}
	require.Equal(t, want, link.MTU)

	addr := netip.AddrPortFrom(netip.MustParseAddr(far), 99)
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(addr))
	require.NoError(t, err)
	defer conn.Close()

	// A flow stays on one queue, which of them the kernel chooses: read all.
	got := make(chan int, 8)
	for _, q := range i.Queues {
		go bounce(q, got)
	}
	payload := make([]byte, 3000)
	for k := range payload {
		payload[k] = byte(k)
	}
	raw, err := conn.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		require.NoError(t, unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT, 1200))
	}))
	_, err = conn.Write(payload)
	require.NoError(t, err)
	buf := make([]byte, 2000)
	var back []byte
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(limit)))
	for len(back) < len(payload) {
		n, err := conn.Read(buf)
		require.NoError(t, err)
		back = append(back, buf[:n]...)
	}
	require.Equal(t, payload, back)
	if cfg.NoOffload {
		require.Equal(t, 1, <-got, "the kernel segments")
	} else {
		require.Equal(t, 3, <-got, "the super-frame comes whole")
	}
	require.NoError(t, i.Close())
	require.NoError(t, i.Close())
}

// bounce returns UDP packets to where they came from until the device closes. It
// reports how many datagrams each stood for.
func bounce(d dpr.Device, got chan<- int) {
	pkts := dpr.NewPackets(8, dpr.MaxPacket)
	for {
		n, err := d.Read(pkts)
		if err != nil {
			return
		}
		for k := range pkts[:n] {
			p := &pkts[k]
			b := p.Bytes()
			if b[0]>>4 == 4 && b[9] != unix.IPPROTO_UDP || b[0]>>4 == 6 && b[6] != unix.IPPROTO_UDP {
				continue
			}
			segs := 1
			if p.GSO.Size > 0 {
				segs = (p.Len - int(p.GSO.HdrLen) + int(p.GSO.Size) - 1) / int(p.GSO.Size)
			}
			reflect(p)
			if _, err := d.Write(pkts[k : k+1]); err != nil {
				return
			}
			select {
			case got <- segs:
			default:
			}
		}
	}
}

// TestTCPSuperFrames runs a TCP connection out of the interface and back into it,
// and sees that super-frames pass in both directions.
func TestTCPSuperFrames(t *testing.T) {
	inNamespace(t, func() {
		i := open(t, Config{Up: true})
		l, err := net.Listen("tcp", "10.9.0.1:80")
		require.NoError(t, err)
		defer l.Close()
		require.Zero(t, i.Stats().Written)
		stop := make(chan int)
		go func() { stop <- relayTCP(i.Queues[0]) }()

		const total = 4 << 20
		sum := make(chan int, 1)
		go func() {
			c, err := l.Accept()
			if err != nil {
				sum <- -1
				return
			}
			defer c.Close()
			n, buf := 0, make([]byte, 1<<16)
			for n < total {
				k, err := c.Read(buf)
				if err != nil {
					break
				}
				n += k
			}
			sum <- n
		}()
		d := net.Dialer{Timeout: limit}
		c, err := d.DialContext(context.Background(), "tcp", "10.9.0.2:80")
		require.NoError(t, err)
		_, err = c.Write(make([]byte, total))
		require.NoError(t, err)
		require.Equal(t, total, <-sum)
		c.Close()
		s := i.Stats()
		require.Zero(t, s.Split+s.Refused+s.Malformed+s.Cut)
		require.Less(t, s.Read, uint64(total/1448), "fewer packets than segments")
		i.Close()
		require.Greater(t, <-stop, 10_000, "longest packet")
	})
}

// relayTCP makes 10.9.0.2 a mirror: what goes to it comes back to 10.9.0.1 as if
// from there. It returns the length of the longest packet.
func relayTCP(d dpr.Device) (longest int) {
	pkts := dpr.NewPackets(64, dpr.MaxPacket)
	for {
		n, err := d.Read(pkts)
		if err != nil {
			return longest
		}
		k := 0
		for m := range pkts[:n] {
			b := pkts[m].Bytes()
			if b[0]>>4 != 4 || b[9] != unix.IPPROTO_TCP {
				continue
			}
			for j := 12; j < 16; j++ { // addresses only: both ends have their own ports
				b[j], b[j+4] = b[j+4], b[j]
			}
			longest = max(longest, len(b))
			pkts[k], pkts[m] = pkts[m], pkts[k]
			k++
		}
		if _, err := d.Write(pkts[:k]); err != nil {
			return longest
		}
	}
}

func TestCloseWakesReadAndLeaksNothing(t *testing.T) {
	inNamespace(t, func() {
		pkts := dpr.NewPackets(1, dpr.MaxPacket)
		before := descriptors(t)
		cycles := 50
		if os.Getenv("CAROM_MUST_RUN") == "1" {
			cycles = 200 // A deletion takes the kernel 30 ms.
		}
		for range cycles {
			i, err := Open(Config{Name: "cycle0"}) // the name is free again each time
			require.NoError(t, err)
			got := make(chan error)
			go func() {
				_, err := i.Queues[0].Read(pkts)
				got <- err
			}()
			runtime.Gosched()
			require.NoError(t, i.Close())
			select {
			case err := <-got:
				require.ErrorIs(t, err, os.ErrClosed)
			case <-time.After(limit):
				require.Fail(t, "Read was not woken")
			}
			require.NoError(t, i.Close())
		}
		require.Equal(t, before, descriptors(t))
		_, err := netlink.LinkByName("cycle0")
		require.Error(t, err, "the interface is gone")
	})
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

func TestFailedOpenLeavesNothing(t *testing.T) {
	inNamespace(t, func() {
		taken := open(t, Config{Name: "taken0"})
		before := descriptors(t)
		for name, tc := range map[string]struct {
			cfg  Config
			says string
		}{
			"name taken by another queue set": {Config{Name: "lo"}, "lo"},
			"name too long":                   {Config{Name: "a-name-of-16-byt"}, "Name"},
			"MTU":                             {Config{MTU: 67}, "MTU"},
			"queues":                          {Config{Queues: 257}, "Queues"},
			"negative queues":                 {Config{Queues: -1}, "Queues"},
			"name with a slash":               {Config{Name: "a/b"}, "a/b"},
		} {
			_, err := Open(tc.cfg)
			require.ErrorContains(t, err, tc.says, name)
		}
		require.Equal(t, before, descriptors(t))
		require.NoError(t, taken.Close())
	})
}

func TestDeletedInterfaceIsAnError(t *testing.T) {
	inNamespace(t, func() {
		i := open(t, Config{Up: true})
		q := i.Queues[0]
		got := make(chan error)
		go func() {
			pkts := dpr.NewPackets(8, dpr.MaxPacket)
			for {
				if _, err := q.Read(pkts); err != nil {
					got <- err
					return
				}
			}
		}()
		link, err := netlink.LinkByIndex(i.Index)
		require.NoError(t, err)
		require.NoError(t, netlink.LinkDel(link))
		require.ErrorIs(t, <-got, ErrGone)
		_, err = q.Write([]dpr.Packet{packet(make([]byte, 40), dpr.GSO{})})
		require.ErrorIs(t, err, ErrGone)
		require.ErrorContains(t, err, i.Name)
	})
}

func TestInterfaceDownIsAnError(t *testing.T) {
	inNamespace(t, func() {
		i := open(t, Config{})
		n, err := i.Queues[0].Write([]dpr.Packet{packet(udpDatagram(10), dpr.GSO{})})
		require.Zero(t, n)
		require.ErrorIs(t, err, ErrDown)
	})
}

// fake returns a queue on one end of a socket pair that keeps message boundaries
// like a TUN, and the other end.
func fake(t *testing.T, log *slog.Logger) (*Queue, int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.SetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<20))
	q, err := newQueue(fds[0], &offloads{name: "fake0", log: log, write: nonblock.Write})
	require.NoError(t, err)
	t.Cleanup(func() { q.Close(); unix.Close(fds[1]) })
	return q, fds[1]
}

// receive returns the packets that were written, without their headers.
func receive(t *testing.T, fd int) (out [][]byte) {
	t.Helper()
	for {
		buf := make([]byte, 70000)
		n, err := unix.Read(fd, buf)
		if err != nil {
			require.ErrorIs(t, err, unix.EAGAIN)
			return out
		}
		out = append(out, buf[:n])
	}
}

func packet(b []byte, g dpr.GSO) dpr.Packet {
	p := dpr.NewPackets(1, dpr.MaxPacket)[0]
	p.Len, p.GSO = copy(p.Buf[p.Off:], b), g
	return p
}

// udpDatagram is a UDP packet in IPv4 whose checksums are those of nothing; the
// tests that use it look at lengths.
func udpDatagram(payload int) []byte {
	b := make([]byte, 28+payload)
	b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	binary.BigEndian.PutUint16(b[24:], uint16(8+payload))
	return b
}

func udpSuper(payload, size int) dpr.Packet {
	return packet(udpDatagram(payload), dpr.GSO{
		Type: dpr.GSOUDP, NeedsCsum: true, CsumStart: 20, CsumOffset: 6, HdrLen: 28, Size: uint16(size),
	})
}

// TestRefusedOffload: the kernel agreed to the offload and refuses the packets.
func TestRefusedOffload(t *testing.T) {
	var log strings.Builder
	q, far := fake(t, slog.New(slog.NewTextHandler(&log, nil)))
	refusals := 0
	q.of.write = func(fd uintptr, b []byte) (int, unix.Errno) {
		if b[1] != vnetGSONone {
			refusals++
			return 0, unix.EINVAL
		}
		return nonblock.Write(fd, b)
	}
	for range 2 {
		n, err := q.Write([]dpr.Packet{packet(udpDatagram(5), dpr.GSO{}), udpSuper(2500, 1000), udpSuper(900, 1000)})
		require.NoError(t, err)
		require.Equal(t, 3, n)
		var lengths []int
		for _, b := range receive(t, far) {
			require.Equal(t, make([]byte, vnetLen), b[:vnetLen])
			lengths = append(lengths, len(b)-vnetLen-28)
		}
		require.Equal(t, []int{5, 1000, 1000, 500, 900}, lengths)
	}
	require.Equal(t, 1, refusals, "asked once")
	require.Equal(t, 1, strings.Count(log.String(), "\n"), "logged once: %s", log.String())
	require.Equal(t, uint64(6), q.Stats().Written)
	require.Equal(t, uint64(4), q.Stats().Split)
}

// A refused super-frame of UDP is no reason to cut those of TCP.
func TestRefusedUDPLeavesTCP(t *testing.T) {
	q, far := fake(t, slog.New(slog.DiscardHandler))
	q.of.write = func(fd uintptr, b []byte) (int, unix.Errno) {
		if b[1] == vnetGSOUDP {
			return 0, unix.EINVAL
		}
		return nonblock.Write(fd, b)
	}
	tcp := udpSuper(2500, 1000)
	tcp.GSO.Type = dpr.GSOTCP4
	_, err := q.Write([]dpr.Packet{udpSuper(2500, 1000), tcp})
	require.NoError(t, err)
	got := receive(t, far)
	require.Len(t, got, 4, "three datagrams, one super-frame")
	require.Equal(t, uint8(vnetGSOTCP4), got[3][1])
}

func TestWriteDropsAndCounts(t *testing.T) {
	q, far := fake(t, slog.New(slog.DiscardHandler))
	headless := packet(udpDatagram(5), dpr.GSO{})
	headless.Off = vnetLen - 1
	bad := udpSuper(2500, 1000)
	bad.GSO.CsumStart = 60000
	refuse := map[int]unix.Errno{vnetLen + 34: unix.EINVAL, vnetLen + 35: unix.ENOBUFS}
	q.of.write = func(fd uintptr, b []byte) (int, unix.Errno) {
		if errno := refuse[len(b)]; errno != 0 {
			return 0, errno
		}
		return nonblock.Write(fd, b)
	}
	q.of.refused.Store(allTypes)
	n, err := q.Write([]dpr.Packet{
		headless, packet(udpDatagram(6), dpr.GSO{}), packet(udpDatagram(7), dpr.GSO{}), bad, packet(udpDatagram(8), dpr.GSO{}),
	})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Len(t, receive(t, far), 1)
	require.Equal(t, Stats{Written: 1, Refused: 2, Headless: 1, Malformed: 1}, q.Stats())
}

func TestReadTakesABatch(t *testing.T) {
	q, far := fake(t, slog.Default())
	long := udpDatagram(9014 - 28)
	for _, b := range [][]byte{
		udpDatagram(1),
		long,                            // longer than the buffers
		udpDatagram(2)[:29],             // shorter than its header says
		make([]byte, 40),                // no IP
		append(udpDatagram(3), 0, 0, 0), // padded
		append(udpDatagram(4), long...), // padding beyond the buffer
	} {
		_, err := unix.Write(far, append(make([]byte, vnetLen), b...))
		require.NoError(t, err)
	}
	_, err := unix.Write(far, append([]byte{1, 3}, append(make([]byte, vnetLen-2), udpDatagram(5)...)...))
	require.NoError(t, err)
	pkts := dpr.NewPackets(8, 1500)
	n, err := q.Read(pkts[:1])
	require.NoError(t, err)
	require.Equal(t, 1, n)
	n, err = q.Read(pkts)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, udpDatagram(3), pkts[0].Bytes())
	require.Equal(t, udpDatagram(4), pkts[1].Bytes())
	require.Equal(t, dpr.Headroom, pkts[0].Off)
	require.Equal(t, Stats{Read: 3, Cut: 1, Malformed: 3}, q.Stats())
}

func TestNothingAllocates(t *testing.T) {
	q, far := fake(t, slog.Default())
	pkts := dpr.NewPackets(4, dpr.MaxPacket)
	in := append(make([]byte, vnetLen), udpDatagram(100)...)
	out := []dpr.Packet{packet(udpDatagram(100), dpr.GSO{}), udpSuper(3000, 1000)}
	buf := make([]byte, 70000)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		unix.Write(far, in)
		q.Read(pkts)
		q.Write(out)
		unix.Read(far, buf)
		unix.Read(far, buf)
	}))
	require.Equal(t, uint64(101), q.Stats().Read)
}

func TestVnetRoundTrip(t *testing.T) {
	tcp := make([]byte, 300)
	tcp[20+tcpDataOff], tcp[20+tcpFlags] = 8<<4, tcpCWR
	tcp[40+tcpDataOff] = 5 << 4
	for name, g := range map[string]dpr.GSO{
		"none":    {},
		"partial": {NeedsCsum: true, CsumStart: 20, CsumOffset: 16},
		"tcp4":    {Type: dpr.GSOTCP4, NeedsCsum: true, CsumStart: 20, CsumOffset: 16, HdrLen: 52, Size: 100},
		"tcp6":    {Type: dpr.GSOTCP6, NeedsCsum: true, CsumStart: 40, CsumOffset: 16, HdrLen: 60, Size: 100},
		"udp":     {Type: dpr.GSOUDP, NeedsCsum: true, CsumStart: 20, CsumOffset: 6, HdrLen: 28, Size: 100},
	} {
		t.Run(name, func(t *testing.T) {
			var h [vnetLen]byte
			putVnet(h[:], tcp, g)
			require.Equal(t, name == "tcp4", h[1]&vnetGSOECN != 0)
			native.PutUint16(h[2:], 9999) // the kernel's header length says something else
			got, ok := parseVnet(h[:], tcp)
			require.True(t, ok)
			require.Equal(t, g, got)
		})
	}
}

func FuzzVnet(f *testing.F) {
	f.Add([]byte{1, 1, 52, 0, 100, 0, 20, 0, 16, 0}, udpDatagram(90))
	f.Add([]byte{1, 5, 28, 0, 100, 0, 20, 0, 6, 0}, udpDatagram(90))
	f.Fuzz(func(t *testing.T, h, b []byte) {
		if len(h) < vnetLen {
			return
		}
		g, ok := parseVnet(h, b)
		if !ok {
			return
		}
		require.LessOrEqual(t, int(g.HdrLen), len(b))
		if g.NeedsCsum {
			require.LessOrEqual(t, int(g.CsumStart)+int(g.CsumOffset)+2, len(b))
		}
		var back [vnetLen]byte
		putVnet(back[:], b, g)
		again, ok := parseVnet(back[:], b)
		require.True(t, ok)
		require.Equal(t, g, again)
	})
}
