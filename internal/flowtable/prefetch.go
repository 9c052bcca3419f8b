//go:build amd64 || arm64

package flowtable

import "unsafe"

// prefetch asks for the lines of 64 bytes with these numbers, from base on. Unlike a load,
// which a processor cannot look beyond for long, it waits for none.
//
//go:noescape
func prefetch(base unsafe.Pointer, lines []uint32)
