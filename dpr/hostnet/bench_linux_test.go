package hostnet

import (
	"context"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/internal/lab"
)

// BenchmarkCapture measures what the program costs a packet, by what becomes of it.
func BenchmarkCapture(b *testing.B) {
	lab.Require(b)
	l, err := lab.New(lab.Config{})
	require.NoError(b, err)
	defer l.Close()
	h, err := l.AddHost("a", netip.MustParsePrefix("10.1.0.2/24"))
	require.NoError(b, err)
	ln, err := h.Listen("tcp", "10.1.0.2:80")
	require.NoError(b, err)
	defer ln.Close()
	c, err := h.DialContext(context.Background(), "tcp", "10.1.0.2:80")
	require.NoError(b, err)
	defer c.Close()
	local := addrPort(c.LocalAddr()).Port()

	for _, bench := range []struct {
		name         string
		sport, dport uint16
		count        func(Stats) uint64
	}{
		{"not service", 1, 81, func(s Stats) uint64 { return s.NotService }},
		{"local socket", local, 80, func(s Stats) uint64 { return s.LocalSocket }},
		{"captured", 1, 80, func(s Stats) uint64 { return s.CapturedOther }},
	} {
		b.Run(bench.name, func(b *testing.B) {
			require.NoError(b, h.Do(func() error {
				lo, err := h.Netlink().LinkByName("lo")
				require.NoError(b, err)
				p, err := loadProgram(lo, defaultSYNRate)
				require.NoError(b, err)
				defer p.objects.Close()
				set, err := endpoints([]Service{{Protocol: protocolTCP, Port: 80, Addrs: []netip.Addr{h.Addr4()}}})
				require.NoError(b, err)
				require.NoError(b, p.setEndpoints(set))
				var beat heart
				require.NoError(b, beat.open(p.objects.Heartbeat))
				beat.origin += uint64(time.Hour) // however long it takes
				beat.beat()
				_, each, err := p.objects.Capture.Benchmark(ackFrame(bench.sport, bench.dport), b.N, nil)
				require.NoError(b, err)
				b.ReportMetric(float64(each)/float64(time.Nanosecond), "ns/packet")
				stats, err := p.stats()
				require.NoError(b, err)
				require.GreaterOrEqual(b, bench.count(stats), uint64(b.N)) // more, if a signal ended a run, which began again
				return nil
			}))
		})
	}
}

// ackFrame is an Ethernet frame with an ACK from 10.1.0.2 to itself.
func ackFrame(sport, dport uint16) []byte {
	f := make([]byte, 14+20+20)
	f[12] = 8 // IPv4
	ip := f[14:]
	copy(ip, []byte{0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocolTCP, 0, 0, 10, 1, 0, 2, 10, 1, 0, 2})
	binary.BigEndian.PutUint16(ip[20:], sport)
	binary.BigEndian.PutUint16(ip[22:], dport)
	ip[32], ip[33] = 5<<4, 1<<4 // header length, ACK
	return f
}

// BenchmarkBeat shows that a heartbeat is no system call.
func BenchmarkBeat(b *testing.B) {
	h := heart{at: new(uint64), start: time.Now()}
	for b.Loop() {
		h.beat()
	}
}
