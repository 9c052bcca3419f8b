package main

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugeSlice returns memory as the flow table has it: in huge pages, if the kernel
// gives any. It is never freed.
func hugeSlice[T any](n int) []T {
	var one T
	const page = 2 << 20
	b, err := unix.Mmap(-1, 0, n*int(unsafe.Sizeof(one))+2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return make([]T, n)
	}
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE) // without it, it is only slower
	return unsafe.Slice((*T)(unsafe.Pointer(&b[-uintptr(unsafe.Pointer(&b[0]))%page])), n)
}
