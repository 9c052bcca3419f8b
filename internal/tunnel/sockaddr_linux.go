package tunnel

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Sockaddr is an address in the kernel's form: a sockaddr_in6, or a sockaddr_in in
// its first bytes, whose ports lie in the same place.
type Sockaddr struct {
	Raw unix.RawSockaddrInet6
	Len uint32
}

// NewSockaddr returns the kernel's form of an address.
func NewSockaddr(a netip.AddrPort) (s Sockaddr) {
	var port uint16
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&port))[:], a.Port())
	if a.Addr().Is4() {
		*(*unix.RawSockaddrInet4)(unsafe.Pointer(&s.Raw)) = unix.RawSockaddrInet4{
			Family: unix.AF_INET, Port: port, Addr: a.Addr().As4(),
		}
		s.Len = unix.SizeofSockaddrInet4
		return s
	}
	s.Raw = unix.RawSockaddrInet6{Family: unix.AF_INET6, Port: port, Addr: a.Addr().As16()}
	s.Len = unix.SizeofSockaddrInet6
	return s
}

// Addr returns the address without its port, IPv4 addresses in IPv4's form.
func (s *Sockaddr) Addr() netip.Addr {
	switch s.Raw.Family {
	case unix.AF_INET:
		return netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(&s.Raw)).Addr)
	case unix.AF_INET6:
		return netip.AddrFrom16(s.Raw.Addr).Unmap()
	}
	return netip.Addr{}
}

// PathMTU returns the MTU of the path to the address, which only a connected socket is
// told. It connects the UDP socket and leaves it so: nothing may be sent from it.
func PathMTU(socket syscall.RawConn, to netip.Addr) (mtu int, err error) {
	level, name := unix.SOL_IP, unix.IP_MTU
	if to.Is6() {
		level, name = unix.SOL_IPV6, unix.IPV6_MTU
	}
	dst := NewSockaddr(netip.AddrPortFrom(to, 1)) // any port; nothing is sent
	controlErr := socket.Control(func(fd uintptr) {
		// Whatever address the last route has left is forgotten first.
		if err = connect(fd, &Sockaddr{Len: dst.Len}); err == nil {
			err = connect(fd, &dst)
		}
		if err == nil {
			mtu, err = unix.GetsockoptInt(int(fd), level, name)
		}
	})
	return mtu, errors.Join(controlErr, err)
}

// connect connects a socket to the address; the zero address, of no family, undoes
// that.
func connect(fd uintptr, to *Sockaddr) error {
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, fd, uintptr(unsafe.Pointer(&to.Raw)), uintptr(to.Len))
	if errno != 0 {
		return errno
	}
	return nil
}
