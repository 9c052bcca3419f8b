package tun

import (
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/internal/nonblock"
	"github.com/carom-dpr/carom/internal/segment"
)

// Queue is one queue of an interface.
//
// It keeps to the contract of [dpr.Device]: one goroutine reads while any number
// write. Read fills the caller's buffers, which hold every packet if they were
// made for [dpr.MaxPacket] bytes; a longer one is dropped and counted, never cut.
// Write puts its header into the ten bytes before a packet.
type Queue struct {
	file   *os.File
	raw    syscall.RawConn
	closed atomic.Bool
	of     *offloads
	count  counters

	in      []dpr.Packet // of the Read in progress
	inCount int
	inErr   error
	fill    func(fd uintptr) bool // fillFrom, made once: a closure per call would be garbage

	mu    sync.Mutex // over all below
	out   writing
	drain func(fd uintptr) bool // drainTo
}

// offloads is what all queues of an interface know of the kernel's offloads.
type offloads struct {
	name    string
	log     *slog.Logger
	refused atomic.Uint32 // a bit for each dpr.GSOType that Write must finish itself
	write   func(fd uintptr, b []byte) (int, unix.Errno)
}

const allTypes = 1<<dpr.GSONone | 1<<dpr.GSOTCP4 | 1<<dpr.GSOTCP6 | 1<<dpr.GSOUDP

type counters struct {
	read, written, cut, malformed, refused, headless, split atomic.Uint64
}

// writing is the progress of a Write.
type writing struct {
	pkts  []dpr.Packet
	next  int // index of the packet in progress
	sent  int
	err   error
	split segment.Splitter
	seg   [1]dpr.Packet // a segment of the packet in progress, to be written; empty if Len is 0
}

// newQueue makes a queue of a descriptor that does not block, and owns it.
func newQueue(fd int, of *offloads) (*Queue, error) {
	q := &Queue{file: os.NewFile(uintptr(fd), "tun "+of.name), of: of}
	raw, err := q.file.SyscallConn()
	if err != nil {
		q.file.Close()
		return nil, fmt.Errorf("tun: %s: %w", of.name, err)
	}
	q.raw = raw
	q.fill, q.drain = q.fillFrom, q.drainTo
	copy(q.out.seg[:], dpr.NewPackets(1, dpr.MaxPacket))
	return q, nil
}

// Stats returns the queue's counters. Any goroutine may call it.
func (q *Queue) Stats() Stats {
	c := &q.count
	return Stats{
		Read: c.read.Load(), Written: c.written.Load(), Cut: c.cut.Load(), Malformed: c.malformed.Load(),
		Refused: c.refused.Load(), Headless: c.headless.Load(), Split: c.split.Load(),
	}
}

// Close wakes a Read that waits and gives the queue back to the kernel. It may be
// called more than once.
func (q *Queue) Close() error {
	if q.closed.Swap(true) {
		return nil
	}
	return q.file.Close()
}

// Read waits for a packet, then takes as many as are there and fit into pkts,
// each of whose buffers must be longer than dpr.Headroom.
// After Close its error matches os.ErrClosed, and [ErrGone] once the interface
// was deleted.
func (q *Queue) Read(pkts []dpr.Packet) (int, error) {
	if len(pkts) == 0 {
		return 0, nil
	}
	q.in, q.inCount, q.inErr = pkts, 0, nil
	err := q.raw.Read(q.fill)
	q.in = nil
	if q.inCount > 0 {
		return q.inCount, nil // the error, if any, comes again
	}
	if err == nil {
		err = q.inErr
	}
	return 0, q.fault("read", err)
}

// fault makes an error of the kernel one for the caller.
func (q *Queue) fault(op string, err error) error {
	switch {
	case err == nil:
		return nil
	case q.closed.Load():
		err = os.ErrClosed
	case err == unix.EIO:
		err = ErrDown
	case err == unix.EBADFD, err == unix.EFAULT: // EFAULT: while a Read waited
		err = ErrGone
	default:
		if _, ok := err.(unix.Errno); !ok { // from the poller, which saw EPOLLERR
			err = ErrGone
		}
	}
	return fmt.Errorf("tun: %s %s: %w", op, q.of.name, err)
}

// fillFrom reads until the descriptor has no more, and reports whether Read has
// something to return.
func (q *Queue) fillFrom(fd uintptr) bool {
	for q.inCount < len(q.in) {
		p := &q.in[q.inCount]
		n, errno := nonblock.Read(fd, p.Buf[dpr.Headroom-vnetLen:])
		switch {
		case errno == unix.EAGAIN:
			return q.inCount > 0
		case errno != 0:
			q.inErr = errno
			return true
		case q.accept(p, n-vnetLen):
			q.inCount++
			q.count.read.Add(1)
		}
	}
	return true
}

// accept makes a packet of the n bytes that were read into p, or counts why not.
func (q *Queue) accept(p *dpr.Packet, n int) bool {
	end := dpr.Headroom + max(n, 0)
	b, ok := segment.Whole(p.Buf[dpr.Headroom:end])
	if !ok && end == len(p.Buf) {
		q.count.cut.Add(1)
		return false
	}
	if !ok {
		q.count.malformed.Add(1)
		return false
	}
	*p = dpr.Packet{Buf: p.Buf, Off: dpr.Headroom, Len: len(b)}
	if p.GSO, ok = parseVnet(p.Buf[dpr.Headroom-vnetLen:], p.Bytes()); !ok {
		q.count.malformed.Add(1)
	}
	return ok
}

// Write hands packets to the kernel, super-frames and partial checksums as they
// are. If the kernel refuses that, it is told so in the log, once, and from then
// on Write segments and completes them itself; nothing is lost by it. Packets
// that the kernel refuses for themselves are dropped and counted. The error
// matches os.ErrClosed, [ErrGone] or [ErrDown].
func (q *Queue) Write(pkts []dpr.Packet) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := &q.out
	w.pkts, w.next, w.sent, w.err = pkts, 0, 0, nil
	w.seg[0].Len, w.split = 0, segment.Splitter{}
	err := q.raw.Write(q.drain)
	w.pkts, w.split = nil, segment.Splitter{}
	if err == nil {
		err = w.err
	}
	return w.sent, q.fault("write", err)
}

// drainTo writes until nothing is left, and reports whether Write is done.
func (q *Queue) drainTo(fd uintptr) bool {
	w := &q.out
	for w.next < len(w.pkts) {
		p := q.current()
		if p == nil {
			continue // it was dropped
		}
		b := p.Buf[p.Off-vnetLen : p.Off+p.Len]
		putVnet(b, p.Bytes(), p.GSO)
		switch _, errno := q.of.write(fd, b); errno {
		case 0:
			q.written(p)
		case unix.EAGAIN:
			return false
		case unix.EBADFD, unix.EFAULT, unix.EIO:
			w.err = errno
			return true
		case unix.EINVAL:
			if p.GSO != (dpr.GSO{}) {
				q.fallBack(p.GSO.Type)
				continue
			}
			q.drop(&q.count.refused)
		default:
			q.drop(&q.count.refused)
		}
	}
	return true
}

// current returns the packet to write next: the one in progress, or a segment of
// it if the kernel does not take its offload. It returns nil after dropping one.
func (q *Queue) current() *dpr.Packet {
	w := &q.out
	p := &w.pkts[w.next]
	if w.seg[0].Len > 0 {
		return &w.seg[0]
	}
	if w.split.Left() == 0 {
		if p.GSO == (dpr.GSO{}) || q.of.refused.Load()>>p.GSO.Type&1 == 0 {
			if p.Off < vnetLen {
				q.drop(&q.count.headless)
				return nil
			}
			return p
		}
		if !w.split.Start(p) {
			q.drop(&q.count.malformed)
			return nil
		}
		q.count.split.Add(1)
	}
	w.split.Next(w.seg[:]) // the buffer holds every packet
	return &w.seg[0]
}

// written notes that p, a packet or a segment, went out.
func (q *Queue) written(p *dpr.Packet) {
	w := &q.out
	if p == &w.seg[0] {
		w.seg[0].Len = 0
		if w.split.Left() > 0 {
			return
		}
	}
	w.next++
	w.sent++
	q.count.written.Add(1)
}

// drop gives up the packet in progress, with what is left of its segments.
func (q *Queue) drop(reason *atomic.Uint64) {
	w := &q.out
	reason.Add(1)
	w.next++
	w.seg[0].Len, w.split = 0, segment.Splitter{}
}

// fallBack makes Write finish super-frames and partial checksums itself from now
// on, in all queues. One type refused is reason not to try the others: kernels
// that do so refuse by the content of the packet, again and again. But UDP's
// segmentation is younger than TCP's and has limits of its own: TCP's goes on.
func (q *Queue) fallBack(t dpr.GSOType) {
	types := uint32(allTypes)
	if t == dpr.GSOUDP {
		types = 1 << dpr.GSOUDP
	}
	if q.of.refused.Or(types)&types != types {
		q.of.log.Warn("tun: the kernel refused an offloaded packet, segmenting here from now on",
			"interface", q.of.name, "type", t)
	}
}
