package gue

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/carom-dpr/carom/dpr"
)

// Queue is one receive queue of an uplink, and a way to send to all its peers.
// It keeps to the contract of [dpr.Device]: one goroutine reads while any number
// write. Packets and errors of the network make no error, only counts.
type Queue struct {
	u      *Uplink
	sock   *socket
	local  [16]byte // the address listened on, as the tag covers it
	closed atomic.Bool

	in   receiver
	fill func(fd uintptr) bool // receive, made once: a closure per call would be garbage

	mu    sync.Mutex // over all below
	out   sender
	flush func(fd uintptr) bool
}

func newQueue(u *Uplink, s *socket, local netip.Addr) *Queue {
	q := &Queue{u: u, sock: s, local: local.As16()}
	q.in.init()
	q.fill, q.flush = q.receive, q.transmit
	return q
}

// Close closes the queue and wakes a Read that waits. What the kernel would have
// sent here goes to the other queues. The last queue takes the sockets to send
// from with it. Close may be called more than once.
func (q *Queue) Close() error {
	if q.closed.Swap(true) {
		return nil
	}
	err := q.sock.file.Close()
	if q.u.open.Add(-1) == 0 {
		q.u.release()
	}
	return err
}

// Read waits for a packet of a peer, then takes as many as are there and fit into
// pkts, each of whose buffers must hold a packet behind dpr.Headroom: what does
// not fit is dropped and counted. Packets of one TCP connection that follow each
// other become one super-frame, after their checksums were verified.
func (q *Queue) Read(pkts []dpr.Packet) (int, error) {
	n := 0
	for n < len(pkts) {
		n += q.deliver(pkts[n:])
		if n == len(pkts) || n > 0 && q.in.n < len(q.in.msgs) {
			break // full, or the socket had no more
		}
		q.in.wait = n == 0
		q.in.err = 0
		if err := q.sock.raw.Read(q.fill); err != nil || q.in.err != 0 {
			if n > 0 {
				break // the error comes again
			}
			if err == nil {
				err = q.in.err
			}
			return 0, fail("read", q.closed.Load(), err)
		}
		if q.in.n == 0 {
			break
		}
	}
	return n, nil
}

// Write sends each packet to its peer. Super-frames are cut into their segments,
// which go out together. It returns how many packets were handed to the network.
func (q *Queue) Write(pkts []dpr.Packet) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed.Load() {
		return 0, fail("write", true, nil)
	}
	sent := 0
	for len(pkts) > 0 {
		batch := pkts[:min(len(pkts), len(q.out.via))]
		pkts = pkts[len(batch):]
		n, err := q.send(batch)
		sent += n
		if err != nil {
			return sent, err
		}
	}
	return sent, nil
}
