package ipip

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/internal/header"
	"github.com/carom-dpr/carom/internal/nonblock"
	"github.com/carom-dpr/carom/internal/segment"
	"github.com/carom-dpr/carom/internal/tunnel"
)

const (
	sendBatch = 64 // messages per system call

	// maxInnerHeader is the longest header of a segment: 40 and 256 bytes of IPv6
	// with the extension headers that the engine accepts, 60 of TCP.
	maxInnerHeader = 40 + 256 + 60
)

// sender gathers segments for one socket and sends them.
type sender struct {
	split segment.Splitter
	via   *socket
	msgs  [sendBatch]unix.Mmsghdr
	iovs  [sendBatch][2]unix.Iovec // header and payload
	ctls  [sendBatch]control
	heads [sendBatch][maxInnerHeader]byte
	n     int
	at    int // the message to send next
}

// Write sends each packet to its peer. Super-frames are cut into their segments. It
// returns how many packets were handed to the kernel or dropped and counted, which is
// all of them unless the uplink is closed.
func (u *Uplink) Write(pkts []dpr.Packet) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	peers := u.peers.Load()
	for i := range pkts {
		if err := u.add(peers.byID[pkts[i].Peer], &pkts[i]); err != nil {
			return i, err
		}
	}
	return len(pkts), u.flushAll()
}

// add gathers the segments of a packet, and sends those before it if they leave by
// another socket or if there is no room for more.
func (u *Uplink) add(to *peer, p *dpr.Packet) error {
	s := &u.out
	inner, ok := segment.Whole(p.Bytes())
	switch {
	case to == nil:
		u.count.drop(NoPeer)
		return nil
	case !ok || !s.split.Start(p) || s.split.HeaderLen() > maxInnerHeader:
		u.count.drop(Malformed)
		return nil
	}
	by := u.send[to.family][via(header.Version(inner) == 6, tunnel.MayFragment(inner, to.mtu))]
	if by != s.via {
		if err := u.flushAll(); err != nil {
			return err
		}
		s.via = by
	}
	tos := tunnel.TOS(inner)
	for s.split.Left() > 0 {
		if s.n == sendBatch {
			if err := u.flushAll(); err != nil {
				return err
			}
		}
		hdr, payload := s.split.Segment(s.heads[s.n][:])
		s.message(to, tos, hdr, payload)
	}
	return nil
}

// message adds a message of one packet in two pieces, of which the first may be empty.
func (s *sender) message(to *peer, tos uint8, pieces ...[]byte) {
	h := &s.msgs[s.n].Hdr
	iovs := 0
	for _, b := range pieces {
		if len(b) > 0 {
			s.iovs[s.n][iovs].Base = &b[0]
			s.iovs[s.n][iovs].SetLen(len(b))
			iovs++
		}
	}
	h.Name, h.Namelen = (*byte)(unsafe.Pointer(&to.name.Raw)), to.name.Len
	h.Iov = &s.iovs[s.n][0]
	h.SetIovlen(iovs)
	h.Control = (*byte)(unsafe.Pointer(&s.ctls[s.n]))
	h.SetControllen(s.ctls[s.n].put(to.addr.Is4(), tos))
	s.n++
}

// flushAll sends what was gathered. An error means that the uplink is closed.
func (u *Uplink) flushAll() error {
	s := &u.out
	if s.n == 0 {
		return nil
	}
	s.at = 0
	err := s.via.raw.Write(u.flush)
	clear(s.iovs[:s.n]) // forget the memory that they refer to
	s.n = 0
	if err != nil {
		return fail("write", true, err)
	}
	return nil
}

// transmit sends what is left, and reports whether that is all.
func (u *Uplink) transmit(fd uintptr) bool {
	s := &u.out
	for s.at < s.n {
		n, errno := nonblock.Sendmmsg(fd, s.msgs[s.at:s.n])
		switch errno {
		case 0:
			u.count.sent.Add(uint64(n))
			s.at += n
		case unix.EAGAIN:
			return false
		case unix.EMSGSIZE:
			u.count.drop(TooBig)
			s.at++
		default:
			u.count.drop(Refused)
			s.at++
		}
	}
	return true
}
