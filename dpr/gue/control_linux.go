package gue

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr"
)

// Control sends a message of at most [MaxControl] bytes to what the peer gave as
// Config.Control. It may get lost like any datagram. The message stays the caller's.
// An error says that it was not sent. Control is safe for concurrent use.
func (u *Uplink) Control(id dpr.PeerID, message []byte) error {
	to := u.peers.Load().byID[id]
	if to == nil {
		u.count.drop(NoPeer, 1)
		return fmt.Errorf("gue: control message to peer %d, which is none", id)
	}
	b, err := u.control.next(u.codec.ring.Load(), to, message)
	if err != nil {
		return err
	}
	var dst unix.Sockaddr = &unix.SockaddrInet6{Port: int(to.addr.Port()), Addr: to.addr.Addr().As16()}
	if to.addr.Addr().Is4() {
		dst = &unix.SockaddrInet4{Port: int(to.addr.Port()), Addr: to.addr.Addr().As4()}
	}
	var sendErr error
	err = u.sources[to.family][0].raw.Write(func(fd uintptr) bool {
		sendErr = unix.Sendto(int(fd), b, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, dst)
		return sendErr != unix.EAGAIN
	})
	if err != nil {
		return fail("control", true, err)
	}
	if sendErr != nil {
		u.count.drop(Refused, 1)
		return fail("control", false, sendErr)
	}
	u.count.controlsSent.Add(1)
	return nil
}
