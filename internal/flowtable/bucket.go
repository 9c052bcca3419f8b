package flowtable

import "sync/atomic"

// A bucket is a cache line of links to the entries of one value of the hash. A link is
// the entry's index, in the bits of the table's mask, and above them a tag: as many more
// bits of its hash as have room, so that a search seldom loads an entry in vain. 0 is no
// link. An entry is in its quarter of the bucket, which its hash chooses, if there is
// room, else in another. Entries for which the whole bucket is full are a list that
// begins at the entry of the last link. So where there is a list, no link is 0.
type bucket [bucketLinks]uint32

const (
	bucketLinks  = 16
	quarterLinks = bucketLinks / 4
	lastLink     = bucketLinks - 1
	bucketSize   = bucketLinks * 4
)

// hashOf returns what entries and buckets know of a hash: the high half. Its high bits
// choose the shard and the bucket, which is one of the shard's, its low bits are the tag.
func hashOf(h uint64) uint32 { return uint32(h >> 32) }

func bucketOf(buckets []bucket, hash uint32) uint32 {
	return uint32(uint64(hash) * uint64(len(buckets)) >> 32)
}

// tag returns the tag of a hash, where links have it.
func tag(hash, mask uint32) uint32 { return hash * (mask + 1) }

// home returns the first link of the quarter of its bucket that a hash chooses.
func home(h uint64) int { return int(h % 4 * quarterLinks) }

// guess writes for each hash, whose bucket guesses says, the entry that most likely has it,
// 0 for none. It needs no lock. The search of the quarter is written out: a loop costs as
// much as what is in it.
func (t *Table) guess(hashes []uint64, guesses []uint32) {
	buckets, mask := t.buckets, t.mask
	for i, h := range hashes {
		b, want := &buckets[guesses[i]], tag(hashOf(h), mask)
		q := (*[quarterLinks]uint32)(b[home(h):])
		entry := either(0, &q[0], want, mask)
		entry = either(entry, &q[1], want, mask)
		entry = either(entry, &q[2], want, mask)
		entry = either(entry, &q[3], want, mask)
		if entry == 0 {
			entry = b.search(want, mask)
		}
		guesses[i] = entry
	}
}

// search returns the entry of a link with the tag, 0 if there is none.
func (b *bucket) search(want, mask uint32) (entry uint32) {
	for i := range b {
		entry = either(entry, &b[i], want, mask)
	}
	return entry
}

// either returns the entry of the link if it has the tag, else the other. It does so
// without a branch, which nobody could predict.
func either(other uint32, link *uint32, want, mask uint32) uint32 {
	if x := atomic.LoadUint32(link) ^ want; x-1 < mask {
		return x
	}
	return other
}

// rest returns the first entry of the list of those for which the bucket is full.
func (s *Shard) rest(b *bucket) uint32 {
	if b[lastLink] == 0 {
		return 0
	}
	return s.entries[b[lastLink]&s.mask].next
}

// place links entry i into its bucket, preferably into the quarter that begins at at.
func (s *Shard) place(i uint32, e *Entry, at int) {
	b := &s.buckets[bucketOf(s.buckets, e.hash)]
	e.next = 0
	for n := range bucketLinks {
		if link := &b[n^at]; *link == 0 {
			atomic.StoreUint32(link, tag(e.hash, s.mask)|i)
			return
		}
	}
	last := &s.entries[b[lastLink]&s.mask]
	e.next, last.next = last.next, i
}

// displace takes entry i out of its bucket.
func (s *Shard) displace(i uint32, e *Entry) {
	b := &s.buckets[bucketOf(s.buckets, e.hash)]
	for n, link := range b {
		if link&s.mask == i {
			s.refill(b, n)
			return
		}
	}
	at := &s.entries[b[lastLink]&s.mask]
	for at.next != i {
		at = &s.entries[at.next]
	}
	at.next = e.next
}

// refill gives the place of a link to the first entry of the list, if there is one. If
// the link is the last, the list goes on from there.
func (s *Shard) refill(b *bucket, n int) {
	first := s.rest(b)
	if first == 0 {
		atomic.StoreUint32(&b[n], 0)
		return
	}
	e := &s.entries[first]
	if n != lastLink {
		s.entries[b[lastLink]&s.mask].next, e.next = e.next, 0
	}
	atomic.StoreUint32(&b[n], tag(e.hash, s.mask)|first)
}
