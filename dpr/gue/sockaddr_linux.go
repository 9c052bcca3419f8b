package gue

import (
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sockaddr is an address in the kernel's form: a sockaddr_in6, or a sockaddr_in
// in its first bytes.
type sockaddr struct {
	raw unix.RawSockaddrInet6
	len uint32
}

func newSockaddr(a netip.AddrPort) (s sockaddr) {
	var port uint16
	be.PutUint16((*[2]byte)(unsafe.Pointer(&port))[:], a.Port())
	if a.Addr().Is4() {
		*(*unix.RawSockaddrInet4)(unsafe.Pointer(&s.raw)) = unix.RawSockaddrInet4{
			Family: unix.AF_INET, Port: port, Addr: a.Addr().As4(),
		}
		s.len = unix.SizeofSockaddrInet4
		return s
	}
	s.raw = unix.RawSockaddrInet6{Family: unix.AF_INET6, Port: port, Addr: a.Addr().As16()}
	s.len = unix.SizeofSockaddrInet6
	return s
}

// addr returns the address without its port, IPv4 addresses in IPv4's form.
func (s *sockaddr) addr() netip.Addr {
	switch s.raw.Family {
	case unix.AF_INET:
		return netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(&s.raw)).Addr)
	case unix.AF_INET6:
		return netip.AddrFrom16(s.raw.Addr).Unmap()
	}
	return netip.Addr{}
}

// A control buffer holds the ancillary data of one message: at most two items of
// up to four bytes. It is made of words so that it is aligned.
type control [8]uint64

// put appends an item to the first n bytes of the buffer and returns their new
// number. The value is of two or four bytes, in the host's order.
func (c *control) put(n, level, typ, size int, value uint32) int {
	h := (*unix.Cmsghdr)(unsafe.Add(unsafe.Pointer(c), n))
	h.Level, h.Type = int32(level), int32(typ)
	h.SetLen(unix.CmsgLen(size))
	data := unsafe.Add(unsafe.Pointer(h), unix.CmsgLen(0))
	if size == 2 {
		*(*uint16)(data) = uint16(value)
	} else {
		*(*uint32)(data) = value
	}
	return n + unix.CmsgSpace(size)
}

// parse reads what the kernel says of a received message in the first n bytes of
// the buffer: the length of the datagrams that it joined, 0 if it did not, and
// the byte of DSCP and ECN.
func (c *control) parse(n int) (size int, tos uint8) {
	n = min(n, int(unsafe.Sizeof(*c)))
	for at := 0; at+unix.CmsgLen(0) <= n; {
		h := (*unix.Cmsghdr)(unsafe.Add(unsafe.Pointer(c), at))
		length := int(h.Len)
		if length < unix.CmsgLen(1) || at+length > n {
			break
		}
		data := unsafe.Add(unsafe.Pointer(h), unix.CmsgLen(0))
		switch {
		case h.Level == unix.SOL_UDP && h.Type == unix.UDP_GRO && length >= unix.CmsgLen(4):
			size = int(*(*int32)(data))
		case h.Level == unix.SOL_IP && h.Type == unix.IP_TOS:
			tos = *(*uint8)(data) // one byte, as the kernel sends it
		case h.Level == unix.SOL_IPV6 && h.Type == unix.IPV6_TCLASS && length >= unix.CmsgLen(4):
			tos = uint8(*(*int32)(data))
		}
		at += unix.CmsgSpace(length - unix.CmsgLen(0))
	}
	return size, tos
}
