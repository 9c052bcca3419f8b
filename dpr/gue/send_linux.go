package gue

import (
	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/internal/segment"
	"github.com/carom-dpr/carom/internal/tunnel"
)

const (
	sendBatch = 64 // messages per system call, and packets looked at together

	// maxSegments is UDP_MAX_SEGMENTS of the kernels before 6.6, and maxGSO the
	// longest payload of a UDP datagram in IPv4, in bytes.
	maxSegments = 64
	maxGSO      = 65535 - 20 - 8

	// vectors and arenaSize bound what one system call sends: two pieces, headers
	// and payload, and headers of up to 200 bytes, for four full super-frames.
	vectors   = 512
	arenaSize = 256 * 200

	// maxInnerHeader is the longest header of a segment: 40 and 256 bytes of IPv6
	// with the extension headers that the engine accepts, 60 of TCP.
	maxInnerHeader = 40 + 256 + 60
)

// sender gathers datagrams for one socket and sends them.
type sender struct {
	via   [sendBatch]*socket // the socket of each packet of the batch; nil: done
	to    [sendBatch]*peer
	split segment.Splitter

	msgs               [sendBatch]unix.Mmsghdr
	meta               [sendBatch]message
	ctls               [sendBatch]control
	iovs               [vectors]unix.Iovec
	arena              [arenaSize]byte
	nMsg, nIov, nArena int

	// Of a flush.
	at   int // the message to send next
	sent int // packets whose last segment went out
	one  [1]unix.Mmsghdr
}

// message describes one message: a run of datagrams of one length, of which the
// last may be shorter.
type message struct {
	to     *peer
	tos    uint8
	tosLen int  // bytes of ancillary data that hold the TOS
	size   int  // of each datagram but the last, in bytes
	total  int  // bytes in all
	parts  int  // datagrams in all
	ends   int  // packets that end in this message
	iov    int  // index of the first vector not sent yet
	left   int  // bytes not sent yet, where the parts go one by one
	apart  bool // they do
	closed bool // the last part is shorter, so none may follow
}

// send sends at most sendBatch packets, those of one socket together, so that
// packets of a flow keep their order.
func (q *Queue) send(pkts []dpr.Packet) (int, error) {
	s := &q.out
	s.sent = 0
	peers := q.u.peers.Load()
	for i := range pkts {
		s.via[i] = nil
		inner, ok := segment.Whole(pkts[i].Bytes())
		to := peers.byID[pkts[i].Peer]
		switch {
		case to == nil:
			q.u.count.drop(NoPeer, 1)
		case !ok:
			q.u.count.drop(Malformed, 1)
		default:
			s.via[i], s.to[i] = q.u.source(to, inner), to
		}
	}
	var err error
	for i := range pkts {
		via := s.via[i]
		if via == nil {
			continue
		}
		for k := i; k < len(pkts) && err == nil; k++ {
			if s.via[k] == via {
				s.via[k] = nil
				err = q.add(via, &pkts[k], s.to[k])
			}
		}
		if err == nil {
			err = q.flushTo(via)
		}
		if err != nil {
			break
		}
	}
	s.reset()
	return s.sent, err
}

// add gathers the segments of a packet for a socket, and sends when there is no
// room for more.
func (q *Queue) add(via *socket, p *dpr.Packet, to *peer) error {
	s := &q.out
	if !s.split.Start(p) || s.split.HeaderLen() > maxInnerHeader {
		q.u.count.drop(Malformed, 1)
		return nil
	}
	tos := tunnel.TOS(p.Bytes())
	space := maxLen + s.split.HeaderLen()
	for s.split.Left() > 0 {
		if s.nMsg == len(s.meta) || s.nIov+2 > len(s.iovs) || s.nArena+space > len(s.arena) {
			if err := q.flushTo(via); err != nil {
				return err
			}
		}
		// The GUE header lies before the inner headers, if there is one.
		buf := s.arena[s.nArena : s.nArena+space]
		hdr, payload := s.split.Segment(buf[maxLen:])
		gue := q.u.codec.put(buf[:maxLen], 0, &to.src, &to.dst, hdr, payload)
		front := buf[maxLen-len(gue) : maxLen+len(hdr)]
		s.nArena += space
		fits := len(hdr)+len(payload) <= to.mtu // the kernel fragments no segments
		m := s.message(to, tos, len(front)+len(payload), fits && !q.u.noGSO.Load())
		s.vector(front)
		s.vector(payload)
		if s.split.Left() == 0 {
			m.ends++
		}
	}
	return nil
}

// message returns the message that a datagram goes into, with the datagram
// counted. A new one must be free.
func (s *sender) message(to *peer, tos uint8, size int, join bool) *message {
	if s.nMsg > 0 && join {
		m := &s.meta[s.nMsg-1]
		if m.to == to && m.tos == tos && !m.closed && size <= m.size && m.parts < maxSegments && m.total+size <= maxGSO {
			m.closed = size < m.size
			m.parts++
			m.total += size
			return m
		}
	}
	m := &s.meta[s.nMsg]
	*m = message{to: to, tos: tos, size: size, total: size, parts: 1, iov: s.nIov, closed: !join}
	s.nMsg++
	return m
}

// vector adds a piece of a datagram.
func (s *sender) vector(b []byte) {
	if len(b) > 0 {
		s.iovs[s.nIov].Base = &b[0]
		s.iovs[s.nIov].SetLen(len(b))
		s.nIov++
	}
}

// reset forgets what was gathered, and the memory it refers to.
func (s *sender) reset() {
	clear(s.iovs[:s.nIov])
	s.nMsg, s.nIov, s.nArena = 0, 0, 0
}

// flushTo sends what was gathered. An error means that the uplink is closed.
func (q *Queue) flushTo(via *socket) error {
	s := &q.out
	for i := range s.meta[:s.nMsg] {
		s.prepare(i)
	}
	s.at = 0
	err := via.raw.Write(q.flush)
	s.reset()
	if err != nil {
		return fail("write", true, err)
	}
	return nil
}
