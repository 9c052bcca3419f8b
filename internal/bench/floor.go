package main

import (
	"hash/maphash"
	"math/bits"
	"unsafe"
)

// A floor does to memory what forwarding a packet of a known flow cannot do without,
// and nothing else: hash 40 bytes with a secret, load a bucket, load and compare an
// entry of 64 bytes, store five words. It has no logic: what a router costs above it
// is its own.
type floor struct {
	seed    maphash.Seed
	mask    uint64
	buckets []uint32
	entries [][8]uint64
	packets [32][5]uint64
	hashes  [32]uint64
	found   [32]uint32
	out     uint64
}

func newFloor(flows int) *floor {
	size := 1 << bits.Len(uint(flows-1))
	f := &floor{seed: maphash.MakeSeed(), mask: uint64(size - 1), buckets: hugeSlice[uint32](size), entries: hugeSlice[[8]uint64](flows)}
	for i := range f.entries {
		p := packetOf(uint32(i))
		f.entries[i] = [8]uint64{p[0], p[1]}
		f.buckets[maphash.Bytes(f.seed, bytesOf(&p))&f.mask] = uint32(i)
	}
	return f
}

func packetOf(flow uint32) [5]uint64 { return [5]uint64{uint64(flow), uint64(flow) * 31, 3, 4, 5} }

func bytesOf(p *[5]uint64) []byte { return (*[40]byte)(unsafe.Pointer(p))[:] }

// run handles one packet of each of 32 flows in the passes that a router would use.
func (f *floor) run(flows *[32]uint32) {
	for i, n := range flows {
		f.packets[i] = packetOf(n)
	}
	for i := range f.packets { // right after the stores it would wait for them
		f.hashes[i] = maphash.Bytes(f.seed, bytesOf(&f.packets[i])) & f.mask
	}
	for i, h := range f.hashes {
		f.found[i] = f.buckets[h]
	}
	for _, n := range f.found {
		f.out += f.entries[n][0]
	}
	for i, n := range f.found {
		p, e := &f.packets[i], &f.entries[n]
		if e[0] == p[0] && e[1] == p[1] {
			e[2]++
		}
		e[3], e[4], e[5], e[6] = p[0], p[1], p[2], p[3]
	}
}
