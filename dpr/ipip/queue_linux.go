package ipip

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/internal/nonblock"
	"github.com/carom-dpr/carom/internal/segment"
	"github.com/carom-dpr/carom/internal/tunnel"
)

const (
	// receiveBatch is how many packets are received with one system call. Each may be
	// the sum of up to 64 KiB that the kernel joined.
	receiveBatch = 16
	// maxReceived is the longest of those, with the outer header, in bytes.
	maxReceived = 65535 + 60
)

// Queue receives from the peers, and sends to all of them. It keeps to the contract
// of [dpr.Device]: one goroutine reads while any number write. Packets and errors of
// the network make no error, only counts.
type Queue struct {
	u              *Uplink
	sock           *socket
	outer4, inner6 bool
	closed         atomic.Bool
	fill           func(fd uintptr) bool // receive, made once: a closure per call would be garbage
	msgs           [receiveBatch]unix.Mmsghdr
	iovs           [receiveBatch]unix.Iovec
	names          [receiveBatch]tunnel.Sockaddr
	ctls           [receiveBatch]control
	bufs           [receiveBatch][]byte
	n, at          int // how many are filled, and the next to look at
	wait           bool
	errno          unix.Errno
	merger         segment.Merger
}

func newQueue(u *Uplink, s *socket, outer4, inner6 bool) *Queue {
	q := &Queue{u: u, sock: s, outer4: outer4, inner6: inner6}
	q.fill = q.receive
	slab := make([]byte, receiveBatch*maxReceived)
	for i := range q.msgs {
		q.bufs[i] = slab[i*maxReceived : (i+1)*maxReceived]
		q.iovs[i].Base = &q.bufs[i][0]
		q.iovs[i].SetLen(maxReceived)
		h := &q.msgs[i].Hdr
		h.Name = (*byte)(unsafe.Pointer(&q.names[i].Raw))
		h.Iov = &q.iovs[i]
		h.SetIovlen(1)
		h.Control = (*byte)(unsafe.Pointer(&q.ctls[i]))
	}
	return q
}

// Close closes the queue and wakes a Read that waits. Packets that arrive for it are
// lost from then on. It may be called more than once.
func (q *Queue) Close() error {
	if q.closed.Swap(true) {
		return nil
	}
	return q.sock.close()
}

// Write is [Uplink.Write].
func (q *Queue) Write(pkts []dpr.Packet) (int, error) { return q.u.Write(pkts) }

// Read waits for a packet of a peer, then takes as many as are there and fit into
// pkts, each of whose buffers must hold a packet behind [dpr.Headroom]: what does not
// fit is dropped and counted. Packets of one TCP connection that follow each other
// become one super-frame, after their checksums were verified.
func (q *Queue) Read(pkts []dpr.Packet) (int, error) {
	for {
		if n := q.deliver(pkts); n > 0 {
			return n, nil
		}
		q.wait, q.errno = true, 0
		err := q.sock.raw.Read(q.fill)
		if err == nil && q.errno != 0 {
			err = q.errno
		}
		if err != nil {
			return 0, fail("read", q.closed.Load(), err)
		}
	}
}

// receive takes packets from the socket, and reports whether Read has something to
// look at.
func (q *Queue) receive(fd uintptr) bool {
	for i := range q.msgs {
		h := &q.msgs[i].Hdr
		h.Namelen = uint32(unsafe.Sizeof(q.names[i].Raw))
		h.SetControllen(int(unsafe.Sizeof(q.ctls[i])))
	}
	q.n, q.at = 0, 0
	n, errno := nonblock.Recvmmsg(fd, q.msgs[:])
	switch errno {
	case 0:
		q.n = n
	case unix.EAGAIN:
		return false
	default:
		q.errno = errno
	}
	return true
}

// deliver moves inner packets to pkts, joined where they may be, until one is full or
// the other empty.
func (q *Queue) deliver(pkts []dpr.Packet) (n int) {
	whole := false // the last of pkts may not be joined to
	for ; q.at < q.n; q.at++ {
		inner, from := q.open(q.at)
		if inner == nil {
			continue
		}
		gso, super := joined(inner, from.mtu)
		if n > 0 && !super && !whole && pkts[n-1].Peer == from.id && q.merger.Append(inner) {
			q.u.count.received.Add(1)
			continue
		}
		if n == len(pkts) {
			break
		}
		q.merger.Finish()
		p := &pkts[n]
		if !q.merger.Start(p, inner) {
			q.u.count.drop(Cut)
			continue
		}
		if whole = super; super {
			q.merger.Finish()
			p.GSO = gso
		}
		p.Peer, p.Verdict = from.id, dpr.Drop
		q.u.count.received.Add(1)
		n++
	}
	q.merger.Finish()
	return n
}

// open returns the inner packet of the i-th that was received, and its sender; nil if
// it is not to be delivered.
func (q *Queue) open(i int) ([]byte, *peer) {
	length, h := int(q.msgs[i].Len), &q.msgs[i].Hdr
	from := q.u.peers.Load().byAddr[q.names[i].Addr()]
	why := Cut
	switch {
	case from == nil:
		why = UnknownPeer
	case h.Flags&unix.MSG_TRUNC == 0:
		var inner []byte
		if inner, why = unwrap(q.bufs[i][:length], q.outer4, q.inner6, q.ctls[i].tos(int(h.Controllen))); why == OK {
			return inner, from
		}
	}
	q.u.count.drop(why)
	return nil, nil
}

var _ dpr.Device = (*Queue)(nil)
