// Package flowtable remembers flows: a hash table over a slab of fixed size, in which
// entries also queue up to expire, on linked lists.
//
// It knows neither packets nor hosts nor clocks. Keys are bytes, what a flow is
// bound to is a number, and the time is an argument: milliseconds of any clock
// of the caller's that does not run backwards. The time may wrap around; it is
// only ever compared by subtraction.
//
// The table is divided into shards, each with a mutex, and no method holds more
// than one of them. An entry is linked from the bucket of its hash, and is on a list,
// the ring of its class. All entries of a class have the same timeout, so a ring in
// which each touched entry moves to the end is always sorted by the time at which its
// entries expire. To expire is to take from the front, and to evict the oldest is the
// same: there is no timer, no heap and no scan.
//
// Memory is fixed when the table is made. A flow costs 64 bytes for its entry and
// 6 for its share of the buckets. On Linux all of it is mapped outside the
// garbage collector's sight and becomes real as it is first used; elsewhere it is
// a pair of slices without pointers, which the collector does not look into.
//
// A caller with a batch of packets hides the latency of memory by working in
// passes: hash all keys, Touch all hashes, and only then look up: without a lock, by
// Entry and Holds, where nothing but a sequence number is to change, else with one Lock
// for all hashes of the same ShardOf.
package flowtable

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// MaxTimeout is the longest timeout a class may have, about 12 days. The time
// wraps after 49.7 days, and of two times the one less than half of that ahead is
// the later; a quarter leaves the caller as much again to be late with Expire.
const MaxTimeout = (1 << 30) * time.Millisecond

// Config describes a table.
type Config struct {
	// MaxFlows is how many flows the table holds. There is no default.
	MaxFlows int
	// Shards is the number of shards, a power of two. More shards mean that fewer
	// goroutines wait for one another. Default: the smallest power of two that is
	// at least twice GOMAXPROCS.
	Shards int
	// Timeouts holds the idle timeout of each class, rounded up to whole
	// milliseconds. Default: MaxTimeout, which is also the limit.
	Timeouts [Classes]time.Duration
	// Evict lists the classes whose entries may give way to a new one when the
	// table is full: first all of the first class, the oldest first, and so on.
	// Default: none, and a full table takes no new flow.
	Evict []Class
	// OnRemove, if not nil, is told of each entry that leaves the table, just
	// before it does. It is called under the shard's lock and must not call back
	// into the table.
	OnRemove func(*Entry, Cause)
	// Keep, if not nil, is asked before an entry expires whether it is to stay, as if
	// just touched, and in which class. It is called under the shard's lock and must
	// not call back into the table.
	Keep func(*Entry) (c Class, stays bool)
}

// A Cause says why an entry left the table.
type Cause uint8

// The causes.
const (
	Expired Cause = iota // it was idle for the timeout of its class
	Evicted              // the table was full, and a new entry took its place
	Deleted              // the caller deleted it
	Flushed              // the table was closed

	causes
)

// String returns the cause's name in lower case.
func (c Cause) String() string {
	if c > Flushed {
		return fmt.Sprintf("cause %d", uint8(c))
	}
	return [...]string{"expired", "evicted", "deleted", "flushed"}[c]
}

// A Table is a table of flows. All its methods may be called by several
// goroutines at once; Close alone must come after all others.
type Table struct {
	hash     hash
	shift    uint // a hash without its lowest bit, shifted right by it, is the index of its shard
	shards   []Shard
	max      int64
	timeouts [Classes]atomic.Int32 // milliseconds
	grains   [Classes]atomic.Int32 // milliseconds between touches that matter
	evict    []Class
	onRemove func(*Entry, Cause)
	keep     func(*Entry) (Class, bool)
	slab     slab
	entries  []Entry
	buckets  []bucket
	mask     uint32 // of the bits of a link that are an index of entries

	_      [cacheLine]byte
	live   atomic.Int64  // entries in all shards, and slots being reserved
	cursor atomic.Uint32 // the shard that Expire visited last
	_      [cacheLine]byte
}

// cacheLine is the distance, in bytes, at which two variables do not disturb each
// other: two lines, since x86 fetches them in pairs.
const cacheLine = 128

// New returns an empty table.
func New(cfg Config) (*Table, error) {
	if cfg.Shards == 0 {
		cfg.Shards = 1 << bits.Len(uint(2*runtime.GOMAXPROCS(0)-1))
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	t := &Table{
		hash:     newHash(),
		shift:    uint(63 - bits.TrailingZeros(uint(cfg.Shards))),
		shards:   make([]Shard, cfg.Shards),
		max:      int64(cfg.MaxFlows),
		evict:    slices.Clone(cfg.Evict),
		onRemove: cfg.OnRemove,
		keep:     cfg.Keep,
	}
	for c, d := range cfg.Timeouts {
		t.SetTimeout(Class(c), d)
	}
	slots, buckets := geometry(cfg.MaxFlows, cfg.Shards)
	var err error
	if t.slab, err = newSlab(slots*cfg.Shards, buckets*cfg.Shards); err != nil {
		return nil, fmt.Errorf("flowtable: no memory for MaxFlows %d, choose fewer: %w", cfg.MaxFlows, err)
	}
	t.divide(t.slab.entries, t.slab.buckets)
	return t, nil
}

// divide gives the shards their parts of the entries. Which buckets are whose, the hash
// says.
func (t *Table) divide(entries []Entry, buckets []bucket) {
	t.entries, t.buckets = entries, buckets
	t.mask = 1<<bits.Len(uint(len(entries)-1)) - 1
	slots := len(entries) / len(t.shards)
	for i := range t.shards {
		t.shards[i].init(t, i*slots, (i+1)*slots)
	}
}

// SetTimeout changes the idle timeout of a class, of the entries that are in it
// too: they stay sorted by the time at which they expire. It is 0 for MaxTimeout,
// or up to that.
func (t *Table) SetTimeout(c Class, d time.Duration) {
	if d == 0 {
		d = MaxTimeout
	}
	millis := int32((d + time.Millisecond - 1) / time.Millisecond)
	t.timeouts[c].Store(millis)
	t.grains[c].Store(min(millis/256, 1000))
}

func (cfg *Config) validate() error {
	if cfg.MaxFlows < 1 || int64(cfg.MaxFlows) > MaxFlows {
		return fmt.Errorf("flowtable: MaxFlows is %d; it must be 1 to %d", cfg.MaxFlows, int64(MaxFlows))
	}
	if cfg.Shards < 1 || cfg.Shards > maxShards || cfg.Shards&(cfg.Shards-1) != 0 {
		return fmt.Errorf("flowtable: Shards is %d; it must be a power of two up to %d", cfg.Shards, maxShards)
	}
	for c, d := range cfg.Timeouts {
		if d < 0 || d > MaxTimeout {
			return fmt.Errorf("flowtable: Timeouts[%d] is %v; it must be 0 to %v", c, d, MaxTimeout)
		}
	}
	for i, c := range cfg.Evict {
		if c >= Classes {
			return fmt.Errorf("flowtable: Evict[%d] is class %d; classes are 0 to %d", i, c, Classes-1)
		}
		if slices.Contains(cfg.Evict[:i], c) {
			return errors.New("flowtable: Evict names a class twice")
		}
	}
	return nil
}

const (
	// MaxFlows is the most that Config.MaxFlows may be. It keeps indexes within 32 bits,
	// with the slack of the shards, and all sizes in bytes within an int.
	MaxFlows = min(1<<31, math.MaxInt/(2*entrySize)) - 1<<16
	// maxShards is far more than there are processors to run into each other.
	maxShards = 1 << 12
)

// geometry returns how many slots and buckets each shard gets.
//
// MaxFlows bounds the flows of all shards together, and a secret hash spreads
// them by chance, so a shard needs room for more than its mean m. The deviation
// is √m; at 8 of them, and 64 slots for when m is small, no shard fills up before
// the table does. The slack is 0.5 % of 10 M flows in 4 shards, and becomes real
// memory only where it is used.
//
// A full shard has eleven flows per bucket of 16 links. By Poisson's law one
// flow in 89 is then in a bucket's list; at four fifths of that one in 530.
func geometry(maxFlows, shards int) (slots, buckets int) {
	m := float64(maxFlows) / float64(shards)
	room := min(maxFlows, int(math.Ceil(m+8*math.Sqrt(m)))+64)
	return Classes + room, max(1, int(math.Ceil(m/11)))
}

// Hash returns the hash of a key: secret, and different in every table.
func (t *Table) Hash(k *Key) uint64 {
	var h [1]uint64
	t.hash.sum((*[1]Key)(unsafe.Pointer(k))[:], h[:])
	return h[0]
}

// Hashes writes the hash of each key into hashes.
func (t *Table) Hashes(keys []Key, hashes []uint64) { t.hash.sum(keys, hashes) }

// Touch lets the cache load, without any lock, what looking up these hashes will read:
// their buckets, and of each the entry that most likely has the hash, which goes into
// guesses, 0 for none. It waits for the buckets only: the first entries come while the
// caller goes on.
func (t *Table) Touch(hashes []uint64, guesses []uint32) {
	if len(hashes) == 0 {
		return
	}
	guesses = guesses[:len(hashes)]
	for i, h := range hashes {
		guesses[i] = bucketOf(t.buckets, hashOf(h))
	}
	prefetch(unsafe.Pointer(&t.buckets[0]), guesses)
	t.guess(hashes, guesses)
	prefetch(unsafe.Pointer(&t.entries[0]), guesses)
}

// Entry returns the entry of a guess of Touch, without any lock.
func (t *Table) Entry(guess uint32) *Entry { return &t.entries[guess] }

// Fresh reports whether to Move an entry of this status within its class would do nothing.
func (t *Table) Fresh(s Status, now uint32) bool {
	return int32(now-s.Touched()) < t.grains[s.Class()].Load()
}

// ShardOf returns the index of the hash's shard, from 0 to Shards-1. A caller who
// groups a batch by it can serve each group under one Lock, of any of its hashes.
func (t *Table) ShardOf(h uint64) int {
	return int(h >> 1 >> (t.shift & 63)) // a processor masks by itself; one shard is a shift by 64
}

// Shards returns the number of shards.
func (t *Table) Shards() int { return len(t.shards) }

// lockTries is how often a lock is tried before the mutex waits in its own way, which is
// for longer at a time than most batches hold it.
const lockTries = 200

// Lock locks the hash's shard, waiting for it if need be, and returns it. Nobody
// may lock a second shard before unlocking the first.
func (t *Table) Lock(h uint64) *Shard {
	s := &t.shards[t.ShardOf(h)]
	for range lockTries {
		if s.mu.TryLock() {
			return s
		}
	}
	s.mu.Lock()
	return s
}

// Close removes all entries, telling OnRemove, and releases the memory. No other
// method may run at the same time. Afterwards the table is empty, and too full
// for anything new.
func (t *Table) Close() error {
	for i := range t.shards {
		t.shards[i].flush()
	}
	t.divide(make([]Entry, Classes*len(t.shards)), make([]bucket, len(t.shards)))
	freed := t.slab
	t.slab = slab{}
	return freed.release()
}

// state is a Shard without the padding.
type state struct {
	mu      sync.Mutex
	table   *Table
	entries []Entry // the table's
	buckets []bucket
	mask    uint32
	base    uint32 // entries[base:end] are the shard's; the first Classes of them are the ends of the rings, never flows
	end     uint32
	used    uint32 // entries[used:end] were never used: their memory is not touched before
	free    uint32 // first of the entries that were used and are not now
	count   [Classes]int
	// counters
	inserted, full uint64
	removed        [causes]uint64
}
