//go:build !linux || race

package flowtable

// A slab is the memory of all shards. Its slices hold no pointers, so the
// collector does not look into them. The race detector, too, gets them: it sees
// only memory of Go's own.
type slab struct {
	entries []Entry
	buckets []bucket
}

func newSlab(entries, buckets int) (slab, error) {
	return slab{entries: make([]Entry, entries), buckets: make([]bucket, buckets)}, nil
}

// release leaves the memory to the collector.
func (slab) release() error { return nil }
