package flowtable

import "unsafe"

// A Shard is a locked part of a table. Its methods may be called only between
// Table.Lock and Unlock, with hashes of this shard.
type Shard struct {
	state
	_ [cacheLine - unsafe.Sizeof(state{})%cacheLine]byte
}

// init gives an unused shard its part of the entries, from base to end, which are zero.
func (s *Shard) init(t *Table, base, end int) {
	s.table, s.entries, s.buckets, s.mask = t, t.entries, t.buckets, t.mask
	s.base, s.end = uint32(base), uint32(end)
	s.used, s.free = s.base+Classes, 0
	for c := range uint32(Classes) {
		i := s.base + c
		s.entries[i].prev, s.entries[i].succ = i, i
		s.entries[i].touch(unused, 0)
	}
}

// flush removes all entries.
func (s *Shard) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range Class(Classes) {
		for end := s.ring(c); s.entries[end].succ != end; s.table.live.Add(-1) {
			s.remove(&s.entries[s.entries[end].succ], Flushed)
		}
	}
}

// ring returns the end of the ring of a class.
func (s *Shard) ring(c Class) uint32 { return s.base + uint32(c) }

// Unlock unlocks the shard. The entries it returned may not be used any more.
func (s *Shard) Unlock() { s.mu.Unlock() }

// Lookup returns the entry of a key whose hash is h, or nil if there is none.
func (s *Shard) Lookup(k *Key, h uint64) *Entry {
	b := &s.buckets[bucketOf(s.buckets, hashOf(h))]
	want := tag(hashOf(h), s.mask)
	for _, link := range b {
		if x := link ^ want; x-1 < s.mask {
			if e := &s.entries[x]; k.equal(e.Key.words()) {
				return e
			}
		}
	}
	for i := s.rest(b); i != 0; i = s.entries[i].next {
		if e := &s.entries[i]; k.equal(e.Key.words()) {
			return e
		}
	}
	return nil
}

// Guessed returns the entry that Touch has guessed for the key's hash, nil if it is not
// the key's, as may be even if the key has one.
func (s *Shard) Guessed(k *Key, guess uint32) *Entry {
	if e := &s.entries[guess]; k.equal(e.Key.words()) && e.Class() != unused {
		return e
	}
	return nil
}

// Insert adds an entry for a key that is not in the table and whose hash is h. What
// Start does not say is zero.
//
// If the table is full, an entry of this shard gives way, as Config.Evict says.
// If there is none, Insert counts that and returns nil.
func (s *Shard) Insert(k *Key, h uint64, now uint32, start *Start) *Entry {
	if !s.reserve() && !s.evict() {
		s.full++
		return nil
	}
	i := s.take()
	e := &s.entries[i]
	e.fill(k, hashOf(h), now, start)
	s.place(i, e, home(h))
	s.link(i, e, start.Class, now)
	s.inserted++
	return e
}

// reserve claims room for one more entry in the table and in the shard.
func (s *Shard) reserve() bool {
	if s.free == 0 && s.used == s.end {
		return false
	}
	if s.table.live.Add(1) <= s.table.max {
		return true
	}
	s.table.live.Add(-1)
	return false
}

// evict removes the entry that is the first to give way, and keeps its room
// claimed.
func (s *Shard) evict() bool {
	for _, c := range s.table.evict {
		if i := s.entries[s.ring(c)].succ; i != s.ring(c) {
			s.remove(&s.entries[i], Evicted)
			return true
		}
	}
	return false
}

// take returns an entry that is not in use: the one that was freed last, which is
// most likely still in the cache.
func (s *Shard) take() uint32 {
	i := s.free
	if i == 0 {
		i = s.used
		s.used++
		return i
	}
	s.free = s.entries[i].next
	return i
}

// Move marks an entry as touched now, and puts it into a class, which may be the
// one it is in.
//
// A touch that follows another of the same class within 1/256 of its timeout, one
// second at most, does nothing, and the entry may expire by so much earlier.
// Moving it would drag its neighbours' cache lines along; a busy flow, whose
// packets come close together, is spared most of that.
func (s *Shard) Move(e *Entry, class Class, now uint32) {
	if status := e.Status(); status.Class() != class || !s.table.Fresh(status, now) {
		s.move(e, class, now)
	}
}

func (s *Shard) move(e *Entry, class Class, now uint32) { s.link(s.unlink(e), e, class, now) }

// Delete removes an entry.
func (s *Shard) Delete(e *Entry) {
	s.remove(e, Deleted)
	s.table.live.Add(-1)
}

// remove frees an entry; the room it had stays claimed.
func (s *Shard) remove(e *Entry, cause Cause) {
	if s.table.onRemove != nil {
		s.table.onRemove(e, cause)
	}
	i := s.unlink(e)
	s.displace(i, e)
	e.touch(unused, 0)
	e.next, s.free = s.free, i
	s.removed[cause]++
}

// link appends entry i to the ring of a class.
//
// Goroutines read their clocks before they wait for the lock, so now may lie
// before the time of the last entry. Taking that time instead keeps the ring
// sorted.
func (s *Shard) link(i uint32, e *Entry, class Class, now uint32) {
	end := &s.entries[s.ring(class)]
	last := &s.entries[end.prev]
	if last != end && int32(now-last.Touched()) < 0 {
		now = last.Touched()
	}
	e.prev, e.succ = end.prev, s.ring(class)
	last.succ, end.prev = i, i
	if e.Class() != class || e.Touched() != now { // else it is new
		e.touch(class, now)
	}
	s.count[class]++
}

// unlink takes an entry out of the ring of its class and returns its index.
func (s *Shard) unlink(e *Entry) uint32 {
	before, after := &s.entries[e.prev], &s.entries[e.succ]
	i := before.succ
	before.succ, after.prev = e.succ, e.prev
	s.count[e.Class()]--
	return i
}
