package flowtable

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// forSizes runs a benchmark on full tables of several sizes. pick returns random
// keys: at a million flows nearly every access misses the cache.
func forSizes(b *testing.B, f func(b *testing.B, t *Table, pick func() Key)) {
	for _, size := range []int{1_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			if size == 1_000_000 && testing.Short() {
				b.Skip("takes a second to fill")
			}
			t := newTable(b, Config{MaxFlows: size, Timeouts: [Classes]time.Duration{time.Minute}})
			for n := range size {
				insert(t, key(n), 0, 0)
			}
			rng := rand.New(rand.NewPCG(1, 2))
			pick := func() Key { return key(int(rng.Uint64N(uint64(size)))) }
			for range 2 * size { // a ring in random order, as after some time in use
				touch(t, pick(), 0)
			}
			b.ReportAllocs()
			b.ResetTimer()
			f(b, t, pick)
		})
	}
}

func touch(t *Table, k Key, now uint32) {
	h := t.Hash(&k)
	s := t.Lock(h)
	s.Move(s.Lookup(&k, h), 0, now)
	s.Unlock()
}

// clock returns a time at which the i-th packet may arrive, at a million packets
// per second.
func clock(i int) uint32 { return uint32(i / 1000) }

func BenchmarkHit(b *testing.B) {
	forSizes(b, func(b *testing.B, t *Table, pick func() Key) {
		for i := range b.N {
			touch(t, pick(), clock(i))
		}
	})
}

func BenchmarkMiss(b *testing.B) {
	forSizes(b, func(b *testing.B, t *Table, pick func() Key) {
		for range b.N {
			k := pick()
			k.Addr = 1
			h := t.Hash(&k)
			s := t.Lock(h)
			if s.Lookup(&k, h) != nil {
				b.Fatal("found what is not there")
			}
			s.Unlock()
		}
	})
}

func BenchmarkDeleteInsert(b *testing.B) {
	forSizes(b, func(b *testing.B, t *Table, pick func() Key) {
		for i := range b.N {
			k := pick()
			h := t.Hash(&k)
			s := t.Lock(h)
			s.Delete(s.Lookup(&k, h))
			s.Insert(&k, h, clock(i), &Start{})
			s.Unlock()
		}
	})
}

// BenchmarkBatch does what BenchmarkHit does, in passes over 64 packets.
func BenchmarkBatch(b *testing.B) {
	forSizes(b, func(b *testing.B, t *Table, pick func() Key) {
		var keys [64]Key
		var hashes [64]uint64
		var guesses [64]uint32
		for i := 0; i < b.N; i += len(keys) {
			for j := range keys {
				keys[j] = pick()
				hashes[j] = t.Hash(&keys[j])
			}
			t.Touch(hashes[:], guesses[:])
			for j, h := range hashes {
				s := t.Lock(h)
				s.Move(find(s, &keys[j], h, guesses[j]), 0, clock(i))
				s.Unlock()
			}
		}
	})
}

func BenchmarkHash(b *testing.B) {
	t, k := newTable(b, Config{MaxFlows: 1}), key(1)
	for b.Loop() {
		t.Hash(&k)
	}
}

// BenchmarkExpire is per entry, of which a call removes 64.
func BenchmarkExpire(b *testing.B) {
	const size = 1 << 20
	t := newTable(b, Config{MaxFlows: size, Timeouts: [Classes]time.Duration{time.Second}})
	rng := rand.New(rand.NewPCG(1, 2))
	for i, now := 0, uint32(0); i < b.N; i += 64 {
		if t.Len() < 64 {
			b.StopTimer()
			for n := range rng.Perm(size) {
				insert(t, key(n), 0, now)
			}
			now += 1000
			b.StartTimer()
		}
		t.Expire(now, 64)
	}
}
