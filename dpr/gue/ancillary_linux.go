package gue

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

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
