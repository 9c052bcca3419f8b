package gue

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// bufferSize is the socket buffer asked for, in bytes: 10 ms at 3 Gbit/s.
const bufferSize = 4 << 20

// A socket is a UDP socket that does not block, in the hands of the runtime's
// poller, so that closing it wakes whoever waits for it.
type socket struct {
	file *os.File
	raw  syscall.RawConn
}

// option is one socket option. Where soft, a kernel that lacks it will do.
type option struct {
	level, name, value int
	soft               bool
}

// newSocket returns a socket that is bound to the address.
func newSocket(a netip.AddrPort, options []option) (*socket, error) {
	family := unix.AF_INET6
	var to unix.Sockaddr = &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	if a.Addr().Is4() {
		family = unix.AF_INET
		to = &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("gue: socket for %v: %w", a, err)
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil && !o.soft {
			unix.Close(fd)
			return nil, fmt.Errorf("gue: socket for %v: option %d of level %d: %w", a, o.name, o.level, err)
		}
	}
	if err := unix.Bind(fd, to); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("gue: Listen %v: %w%s", a, err, bindRemedy(err))
	}
	s := &socket{file: os.NewFile(uintptr(fd), "udp "+a.String())}
	if s.raw, err = s.file.SyscallConn(); err != nil {
		s.file.Close()
		return nil, fmt.Errorf("gue: socket for %v: %w", a, err)
	}
	return s, nil
}

func bindRemedy(err error) string {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return ": another process has this port, stop it or choose another"
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return ": give an address that this host has"
	}
	return ""
}

// listenSocket returns a socket to receive on.
func listenSocket(a netip.AddrPort, cfg *Config) (*socket, error) {
	options := []option{
		{unix.SOL_SOCKET, unix.SO_RCVBUF, bufferSize, true},
		{unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bufferSize, true}, // needs CAP_NET_ADMIN
	}
	if a.Addr().Is4() {
		options = append(options, option{unix.SOL_IP, unix.IP_RECVTOS, 1, false})
	} else {
		options = append(options, option{unix.SOL_IPV6, unix.IPV6_V6ONLY, 1, false},
			option{unix.SOL_IPV6, unix.IPV6_RECVTCLASS, 1, false})
	}
	if cfg.Queues > 1 {
		options = append(options, option{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1, false})
	}
	if !cfg.NoOffload {
		options = append(options, option{unix.SOL_UDP, unix.UDP_GRO, 1, true}) // Linux 5.0
	}
	return newSocket(a, options)
}

// sourceSocket returns a socket to send from, with a port of the kernel's choice.
// With whole set nothing it sends is fragmented: the kernel refuses what exceeds the
// path's MTU with EMSGSIZE. Otherwise the kernel fragments that, and with IPv4 the
// network may, too.
func sourceSocket(a netip.Addr, whole bool) (*socket, error) {
	options := []option{
		{unix.SOL_SOCKET, unix.SO_SNDBUF, bufferSize, true},
		{unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, bufferSize, true},
		{unix.SOL_SOCKET, unix.SO_RCVBUF, 0, true}, // nothing is expected here
	}
	discover := unix.IP_PMTUDISC_DONT // the values are the same in IPv6
	if whole {
		discover = unix.IP_PMTUDISC_DO
	}
	if a.Is4() {
		options = append(options, option{unix.SOL_IP, unix.IP_MTU_DISCOVER, discover, false})
	} else {
		options = append(options, option{unix.SOL_IPV6, unix.IPV6_V6ONLY, 1, false},
			option{unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER, discover, false})
	}
	return newSocket(netip.AddrPortFrom(a, 0), options)
}
