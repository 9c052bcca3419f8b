package netstack

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/carom-dpr/carom/dpr"
)

// A tun is the router's side of a host.
type tun struct {
	host  *Host
	queue chan dpr.Packet // each owns its buffer
	full  atomic.Uint64

	closed    chan struct{}
	closeOnce sync.Once
}

func newTUN(h *Host) *tun {
	return &tun{host: h, queue: make(chan dpr.Packet, queueLen), closed: make(chan struct{})}
}

var errTUNClosed = fmt.Errorf("netstack: TUN: %w", os.ErrClosed)

// put queues a copy of the packet for Read. It returns false if there is no
// router any more.
func (t *tun) put(p *dpr.Packet) bool {
	select {
	case <-t.closed:
		return false
	default:
	}
	c := *p
	c.Buf = make([]byte, dpr.Headroom+p.Len)
	c.Off = dpr.Headroom
	copy(c.Buf[c.Off:], p.Bytes())
	select {
	case t.queue <- c:
		t.host.captured.Add(1)
	default:
		t.full.Add(1)
	}
	return true
}

// Read implements [dpr.Device].
func (t *tun) Read(pkts []dpr.Packet) (n int, err error) {
	select {
	case <-t.closed:
		return 0, errTUNClosed
	case p := <-t.queue:
		take(&pkts[0], p)
	}
	for n = 1; n < len(pkts); n++ {
		select {
		case p := <-t.queue:
			take(&pkts[n], p)
		default:
			return n, nil
		}
	}
	return n, nil
}

// take copies p into the buffer of dst, which gets p's own if its is too small.
func take(dst *dpr.Packet, p dpr.Packet) {
	buf := dst.Buf
	*dst = p
	if copyLen := p.Off + p.Len; copyLen <= len(buf) {
		copy(buf[p.Off:], p.Bytes())
		dst.Buf = buf
	}
}

// Write implements [dpr.Device].
func (t *tun) Write(pkts []dpr.Packet) (n int, err error) {
	for i := range pkts {
		select {
		case <-t.closed:
			return i, errTUNClosed
		default:
		}
		complete(&pkts[i])
		if b := pkts[i].Bytes(); t.host.own[destination(b)] {
			t.host.wire.inject(b)
		} else {
			// The stack drops what is for none of its aliases.
			t.host.alias.inject(b)
		}
	}
	return len(pkts), nil
}

// Close implements [dpr.Device].
func (t *tun) Close() error {
	t.closeOnce.Do(func() { close(t.closed) })
	return nil
}
