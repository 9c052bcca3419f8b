package flowtable

import (
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

const (
	closed Class = iota
	embryonic
	established
)

// testingT is what a testing.TB and a rapid.T have in common.
type testingT interface {
	require.TestingT
	Helper()
	Cleanup(func())
}

// newTable makes a table that the test closes.
func newTable(tb testingT, cfg Config) *Table {
	tb.Helper()
	t, err := New(cfg)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, t.Close()) })
	return t
}

// key returns the n-th of many keys.
func key(n int) Key {
	return Key{Client: [2]uint64{0, uint64(n)}, ClientPort: uint16(n), Port: 80}
}

func insert(t *Table, k Key, class Class, now uint32) bool {
	h := t.Hash(&k)
	s := t.Lock(h)
	defer s.Unlock()
	return s.Insert(&k, h, now, &Start{Class: class}) != nil
}

// with calls f with the entry of k, nil if there is none.
func with(t *Table, k Key, f func(*Shard, *Entry)) {
	h := t.Hash(&k)
	s := t.Lock(h)
	defer s.Unlock()
	f(s, s.Lookup(&k, h))
}

func has(t *Table, k Key) (ok bool) {
	with(t, k, func(_ *Shard, e *Entry) { ok = e != nil })
	return ok
}

func TestNewRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"no size", Config{}, "MaxFlows is 0"},
		{"negative size", Config{MaxFlows: -1}, "MaxFlows is -1"},
		{"huge", Config{MaxFlows: math.MaxInt}, "MaxFlows is"},
		{"odd shards", Config{MaxFlows: 1, Shards: 3}, "Shards is 3"},
		{"negative shards", Config{MaxFlows: 1, Shards: -2}, "Shards is -2"},
		{"negative timeout", Config{MaxFlows: 1, Timeouts: [Classes]time.Duration{2: -1}}, "Timeouts[2]"},
		{"long timeout", Config{MaxFlows: 1, Timeouts: [Classes]time.Duration{MaxTimeout + 1}}, "Timeouts[0]"},
		{"no such class", Config{MaxFlows: 1, Evict: []Class{1, Classes}}, "Evict[1]"},
		{"class twice", Config{MaxFlows: 1, Evict: []Class{1, 1}}, "twice"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := New(c.cfg)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestDefaultShards(t *testing.T) {
	n := newTable(t, Config{MaxFlows: 1}).Shards()
	require.GreaterOrEqual(t, n, 2*runtime.GOMAXPROCS(0))
	require.Less(t, n, 4*runtime.GOMAXPROCS(0))
	require.Zero(t, n&(n-1))
}

func TestEntryKeepsTheCallersFields(t *testing.T) {
	tab := newTable(t, Config{MaxFlows: 1, Shards: 1})
	k := key(1)
	h := tab.Hash(&k)
	s := tab.Lock(h)
	e := s.Insert(&k, h, 7, &Start{Class: established, Peer: 0xfffffffe, Server: 0xfffd, NATPort: 0xfffc, ISN: 1, Seq: 0xfffffffb})
	require.Equal(t, uint32(7), e.Touched())
	require.Equal(t, [...]uint32{0xfffffffe, 0xfffd, 0xfffc, 1, 0xfffffffb, 0, 0, uint32(established)}, fields(e))
	e.SetSeq(2)
	e.Mark(6)
	e.SetWaits(7)
	s.Unlock()
	with(tab, k, func(s *Shard, e *Entry) {
		require.Equal(t, [...]uint32{0xfffffffe, 0xfffd, 0xfffc, 1, 2, 6, 7, uint32(established)}, fields(e))
		e.Advance(bind(0xfffffffe, 1), 20)
		e.Advance(bind(0xffffffff, 2), 20)
		e.Mark(9)
		e.Unmark(3)
		e.SetWaits(0xffff)
		require.Equal(t, [...]uint32{0xfffffffe, 0xfffd, 0xfffc, 1, 2, 12, 0xffff, uint32(established)}, fields(e))
		e.Advance(e.Binding(), 18)
		s.Move(e, closed, 8)
		require.Equal(t, [...]uint32{0xfffffffe, 0xfffd, 0xfffc, 1, 20, 12, 0xffff, uint32(closed)}, fields(e))
		s.Delete(e)
	})
	require.True(t, insert(tab, key(2), closed, 8), "the slot is free again")
	with(tab, key(2), func(_ *Shard, e *Entry) {
		require.Equal(t, key(2), e.Key)
		require.Equal(t, [...]uint32{7: uint32(closed)}, fields(e), "and clean")
	})
}

func fields(e *Entry) [8]uint32 {
	return [...]uint32{
		e.Peer(), uint32(e.Server), uint32(e.NATPort), e.ISN, e.Seq(), uint32(e.Flags()), uint32(e.Waits()), uint32(e.Class()),
	}
}

func TestExpiryIsInOrderOfLastTouch(t *testing.T) {
	var gone []uint16
	tab := newTable(t, Config{
		MaxFlows: 8, Shards: 1,
		Timeouts: [Classes]time.Duration{embryonic: 100 * time.Millisecond},
		OnRemove: func(e *Entry, c Cause) {
			if c == Expired {
				gone = append(gone, e.Key.ClientPort)
			}
		},
	})
	start := ^uint32(0) - 20 // the time wraps during the test
	for n := range 4 {
		insert(tab, key(n), embryonic, start+uint32(n*10))
	}
	insert(tab, key(9), established, start)
	with(tab, key(1), func(s *Shard, e *Entry) { s.Move(e, embryonic, start+50) })

	require.Zero(t, tab.Expire(start+99, 100))
	require.Equal(t, 1, tab.Expire(start+100, 100))
	require.Equal(t, 1, tab.Expire(start+149, 1), "bounded")
	require.Equal(t, 1, tab.Expire(start+149, 100))
	require.Equal(t, 1, tab.Expire(start+150, 100))
	require.Equal(t, []uint16{0, 2, 3, 1}, gone)
	longest := uint32(MaxTimeout.Milliseconds()) // the default
	require.Zero(t, tab.Expire(start+longest-1, 100))
	require.Equal(t, 1, tab.Expire(start+longest, 100))
}

func TestClockThatStepsBack(t *testing.T) {
	tab := newTable(t, Config{MaxFlows: 2, Shards: 1, Timeouts: [Classes]time.Duration{time.Millisecond * 10}})
	insert(tab, key(0), 0, 100)
	insert(tab, key(1), 0, 95) // read before, locked after
	require.Zero(t, tab.Expire(109, 10))
	require.Equal(t, 2, tab.Expire(110, 10))
}

func TestFrequentTouchesCountOnceAGrain(t *testing.T) {
	for _, c := range []struct {
		name           string
		timeout        time.Duration
		touch, expires uint32
	}{
		{"short", time.Second, 2, 1000},
		{"short, later", time.Second, 3, 1003},
		{"just below a second", 255 * time.Second, 995, 255_000},
		{"just below a second, later", 255 * time.Second, 996, 255_996},
		{"long", time.Hour, 999, 3_600_000},
		{"long, later", time.Hour, 1000, 3_601_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			tab := newTable(t, Config{MaxFlows: 1, Timeouts: [Classes]time.Duration{c.timeout}})
			insert(tab, key(1), 0, 0)
			with(tab, key(1), func(s *Shard, e *Entry) { s.Move(e, 0, c.touch) })
			require.Zero(t, tab.Expire(c.expires-1, 1))
			require.Equal(t, 1, tab.Expire(c.expires, 1))
		})
	}
}

func TestKeepPutsExpiryOff(t *testing.T) {
	alive := true
	tab := newTable(t, Config{
		MaxFlows: 1, Shards: 1,
		Timeouts: [Classes]time.Duration{established: 10 * time.Millisecond},
		Keep:     func(e *Entry) (Class, bool) { return e.Class(), alive && e.Key == key(1) },
	})
	insert(tab, key(1), established, 0)
	require.Zero(t, tab.Expire(15, 10))
	require.True(t, has(tab, key(1)))
	alive = false
	require.Zero(t, tab.Expire(24, 10), "touched at 15")
	require.Equal(t, 1, tab.Expire(25, 10))
}

func TestExpireIsFairToShards(t *testing.T) {
	const shards, each, batch = 4, 300, 4
	tab := newTable(t, Config{MaxFlows: 10_000, Shards: shards, Timeouts: [Classes]time.Duration{1}})
	left := make([]int, shards)
	for n := 0; slices.Min(left) < each; n++ {
		k := key(n)
		if i := tab.ShardOf(tab.Hash(&k)); left[i] < each {
			insert(tab, k, 0, 0)
			left[i]++
		}
	}
	for range shards * 10 {
		require.Equal(t, batch, tab.Expire(10, batch))
	}
	clear(left)
	for e := range tab.All() {
		left[tab.ShardOf(tab.Hash(&e.Key))]++
	}
	require.Equal(t, []int{260, 260, 260, 260}, left)
	require.Equal(t, shards*260, tab.Expire(10, 1<<30))
}

func TestEvictionOrder(t *testing.T) {
	var evicted []uint16
	tab := newTable(t, Config{
		MaxFlows: 6, Shards: 1,
		Evict: []Class{closed, embryonic},
		OnRemove: func(e *Entry, c Cause) {
			if c == Evicted {
				evicted = append(evicted, e.Key.ClientPort)
			}
		},
	})
	for n, class := range []Class{established, embryonic, embryonic, closed, closed, established} {
		require.True(t, insert(tab, key(n), class, uint32(n)))
	}
	with(tab, key(3), func(s *Shard, e *Entry) { s.Move(e, closed, 9000) })
	for n := 10; n < 14; n++ {
		require.True(t, insert(tab, key(n), established, uint32(n*1000)))
	}
	require.Equal(t, []uint16{4, 3, 1, 2}, evicted)
	require.False(t, insert(tab, key(20), established, 20_000), "established entries never give way")
	require.Equal(t, Stats{Inserted: 10, Evicted: 4, Full: 1}, tab.Stats())
	require.Equal(t, 6, tab.Len())
}

// find does what callers do who have touched.
func find(s *Shard, k *Key, h uint64, guess uint32) *Entry {
	if e := s.Guessed(k, guess); e != nil {
		return e
	}
	return s.Lookup(k, h)
}

func TestFillsUpWholly(t *testing.T) {
	for _, size := range []int{1, 3, 64, 1000, 20_000} {
		for _, shards := range []int{1, 4, 64} {
			tab := newTable(t, Config{MaxFlows: size, Shards: shards})
			for n := range size {
				insert(tab, key(n), 0, 0)
			}
			require.Equal(t, size, tab.Len(), "%d shards", shards)
			require.False(t, insert(tab, key(size), 0, 0))
			found := 0
			for n := range size {
				if has(tab, key(n)) {
					found++
				}
			}
			require.Equal(t, size, found, "%d shards", shards)
		}
	}
}

// TestEqualHashes fills a bucket and the list behind it, and takes entries out of all
// places of both.
func TestEqualHashes(t *testing.T) {
	const h, flows = 42<<32 | 42, 2*bucketLinks + 5
	tab := newTable(t, Config{MaxFlows: flows, Shards: 1})
	s := tab.Lock(h)
	defer s.Unlock()
	var keys [flows]Key
	there := map[int]bool{}
	check := func() {
		for i := range keys {
			e := s.Lookup(&keys[i], h)
			require.Equal(t, there[i], e != nil, "%d", i)
			if e != nil {
				require.Equal(t, uint32(i), e.Peer())
			}
		}
	}
	insert := func(i int) {
		keys[i] = key(i)
		s.Insert(&keys[i], h, 0, &Start{Peer: uint32(i)})
		there[i] = true
		check()
	}
	for i := range keys {
		insert(i)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		for _, i := range rng.Perm(flows)[:rng.IntN(flows)] {
			s.Delete(s.Lookup(&keys[i], h))
			there[i] = false
			check()
		}
		for i := range keys {
			if !there[i] {
				insert(i)
			}
		}
	}
}

func TestAllSeesAll(t *testing.T) {
	tab := newTable(t, Config{MaxFlows: 2000, Shards: 1})
	for n := range 2000 {
		seen := 0
		if n < 100 || n > 1000 && n < 1050 || n == 1999 { // around the ends of chunks
			for range tab.All() {
				seen++
			}
			require.Equal(t, n, seen)
		}
		insert(tab, key(n), 0, 0)
	}
}

func TestAllMayChangeTheTable(t *testing.T) {
	const flows = 1000
	tab := newTable(t, Config{MaxFlows: flows, Shards: 4})
	for n := range flows {
		insert(tab, key(n), 0, 0)
	}
	seen := map[Key]int{}
	for e := range tab.All() {
		seen[e.Key]++
		with(tab, e.Key, func(s *Shard, e *Entry) { s.Delete(e) })
	}
	require.Len(t, seen, flows)
	require.Equal(t, 1, slices.Max(slices.Collect(maps.Values(seen))))
	require.Zero(t, tab.Len())
	for range tab.All() {
		require.Fail(t, "nothing is left")
	}
}

func TestAllStops(t *testing.T) {
	tab := newTable(t, Config{MaxFlows: 100})
	for n := range 100 {
		insert(tab, key(n), 0, 0)
	}
	n := 0
	for range tab.All() {
		if n++; n == 3 {
			break
		}
	}
	require.Equal(t, 3, n)
}

func TestClose(t *testing.T) {
	flushed := 0
	tab, err := New(Config{MaxFlows: 100, OnRemove: func(_ *Entry, c Cause) {
		require.Equal(t, "flushed", c.String())
		flushed++
	}})
	require.NoError(t, err)
	for n := range 50 {
		insert(tab, key(n), Class(n%Classes), 0)
	}
	require.NoError(t, tab.Close())
	require.Equal(t, 50, flushed)
	require.Zero(t, tab.Len())
	require.False(t, has(tab, key(1)), "a closed table is empty")
	require.False(t, insert(tab, key(1), 0, 0), "and full")
	require.NoError(t, tab.Close(), "closing again does nothing")
}

func TestHashIsSecret(t *testing.T) {
	k := key(1)
	a, b := newTable(t, Config{MaxFlows: 1}), newTable(t, Config{MaxFlows: 1})
	require.Equal(t, a.Hash(&k), a.Hash(&k))
	require.NotEqual(t, a.Hash(&k), b.Hash(&k))
}

func TestHashCoversTheWholeKey(t *testing.T) {
	tab := newTable(t, Config{MaxFlows: 1})
	seen := map[uint64]bool{}
	for _, k := range []Key{
		{}, {Client: [2]uint64{1, 0}}, {Client: [2]uint64{0, 1}},
		{ClientPort: 1}, {Port: 1}, {Service: 1}, {Addr: 1},
	} {
		seen[tab.Hash(&k)] = true
	}
	require.Len(t, seen, 7)
}

func TestNoAllocation(t *testing.T) {
	tab := newTable(t, Config{MaxFlows: 100, Timeouts: [Classes]time.Duration{time.Second}, Evict: []Class{0}})
	k, now := key(1), uint32(0)
	var guess [1]uint32
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		now += 2000
		h := tab.Hash(&k)
		tab.Touch([]uint64{h}, guess[:])
		s := tab.Lock(h)
		e := find(s, &k, h, guess[0])
		if e == nil {
			e = s.Insert(&k, h, now, &Start{})
		}
		s.Move(e, 1, now)
		s.Move(e, 0, now)
		s.Unlock()
		tab.Expire(now+1000, 10)
	}))
}

// TestConcurrentUse lets goroutines quarrel over few keys in a table that is
// mostly full, and then counts. The race detector watches.
func TestConcurrentUse(t *testing.T) {
	const goroutines, rounds, keys, size = 8, 5000, 300, 200
	var mu sync.Mutex
	removed := 0
	tab := newTable(t, Config{
		MaxFlows: size, Shards: 4,
		Timeouts: [Classes]time.Duration{50 * time.Millisecond, 100 * time.Millisecond},
		Evict:    []Class{0},
		OnRemove: func(*Entry, Cause) { mu.Lock(); removed++; mu.Unlock() },
	})
	var overfull atomic.Int32
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			var guess [1]uint32
			for i := range rounds {
				now := uint32(i)
				k := key((i*7919 + g*104729) % keys)
				h := tab.Hash(&k)
				tab.Touch([]uint64{h}, guess[:])
				s := tab.Lock(h)
				switch e := find(s, &k, h, guess[0]); {
				case e == nil:
					s.Insert(&k, h, now, &Start{Class: Class(i & 1)})
				case i%5 == 0:
					s.Delete(e)
				default:
					e.SetSeq(e.Seq() + 1)
					s.Move(e, Class(i&1), now)
				}
				s.Unlock()
				switch {
				case i%64 == g:
					tab.Expire(now, 8)
				case i%1024 == g:
					n := 0
					for range tab.All() {
						n++
					}
					_ = tab.Stats()
					_ = tab.Count(0)
					if n > keys || tab.Len() > size {
						overfull.Add(1)
					}
				}
			}
		})
	}
	wg.Wait()
	require.Zero(t, overfull.Load(), "times that there were more entries than keys or room")
	st := tab.Stats()
	require.Equal(t, tab.Len(), tab.Count(0)+tab.Count(1))
	require.Equal(t, uint64(removed), st.Expired+st.Evicted+st.Deleted)
	require.Equal(t, uint64(tab.Len()), st.Inserted-uint64(removed))
	require.Positive(t, st.Full+st.Evicted, "the table was full at times")
}

// What is read of an entry without the lock is the key's, whatever others do to it. The
// race detector watches.
func TestReadWithoutTheLock(t *testing.T) {
	const keys, size, changes = 40, 16, 20_000
	tab := newTable(t, Config{MaxFlows: size, Shards: 2, Evict: []Class{established}})
	of := func(k *Key) (peer, seq uint32) { return uint32(k.ClientPort) * 7919, uint32(k.ClientPort) << 20 }
	var writing, reading sync.WaitGroup
	var done atomic.Bool
	var wrong atomic.Int64
	for g := range 2 {
		writing.Go(func() {
			for i := range changes {
				k := key((i*7919 + g*104729) % keys)
				h := tab.Hash(&k)
				s := tab.Lock(h)
				if e := s.Lookup(&k, h); e != nil && i%3 == 0 {
					s.Delete(e)
				} else if e == nil {
					peer, seq := of(&k)
					s.Insert(&k, h, uint32(i), &Start{Class: established, Peer: peer, Seq: seq})
				}
				s.Unlock()
			}
		})
		reading.Go(func() {
			for mine := 0; mine == 0 || !done.Load(); {
				k := key(rand.IntN(keys))
				e := tab.Entry(uint32(rand.IntN(len(tab.entries)))) // as bad a guess as there may be
				status, bound := e.Status(), e.Binding()
				if status.Class() != established || !e.Holds(&k, status, bound) {
					continue
				}
				mine++
				if peer, first := of(&k); bound.Peer() != peer || bound.Seq()>>20 != first>>20 {
					wrong.Add(1)
				}
				e.Advance(bound, 1)
			}
		})
	}
	writing.Wait()
	done.Store(true)
	reading.Wait()
	require.Zero(t, wrong.Load())
	for e := range tab.All() {
		peer, seq := of(&e.Key)
		require.Equal(t, peer, e.Peer())
		require.Equal(t, seq>>20, e.Seq()>>20)
	}
}

// Whatever is asked for is there, and nothing changes.
func TestPrefetch(t *testing.T) {
	var lines [5][64]byte
	for i := range lines {
		lines[i] = [64]byte{byte(i)}
	}
	was := lines
	for n := range 6 {
		prefetch(unsafe.Pointer(&lines), []uint32{4, 0, 1, 3, 2}[:n])
	}
	require.Equal(t, was, lines)
}

func TestSetTimeout(t *testing.T) {
	tab := newTable(t, Config{MaxFlows: 2, Shards: 1, Timeouts: [Classes]time.Duration{embryonic: time.Second}})
	insert(tab, key(1), embryonic, 0)
	tab.SetTimeout(embryonic, time.Minute)
	require.Zero(t, tab.Expire(59_999, 10))
	tab.SetTimeout(embryonic, 30*time.Second)
	insert(tab, key(2), embryonic, 59_000)
	require.Equal(t, 1, tab.Expire(59_999, 10))
	tab.SetTimeout(embryonic, 0)
	require.Zero(t, tab.Expire(59_000+uint32(MaxTimeout.Milliseconds())-1, 10))
}
