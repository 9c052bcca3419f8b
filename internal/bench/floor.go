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
	buckets []uint32
	entries [][8]uint64
	batch   [32]struct {
		packet [5]uint64
		entry  uint32
	}
	out [5]uint64
}

func newFloor(flows int) *floor {
	size := 1 << bits.Len(uint(flows-1))
	f := &floor{seed: maphash.MakeSeed(), buckets: make([]uint32, size), entries: make([][8]uint64, flows)}
	for i := range f.entries {
		p := packetOf(uint32(i))
		f.entries[i] = [8]uint64{p[0], p[1]}
		f.buckets[f.hash(&p)] = uint32(i)
	}
	return f
}

func packetOf(flow uint32) [5]uint64 { return [5]uint64{uint64(flow), uint64(flow) * 31, 3, 4, 5} }

func (f *floor) hash(p *[5]uint64) uint64 {
	return maphash.Bytes(f.seed, (*[40]byte)(unsafe.Pointer(p))[:]) & uint64(len(f.buckets)-1)
}

// run handles one packet of each of 32 flows in the passes that a router would use.
func (f *floor) run(flows *[32]uint32) {
	for i, n := range flows {
		b := &f.batch[i]
		b.packet = packetOf(n)
		b.entry = f.buckets[f.hash(&b.packet)]
	}
	for i := range f.batch {
		f.out[0] += f.entries[f.batch[i].entry][0]
	}
	for i := range f.batch {
		b := &f.batch[i]
		e := &f.entries[b.entry]
		if e[0] == b.packet[0] && e[1] == b.packet[1] {
			e[2]++
		}
		e[3], e[4], e[5], e[6] = b.packet[0], b.packet[1], b.packet[2], b.packet[3]
	}
}
