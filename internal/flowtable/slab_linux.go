//go:build linux && !race

package flowtable

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugePage is the size of a huge page, in bytes, on the usual machines. Less than
// one is not worth asking for.
const hugePage = 2 << 20

// A slab is the memory of all shards: anonymous mappings, which the kernel fills
// with zeros page by page as they are first used.
type slab struct {
	entries []Entry
	heads   []uint32
	maps    [][]byte
}

func newSlab(entries, heads int) (slab, error) {
	a, err := mmap(entries * entrySize)
	if err != nil {
		return slab{}, err
	}
	b, err := mmap(heads * 4)
	if err != nil {
		return slab{}, errors.Join(err, unix.Munmap(a))
	}
	return slab{
		entries: unsafe.Slice((*Entry)(unsafe.Pointer(&a[0])), entries),
		heads:   unsafe.Slice((*uint32)(unsafe.Pointer(&b[0])), heads),
		maps:    [][]byte{a, b},
	}, nil
}

// mmap leaves out MAP_NORESERVE: where the administrator forbids overcommitment,
// a table that does not fit should fail at the start, not under load.
func mmap(size int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err == nil && size >= hugePage {
		// Fewer misses of the TLB. Without it the table works as well, only slower.
		_ = unix.Madvise(b, unix.MADV_HUGEPAGE)
	}
	return b, err
}

// release gives the memory back. Using it afterwards faults.
func (s slab) release() error {
	var errs []error
	for _, b := range s.maps {
		errs = append(errs, unix.Munmap(b))
	}
	return errors.Join(errs...)
}
