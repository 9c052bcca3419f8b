package sockmeter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// States of TCP sockets as bits of a dump's filter (include/net/tcp_states.h).
const (
	stateEstablished = 1 << 1
	stateListen      = 1 << 10
)

// Sizes and offsets of the kernel's messages, in bytes (linux/inet_diag.h,
// linux/netlink.h, linux/rtnetlink.h).
const (
	sizeofReq      = 56 // inet_diag_req_v2
	sizeofMsg      = 72 // inet_diag_msg
	offSport       = 4  // in inet_diag_msg
	offSrc         = 8
	offReqSport    = 8  // in inet_diag_req_v2
	attrV6Only     = 11 // INET_DIAG_SKV6ONLY
	sockDiagFamily = 20 // SOCK_DIAG_BY_FAMILY
)

// diagBuffer is the size of a receive buffer: the kernel fills no more than
// 32 KiB with one message of a dump.
const diagBuffer = 32 << 10

// diagTimeout bounds the wait for the kernel. It answers a dump while it is asked
// for it, so the timeout only ends a wait for an answer that was lost.
const diagTimeout = 5 * time.Second

// A socket is what a dump tells of a TCP socket.
type socket struct {
	local  netip.Addr
	port   uint16
	v6only bool
}

// accepts reports whether a listening socket takes connections to addr.
func (s socket) accepts(addr netip.Addr) bool {
	addr = addr.Unmap()
	switch {
	case !addr.IsValid():
		return true
	case !s.local.IsUnspecified():
		return s.local == addr.WithZone("")
	case addr.Is4():
		return !s.v6only
	}
	return s.local.Is6()
}

// A diag asks the kernel for the TCP sockets of the network namespace in which
// it was opened. It is not safe for concurrent use.
type diag struct {
	fd  int
	seq uint32
	buf []byte
}

func openDiag() (*diag, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, fmt.Errorf("sockmeter: netlink sock_diag socket: %w", err)
	}
	tv := unix.NsecToTimeval(diagTimeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("setsockopt SO_RCVTIMEO", err)
	}
	return &diag{fd: fd, buf: make([]byte, diagBuffer)}, nil
}

// close closes the socket. It may be called more than once: by then the descriptor's
// number may be another file's.
func (d *diag) close() error {
	fd := d.fd
	if fd < 0 {
		return nil
	}
	d.fd = -1
	return unix.Close(fd)
}

// netns returns the cookie of the socket's network namespace.
func (d *diag) netns() (uint64, error) {
	cookie, err := unix.GetsockoptUint64(d.fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("sockmeter: network namespace cookie (Linux 5.14): %w", err)
	}
	return cookie, nil
}

// dump calls visit for each TCP socket in one of the states whose local port is
// port; 0 stands for any. Sockets of IPv6 that carry IPv4 are among them.
func (d *diag) dump(states uint32, port uint16, visit func(socket)) error {
	for _, family := range [...]uint8{unix.AF_INET, unix.AF_INET6} {
		if err := d.dumpFamily(family, states, port, visit); err != nil {
			return fmt.Errorf("sockmeter: sock_diag dump: %w", err)
		}
	}
	return nil
}

func (d *diag) dumpFamily(family uint8, states uint32, port uint16, visit func(socket)) error {
	d.seq++
	req := request(d.seq, family, states, port)
	if err := unix.Sendto(d.fd, req, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	for {
		n, _, err := unix.Recvfrom(d.fd, d.buf, unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		case n > len(d.buf):
			return fmt.Errorf("message of %d bytes", n)
		}
		done, err := parse(d.buf[:n], d.seq, visit)
		// ENOENT: the kernel was built without this family.
		if done || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// request builds a dump request.
func request(seq uint32, family uint8, states uint32, port uint16) []byte {
	b := make([]byte, unix.SizeofNlMsghdr+sizeofReq)
	binary.NativeEndian.PutUint32(b[0:], uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], sockDiagFamily)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	binary.NativeEndian.PutUint32(b[8:], seq)
	r := b[unix.SizeofNlMsghdr:]
	r[0], r[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(r[4:], states)
	binary.BigEndian.PutUint16(r[offReqSport:], port)
	return b
}

var errShort = errors.New("truncated netlink message")

// parse visits the sockets of one datagram of a dump and reports whether the
// dump is complete. Messages of other dumps are passed over.
func parse(b []byte, seq uint32, visit func(socket)) (done bool, err error) {
	for len(b) >= unix.SizeofNlMsghdr {
		length := int(binary.NativeEndian.Uint32(b))
		if length < unix.SizeofNlMsghdr || length > len(b) {
			return false, errShort
		}
		body := b[unix.SizeofNlMsghdr:length]
		kind := binary.NativeEndian.Uint16(b[4:])
		mine := binary.NativeEndian.Uint32(b[8:]) == seq
		b = b[min(align4(length), len(b)):]
		switch {
		case !mine:
		case kind == unix.NLMSG_DONE:
			return true, nil
		case kind == unix.NLMSG_ERROR:
			return false, parseError(body)
		case kind == sockDiagFamily:
			s, ok := parseSocket(body)
			if !ok {
				return false, errShort
			}
			visit(s)
		}
	}
	return false, nil
}

func parseError(body []byte) error {
	if len(body) < 4 {
		return errShort
	}
	return unix.Errno(-int32(binary.NativeEndian.Uint32(body)))
}

// parseSocket reads an inet_diag_msg and the one attribute of interest.
func parseSocket(b []byte) (s socket, ok bool) {
	if len(b) < sizeofMsg {
		return s, false
	}
	s.port = binary.BigEndian.Uint16(b[offSport:])
	if b[0] == unix.AF_INET {
		s.local = netip.AddrFrom4([4]byte(b[offSrc:]))
	} else {
		s.local = netip.AddrFrom16([16]byte(b[offSrc:])).Unmap()
	}
	for b = b[sizeofMsg:]; len(b) >= unix.SizeofNlAttr; {
		length := int(binary.NativeEndian.Uint16(b))
		if length < unix.SizeofNlAttr || length > len(b) {
			return s, false
		}
		if binary.NativeEndian.Uint16(b[2:]) == attrV6Only && length > unix.SizeofNlAttr {
			s.v6only = b[unix.SizeofNlAttr] != 0
		}
		b = b[min(align4(length), len(b)):]
	}
	return s, true
}

// align4 rounds up to the alignment of netlink messages and attributes.
func align4(n int) int { return (n + 3) &^ 3 }
