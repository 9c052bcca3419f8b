package gue

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/internal/nonblock"
)

// prepare writes the kernel's form of a message whose datagrams are all there.
func (s *sender) prepare(i int) {
	m, h, ctl := &s.meta[i], &s.msgs[i].Hdr, &s.ctls[i]
	end := s.nIov
	if i+1 < s.nMsg {
		end = s.meta[i+1].iov
	}
	m.left = m.total
	n := 0
	if m.tos != 0 {
		if m.to.addr.Addr().Is4() {
			n = ctl.put(n, unix.SOL_IP, unix.IP_TOS, 4, uint32(m.tos))
		} else {
			n = ctl.put(n, unix.SOL_IPV6, unix.IPV6_TCLASS, 4, uint32(m.tos))
		}
	}
	m.tosLen = n
	if m.parts > 1 {
		n = ctl.put(n, unix.SOL_UDP, unix.UDP_SEGMENT, 2, uint32(m.size))
	}
	h.Name, h.Namelen = (*byte)(unsafe.Pointer(&m.to.sock.Raw)), m.to.sock.Len
	h.Iov = &s.iovs[m.iov]
	h.SetIovlen(end - m.iov)
	h.Control = (*byte)(unsafe.Pointer(ctl))
	h.SetControllen(n)
}

// part makes s.one the next datagram of a message that the kernel does not
// segment, and returns its length and the number of its vectors.
func (s *sender) part(m *message) (length, iovs int) {
	for want := min(m.size, m.left); length < want; iovs++ {
		length += int(s.iovs[m.iov+iovs].Len)
	}
	s.one[0].Hdr = s.msgs[s.at].Hdr
	s.one[0].Hdr.Iov = &s.iovs[m.iov]
	s.one[0].Hdr.SetIovlen(iovs)
	s.one[0].Hdr.SetControllen(m.tosLen)
	return length, iovs
}

// transmit sends what is left, and reports whether that is all.
func (q *Queue) transmit(fd uintptr) bool {
	s := &q.out
	for s.at < s.nMsg {
		m := &s.meta[s.at]
		if m.parts > 1 && (m.apart || q.u.noGSO.Load()) {
			length, iovs := s.part(m)
			_, errno := q.sendmmsg(fd, s.one[:])
			if errno == unix.EAGAIN {
				return false
			}
			m.iov, m.left = m.iov+iovs, m.left-length
			q.done(m, 1, m.left == 0, errno)
			continue
		}
		n, errno := q.sendmmsg(fd, s.msgs[s.at:s.nMsg])
		switch {
		case errno == 0:
			for range n {
				m := &s.meta[s.at]
				q.done(m, m.parts, true, 0)
			}
		case errno == unix.EAGAIN:
			return false
		case m.parts > 1 && refusesGSO(errno):
			q.u.fallBack(errno)
		case m.parts > 1 && errno == unix.EMSGSIZE:
			m.apart = true // the last part is shorter and may fit
		default:
			q.done(m, m.parts, true, errno)
		}
	}
	return true
}

// done counts datagrams of the message that went out or failed, and goes on to
// the next message if they were its last.
func (q *Queue) done(m *message, parts int, last bool, errno unix.Errno) {
	switch errno {
	case 0:
		q.u.count.sent.Add(uint64(parts))
		if last {
			q.out.sent += m.ends
		}
	case unix.EMSGSIZE:
		q.u.count.drop(TooBig, parts)
	default:
		q.u.count.drop(Refused, parts)
	}
	if last {
		q.out.at++
	}
}

// refusesGSO reports whether an error means that the kernel, or the network card
// on the way, does not do UDP_SEGMENT: EIO is that of a card without checksum
// offload, or of IPsec.
func refusesGSO(errno unix.Errno) bool {
	return errno == unix.EINVAL || errno == unix.EIO || errno == unix.EOPNOTSUPP || errno == unix.ENOPROTOOPT
}

// fallBack makes all queues send datagrams one by one from now on.
func (u *Uplink) fallBack(errno unix.Errno) {
	if !u.noGSO.Swap(true) {
		u.cfg.Log.Warn("gue: the kernel refused UDP segmentation offload, sending datagrams one by one from now on",
			"error", errno)
	}
}

// sendmmsg sends messages and returns how many went out, at least one if there is
// no error.
func (q *Queue) sendmmsg(fd uintptr, msgs []unix.Mmsghdr) (int, unix.Errno) {
	q.u.count.sendCalls.Add(1)
	return nonblock.Sendmmsg(fd, msgs)
}
