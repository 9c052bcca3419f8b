package sockdiag

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

const (
	sockDestroy = 21 // SOCK_DESTROY
	// open are the states of connections that can be ended with a reset.
	open = 1<<Established | 1<<FinWait1 | 1<<FinWait2 | 1<<CloseWait | 1<<LastAck | 1<<Closing
	// abortPause lies between two batches, so that at most 32,000 connections are
	// ended in a second: each is a packet for somebody.
	abortPause = time.Millisecond
)

// An identity is what the kernel knows a socket by. It holds a cookie, which tells the
// socket from all others there ever were: a request without one that comes too late
// would meet the listener.
type identity struct {
	family byte
	id     [sizeofID]byte
}

// Abort ends the connections that are wanted, as a server would with a reset (tcp_abort
// of the kernel): the other ends get one, and the server an error. It is asked about each
// of this host's, and returns how many it has ended. It needs CAP_NET_ADMIN and a kernel
// that was built with CONFIG_INET_DIAG_DESTROY; without, the error is EPERM or
// EOPNOTSUPP. It takes about 6 ms for each thousand sockets of the host, and 50 for each
// thousand that it ends.
func (s *Socket) Abort(wanted func(Pair) bool) (n int, err error) {
	list, err := s.find(wanted)
	for ; err == nil && len(list) > 0; list = list[min(batch, len(list)):] {
		if n > 0 {
			time.Sleep(abortPause)
		}
		var ended int
		ended, err = s.destroy(list[:min(batch, len(list))])
		n += ended
	}
	if err != nil {
		return n, fmt.Errorf("sockdiag: ending connections: %w", err)
	}
	return n, nil
}

// find returns the open connections that are wanted.
func (s *Socket) find(wanted func(Pair) bool) (list []identity, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, family := range [...]byte{unix.AF_INET, unix.AF_INET6} {
		if list, err = s.dump(list, family, wanted); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// dump appends those of one family. Sockets of IPv6 may carry IPv4.
func (s *Socket) dump(list []identity, family byte, wanted func(Pair) bool) ([]identity, error) {
	seq := s.seq
	s.seq++
	var r []byte
	s.out, r = appendHead(s.out[:0], seq, sockDiagFamily, unix.NLM_F_DUMP, family)
	binary.NativeEndian.PutUint32(r[4:], open)
	if err := s.send(); err != nil {
		return list, err
	}
	for done := false; !done; {
		_, err := s.receive(seq, 1, func(_ int, kind uint16, body []byte) error {
			switch {
			case kind == unix.NLMSG_DONE:
				done = true
			case kind == unix.NLMSG_ERROR:
				return parseError(body)
			case kind == sockDiagFamily && len(body) >= sizeofMsg:
				if wanted(pairOf(body)) {
					list = append(list, identity{body[0], [sizeofID]byte(body[offMsgID:])})
				}
			default:
				return errShort
			}
			return nil
		})
		if errors.Is(err, unix.ENOENT) { // the kernel was built without this family
			return list, nil
		}
		if err != nil {
			return list, err
		}
	}
	return list, nil
}

// pairOf returns a socket's ends from its struct inet_diag_msg.
func pairOf(msg []byte) Pair {
	id := msg[offMsgID:]
	end := func(port, addr int) netip.AddrPort {
		a := netip.AddrFrom16([16]byte(id[addr:])).Unmap()
		if msg[0] == unix.AF_INET {
			a = netip.AddrFrom4([4]byte(id[addr:]))
		}
		return netip.AddrPortFrom(a, binary.BigEndian.Uint16(id[port:]))
	}
	return Pair{Local: end(0, 4), Remote: end(2, 20)}
}

// destroy ends a batch of connections. Those that have ended by themselves do not count.
func (s *Socket) destroy(list []identity) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err = s.exchange(len(list), func(b []byte, i int, seq uint32) []byte {
		b, r := appendHead(b, seq, sockDestroy, unix.NLM_F_ACK, list[i].family)
		copy(r[offReqID:], list[i].id[:])
		return b
	}, func(_ int, kind uint16, body []byte) error {
		if kind != unix.NLMSG_ERROR {
			return errShort
		}
		err := parseError(body)
		switch {
		case err == nil:
			n++
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESTALE):
			return nil
		}
		return err
	})
	return n, err
}
