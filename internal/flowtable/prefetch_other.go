//go:build !amd64 && !arm64

package flowtable

import (
	"sync/atomic"
	"unsafe"
)

// prefetch loads the lines of 64 bytes with these numbers, from base on. A loop that does
// nothing else has as many loads under way at once as the processor can look ahead.
func prefetch(base unsafe.Pointer, lines []uint32) {
	for _, i := range lines {
		atomic.LoadUint32((*uint32)(unsafe.Add(base, uintptr(i)*64)))
	}
}
