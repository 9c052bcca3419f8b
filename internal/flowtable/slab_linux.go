//go:build linux && !race

package flowtable

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugePage is the size of a huge page, in bytes, on the usual machines. Less than
// one is not worth asking for.
const hugePage = 2 << 20

// A slab is the memory of all shards: an anonymous mapping, which the kernel fills with
// zeros page by page as they are first used.
type slab struct {
	entries []Entry
	buckets []bucket
	mapping []byte
}

// newSlab maps both in one piece that begins at a huge page, for fewer misses of the TLB.
// It leaves out MAP_NORESERVE: where the administrator forbids overcommitment, a table
// that does not fit should fail at the start, not under load.
func newSlab(entries, buckets int) (slab, error) {
	size := buckets*bucketSize + entries*entrySize
	size += 2*hugePage - size%hugePage
	m, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return slab{}, err
	}
	if size > 2*hugePage {
		_ = unix.Madvise(m, unix.MADV_HUGEPAGE) // without it the table works as well, only slower
	}
	start := m[-uintptr(unsafe.Pointer(&m[0]))%hugePage:]
	return slab{
		buckets: unsafe.Slice((*bucket)(unsafe.Pointer(&start[0])), buckets),
		entries: unsafe.Slice((*Entry)(unsafe.Pointer(&start[buckets*bucketSize])), entries),
		mapping: m,
	}, nil
}

// release gives the memory back. Using it afterwards faults.
func (s slab) release() error {
	if s.mapping == nil {
		return nil
	}
	return unix.Munmap(s.mapping)
}
