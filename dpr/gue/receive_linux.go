package gue

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/internal/nonblock"
	"github.com/carom-dpr/carom/internal/segment"
	"github.com/carom-dpr/carom/internal/tunnel"
)

const (
	// receiveBatch is how many datagrams are received with one system call. Each
	// may be the sum of up to 64 KiB that the kernel joined.
	receiveBatch = 16
	maxDatagram  = 65535
)

// receiver holds datagrams between the kernel and Read.
type receiver struct {
	msgs  [receiveBatch]unix.Mmsghdr
	iovs  [receiveBatch]unix.Iovec
	names [receiveBatch]tunnel.Sockaddr
	ctls  [receiveBatch]control
	bufs  [receiveBatch][]byte
	n     int  // how many are filled
	at    int  // the next to open
	wait  bool // until there is one
	err   unix.Errno

	// Of the datagram that is open: what is left of it, the length of its parts,
	// and whence it came.
	rest []byte
	size int
	peer dpr.PeerID
	src  [16]byte
	tos  uint8

	held   []byte // an inner packet for which there was no room
	merger segment.Merger
}

func (r *receiver) init() {
	slab := make([]byte, receiveBatch*maxDatagram)
	for i := range r.msgs {
		r.bufs[i] = slab[i*maxDatagram : (i+1)*maxDatagram]
		r.iovs[i].Base = &r.bufs[i][0]
		r.iovs[i].SetLen(maxDatagram)
		h := &r.msgs[i].Hdr
		h.Name = (*byte)(unsafe.Pointer(&r.names[i].Raw))
		h.Iov = &r.iovs[i]
		h.SetIovlen(1)
		h.Control = (*byte)(unsafe.Pointer(&r.ctls[i]))
	}
}

// receive takes datagrams from the socket, and reports whether Read has something
// to look at.
func (q *Queue) receive(fd uintptr) bool {
	r := &q.in
	for i := range r.msgs {
		h := &r.msgs[i].Hdr
		h.Namelen = uint32(unsafe.Sizeof(r.names[i].Raw))
		h.SetControllen(int(unsafe.Sizeof(r.ctls[i])))
	}
	r.n, r.at = 0, 0
	n, errno := nonblock.Recvmmsg(fd, r.msgs[:])
	switch errno {
	case 0:
		r.n = n
		q.u.count.receiveCalls.Add(1)
	case unix.EAGAIN:
		return !r.wait
	default:
		r.err = errno
	}
	return true
}

// deliver moves inner packets to pkts, joined where they may be, until one is
// full or the other empty.
func (q *Queue) deliver(pkts []dpr.Packet) int {
	r := &q.in
	n, joined := 0, 0
	for inner := q.next(); inner != nil; inner = q.next() {
		if n > 0 && pkts[n-1].Peer == r.peer && !q.u.cfg.NoOffload && r.merger.Append(inner) {
			joined++
			continue
		}
		if n == len(pkts) {
			r.held = inner
			break
		}
		r.merger.Finish()
		p := &pkts[n]
		if !r.merger.Start(p, inner) {
			q.u.count.drop(Cut, 1)
			continue
		}
		p.Peer, p.Verdict = r.peer, dpr.Drop
		n++
	}
	r.merger.Finish()
	q.u.count.received.Add(uint64(n + joined))
	q.u.count.joined.Add(uint64(joined))
	return n
}

// next returns the next inner packet, nil if none is left.
func (q *Queue) next() []byte {
	r := &q.in
	if inner := r.held; inner != nil {
		r.held = nil
		return inner
	}
	for len(r.rest) > 0 || r.at < r.n {
		if len(r.rest) == 0 {
			q.openDatagram(r.at)
			r.at++
			continue
		}
		part := r.rest[:min(r.size, len(r.rest))]
		r.rest = r.rest[len(part):]
		inner, _, why := q.u.codec.open(part, &r.src, &q.local, r.tos)
		if why == OK {
			return inner
		}
		if why == Control {
			why = q.u.control.receive(q.u.codec.ring.Load(), r.peer, part, &r.src, &q.local)
		}
		if why == OK {
			q.u.count.controlsReceived.Add(1)
		} else {
			q.u.count.drop(why, 1)
		}
	}
	return nil
}

// openDatagram looks at who sent the i-th datagram, and leaves its parts in rest
// if that is a peer.
func (q *Queue) openDatagram(i int) {
	r := &q.in
	length, h := int(r.msgs[i].Len), &r.msgs[i].Hdr
	size, tos := r.ctls[i].parse(int(h.Controllen))
	if size <= 0 {
		size = max(length, 1)
	}
	parts := max(1, (length+size-1)/size)
	from := r.names[i].Addr()
	peer := q.u.peers.Load().byAddr[from]
	switch {
	case peer == 0:
		q.u.count.drop(UnknownPeer, parts)
	case h.Flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		q.u.count.drop(Cut, parts)
	case length == 0:
		q.u.count.drop(Short, 1)
	default:
		r.rest, r.size, r.peer, r.src, r.tos = r.bufs[i][:length], size, peer, from.As16(), tos
	}
}
