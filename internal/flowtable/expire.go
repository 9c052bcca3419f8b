package flowtable

import "iter"

// expireBatch is how many entries Expire removes under one lock: a packet that
// waits for it waits tens of microseconds at worst.
const expireBatch = 64

// Expire removes entries whose idle timeout has passed, and returns how many. It
// looks at no more than max of them and so takes a bounded time; the next call
// goes on with the next shard. Each shard gives up a small batch in turn.
//
// It must be called often enough to remove what is due within days, or old
// entries look new when the time wraps.
func (t *Table) Expire(now uint32, max int) (removed int) {
	for done := 0; done < len(t.shards) && max > 0; {
		s := &t.shards[int(t.cursor.Add(1))&(len(t.shards)-1)]
		quota := min(max, expireBatch)
		seen, gone := s.expire(now, quota)
		removed += gone
		max -= seen
		if done++; seen == quota {
			done = 0 // there may be more
		}
	}
	return removed
}

// expire looks at no more than max entries whose timeout has passed. It returns
// how many there were and how many of them it removed.
func (s *Shard) expire(now uint32, max int) (seen, removed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for class := range Class(Classes) {
		for seen < max {
			e := s.oldest(class, now)
			if e == nil {
				break
			}
			seen++
			if s.kept(e, now) {
				continue
			}
			s.remove(e, Expired)
			removed++
		}
	}
	s.table.live.Add(-int64(removed))
	return seen, removed
}

// kept asks whether an entry is to stay, and touches it if so.
func (s *Shard) kept(e *Entry, now uint32) bool {
	if s.table.keep == nil {
		return false
	}
	class, stays := s.table.keep(e)
	if stays {
		s.Move(e, class, now)
	}
	return stays
}

// oldest returns the oldest entry of a class if its timeout has passed, else nil.
func (s *Shard) oldest(class Class, now uint32) *Entry {
	i := s.entries[s.ring(class)].succ
	e := &s.entries[i]
	if i == s.ring(class) || int32(now-e.Touched()) < s.table.timeouts[class].Load() {
		return nil
	}
	return e
}

// Len returns the number of entries. While others insert it may, for an instant,
// include one that turns out not to fit.
func (t *Table) Len() int { return int(min(t.live.Load(), t.max)) }

// Count returns the number of entries of a class. It locks one shard after the
// other.
func (t *Table) Count(class Class) int {
	n := 0
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		n += s.count[class]
		s.mu.Unlock()
	}
	return n
}

// Stats counts what has happened to a table since it was made.
type Stats struct {
	Inserted uint64 // entries that were added
	Expired  uint64 // entries removed since they were idle for too long
	Evicted  uint64 // entries removed since the table was full
	Deleted  uint64 // entries that the caller deleted
	Full     uint64 // entries not added since the table was full and none could give way
}

// Stats returns the counters. It locks one shard after the other.
func (t *Table) Stats() Stats {
	var st Stats
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		st.Inserted += s.inserted
		st.Expired += s.removed[Expired]
		st.Evicted += s.removed[Evicted]
		st.Deleted += s.removed[Deleted]
		st.Full += s.full
		s.mu.Unlock()
	}
	return st
}

// All iterates over copies of all entries, in no particular order, and locks
// nothing while the loop's body runs. The table may be used at the same time, by
// the body too: an entry that is there from beginning to end is seen once, one
// that comes or goes meanwhile may be seen or not.
func (t *Table) All() iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		var chunk [32]Entry // 2 KiB of stack
		for i := range t.shards {
			for pos, n := 0, 0; pos >= 0; {
				n, pos = t.shards[i].copy(chunk[:], pos)
				for _, e := range chunk[:n] {
					if !yield(e) {
						return
					}
				}
			}
		}
	}
}

// copy fills chunk with the entries from the shard's position pos on. It returns how
// many they are and the position to go on from, which is negative at the end.
func (s *Shard) copy(chunk []Entry, pos int) (n, next int) {
	const maxScan = 1024 // slots, so that a nearly empty slab is not walked under one lock
	s.mu.Lock()
	defer s.mu.Unlock()
	used := s.entries[s.base:s.used]
	end := min(pos+maxScan, len(used))
	for ; pos < end && n < len(chunk); pos++ {
		if e := &used[pos]; e.Class() != unused {
			chunk[n] = e.copy()
			n++
		}
	}
	if pos >= len(used) {
		return n, -1
	}
	return n, pos
}
