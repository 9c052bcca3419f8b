package dpr_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/songgao/water"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A pipe is a device whose packets the test makes and takes.
type pipe struct {
	in, out chan dpr.Packet
	err     chan error
	closed  atomic.Bool
}

func newPipe() *pipe {
	return &pipe{in: make(chan dpr.Packet, 64), out: make(chan dpr.Packet, 64), err: make(chan error, 1)}
}

func (p *pipe) Read(pkts []dpr.Packet) (int, error) {
	select {
	case err := <-p.err:
		return 0, err
	case got := <-p.in:
		to := &pkts[0]
		to.Off, to.Peer, to.GSO = dpr.Headroom, got.Peer, got.GSO
		to.Len = copy(to.Buf[to.Off:], got.Bytes())
		return 1, nil
	}
}

func (p *pipe) Write(pkts []dpr.Packet) (int, error) {
	for i := range pkts {
		c := packet(pkts[i].Bytes())
		c.Peer, c.Verdict = pkts[i].Peer, pkts[i].Verdict
		p.out <- c
	}
	return len(pkts), nil
}

func (p *pipe) Close() error {
	if !p.closed.Swap(true) {
		p.err <- os.ErrClosed
	}
	return nil
}

func receive(t *testing.T, p *pipe) dpr.Packet {
	t.Helper()
	select {
	case got := <-p.out:
		return got
	case <-time.After(time.Minute):
		require.Fail(t, "no packet came")
		panic("unreachable")
	}
}

func TestRouterMovesPacketsByVerdict(t *testing.T) {
	b := newBench(t, dpr.Config{})
	device, uplink, replies := newPipe(), newPipe(), newPipe()
	var beats atomic.Int32
	r := &dpr.Router{
		Engine: b.Engine, Devices: []dpr.Device{device}, Uplinks: []dpr.Device{uplink}, Replies: replies,
		Beat: func(time.Time) { beats.Add(1) },
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()

	device.in <- packet(tcp(syn, 1, 0))
	p := receive(t, uplink)
	require.Equal(t, b.PeerID("h2"), p.Peer)
	b.choose("self")
	device.in <- packet(tcpFrom(client6, syn, 1, 0))
	require.Equal(t, dpr.Local, receive(t, device).Verdict)
	device.in <- packet(dprtest.ICMP(client.Addr(), vip.Addr(), 8, 0, 1, dprtest.Options{}))
	require.Equal(t, dpr.Pass, receive(t, device).Verdict)
	in := packet(tcp(ack, 2, 10))
	in.Peer = b.PeerID("h3")
	uplink.in <- in
	require.Equal(t, dpr.Local, receive(t, device).Verdict)
	b.choose("")
	device.in <- packet(tcpFrom(netip.AddrPortFrom(client.Addr(), 5), syn, 1, 0))
	require.Equal(t, dpr.Reply, receive(t, replies).Verdict)
	b.choose("h2")
	frags := dprtest.Fragment(datagram(client, 2000, dprtest.Options{ID: 7}), 1300)
	device.in <- packet(frags[1])
	device.in <- packet(frags[0])
	require.Equal(t, dpr.Forward, receive(t, uplink).Verdict)
	require.Equal(t, dpr.Forward, receive(t, uplink).Verdict, "the one that overtook")

	cancel()
	require.NoError(t, <-done)
	require.True(t, device.closed.Load())
	require.True(t, uplink.closed.Load())
	require.NotZero(t, beats.Load())
}

func TestRouterEndsWithAFailingDevice(t *testing.T) { // A48
	b := newBench(t, dpr.Config{})
	device, uplink := newPipe(), newPipe()
	r := &dpr.Router{Engine: b.Engine, Devices: []dpr.Device{device}, Uplinks: []dpr.Device{uplink}}
	gone := errors.New("interface was deleted")
	device.err <- gone
	require.ErrorIs(t, r.Run(t.Context()), gone)
	require.True(t, uplink.closed.Load())
}

func TestRouterNeedsItsParts(t *testing.T) {
	require.ErrorContains(t, (&dpr.Router{}).Run(t.Context()), "Router.Engine is nil")
	b := newBench(t, dpr.Config{})
	require.ErrorContains(t, (&dpr.Router{Engine: b.Engine}).Run(t.Context()), "Router.Devices is empty")
}

func TestFromReadWriter(t *testing.T) {
	here, there := net.Pipe()
	d := dpr.FromReadWriter(here)
	data := tcp(syn, 1, 0)
	go there.Write(data)
	pkts := dpr.NewPackets(2, 2000)
	n, err := d.Read(pkts)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, data, pkts[0].Bytes())
	require.Equal(t, dpr.Headroom, pkts[0].Off)
	go d.Write(pkts[:1])
	got := make([]byte, 2000)
	n, err = there.Read(got)
	require.NoError(t, err)
	require.Equal(t, data, got[:n])
	require.NoError(t, d.Close())
	require.NoError(t, d.Close())
	_, err = d.Read(pkts)
	require.ErrorIs(t, err, os.ErrClosed)
	_, err = d.Write(pkts[:1])
	require.ErrorIs(t, err, os.ErrClosed)
}

// The interfaces that FromReadWriter is for.
var (
	_ io.ReadWriteCloser = (*water.Interface)(nil)
	_ io.ReadWriteCloser = (*os.File)(nil)
)

// fakeTUN has the method set of wireguard-go's tun.Device.
type fakeTUN struct {
	in  [][]byte
	out [][]byte
}

func (f *fakeTUN) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	if len(f.in) == 0 {
		return 0, io.EOF
	}
	n := min(len(bufs), len(f.in))
	for i := range n {
		sizes[i] = copy(bufs[i][offset:], f.in[i])
	}
	f.in = f.in[n:]
	return n, nil
}

func (f *fakeTUN) Write(bufs [][]byte, offset int) (int, error) {
	for _, b := range bufs {
		f.out = append(f.out, append([]byte(nil), b[offset:]...))
	}
	return len(bufs), nil
}

func (f *fakeTUN) BatchSize() int { return 4 }
func (f *fakeTUN) Close() error   { return nil }

func TestFromBatchTUN(t *testing.T) {
	one, two := tcp(syn, 1, 0), tcp(ack, 2, 5)
	f := &fakeTUN{in: [][]byte{one, two}}
	d := dpr.FromBatchTUN(f)
	pkts := dpr.NewPackets(4, 2000)
	n, err := d.Read(pkts)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, one, pkts[0].Bytes())
	require.Equal(t, two, pkts[1].Bytes())
	n, err = d.Write(pkts[:2])
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, [][]byte{one, two}, f.out)
	_, err = d.Read(pkts)
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, d.Close())
	_, err = d.Read(pkts)
	require.ErrorIs(t, err, os.ErrClosed)
}
