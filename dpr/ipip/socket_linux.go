package ipip

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// bufferSize is the socket buffer asked for, in bytes: 10 ms at 3 Gbit/s.
const bufferSize = 4 << 20

// A socket is a socket that does not block, in the hands of the runtime's poller, so
// that closing it wakes whoever waits for it.
type socket struct {
	file *os.File
	raw  syscall.RawConn
}

type option struct{ level, name, value int }

// newSocket returns a socket that is bound to the address: a raw one of the protocol,
// or a UDP socket, which only asks for paths, if the protocol is that.
func newSocket(a netip.Addr, proto int, options ...option) (*socket, error) {
	kind, family := unix.SOCK_RAW, unix.AF_INET6
	if proto == unix.IPPROTO_UDP {
		kind = unix.SOCK_DGRAM
	}
	var to unix.Sockaddr = &unix.SockaddrInet6{Addr: a.As16()}
	if a.Is4() {
		family = unix.AF_INET
		to = &unix.SockaddrInet4{Addr: a.As4()}
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, proto)
	if errors.Is(err, unix.EPERM) {
		return nil, fmt.Errorf("ipip: raw socket: %w: CAP_NET_RAW is missing", err)
	}
	if err != nil {
		return nil, fmt.Errorf("ipip: socket: %w", err)
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			unix.Close(fd)
			return nil, fmt.Errorf("ipip: socket for %v: option %d of level %d: %w", a, o.name, o.level, err)
		}
	}
	// Needs CAP_NET_ADMIN, and is no loss but of speed.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bufferSize)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, bufferSize)
	if err := unix.Bind(fd, to); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("ipip: Listen %v: %w: give an address that this host has", a, err)
	}
	s := &socket{file: os.NewFile(uintptr(fd), fmt.Sprintf("ip %d %v", proto, a))}
	if s.raw, err = s.file.SyscallConn(); err != nil {
		s.file.Close()
		return nil, fmt.Errorf("ipip: socket for %v: %w", a, err)
	}
	return s, nil
}

func (s *socket) close() error { return s.file.Close() }

// listenSocket returns a socket that receives packets of the protocol.
func listenSocket(a netip.Addr, proto int) (*socket, error) {
	if a.Is4() {
		return newSocket(a, proto)
	}
	return newSocket(a, proto, option{unix.SOL_IPV6, unix.IPV6_RECVTCLASS, 1})
}

// sendSocket returns a socket that sends packets of the protocol, and receives none.
// With whole set, nothing it sends is fragmented: the kernel refuses what exceeds the
// path's MTU with EMSGSIZE.
func sendSocket(a netip.Addr, proto int, whole bool) (*socket, error) {
	level, name := unix.SOL_IP, unix.IP_MTU_DISCOVER
	if a.Is6() {
		level, name = unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER
	}
	discover := unix.IP_PMTUDISC_DONT // the values are the same in IPv6
	if whole {
		discover = unix.IP_PMTUDISC_DO
	}
	s, err := newSocket(a, proto, option{level, name, discover})
	if err != nil || proto == unix.IPPROTO_UDP {
		return s, err
	}
	var inner error
	err = s.raw.Control(func(fd uintptr) {
		drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
		inner = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop})
	})
	if err = errors.Join(err, inner); err != nil {
		return nil, errors.Join(fmt.Errorf("ipip: socket for %v: filter: %w", a, err), s.close())
	}
	return s, nil
}

// A control buffer holds the one item of ancillary data that there is: the outer byte
// of DSCP and ECN, in four bytes. It is made of words so that it is aligned.
type control [4]uint64

// put writes the item and returns its length in bytes, 0 for a byte of 0.
func (c *control) put(is4 bool, tos uint8) int {
	if tos == 0 {
		return 0
	}
	h := (*unix.Cmsghdr)(unsafe.Pointer(c))
	h.Level, h.Type = unix.SOL_IPV6, unix.IPV6_TCLASS
	if is4 {
		h.Level, h.Type = unix.SOL_IP, unix.IP_TOS
	}
	h.SetLen(unix.CmsgLen(4))
	*(*int32)(unsafe.Add(unsafe.Pointer(h), unix.CmsgLen(0))) = int32(tos)
	return unix.CmsgSpace(4)
}

// tos returns the byte of a received IPv6 packet, from n bytes of the buffer.
func (c *control) tos(n int) uint8 {
	h := (*unix.Cmsghdr)(unsafe.Pointer(c))
	if n < unix.CmsgLen(4) || h.Level != unix.SOL_IPV6 || h.Type != unix.IPV6_TCLASS {
		return 0
	}
	return uint8(*(*int32)(unsafe.Add(unsafe.Pointer(h), unix.CmsgLen(0))))
}
