package flowtable

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stretchr/testify/require"
)

// A record is the oracle's idea of an entry.
type record struct {
	key     Key
	class   Class
	touched uint64 // on a clock that does not wrap
	turn    int    // breaks ties: a later touch has a higher turn
	peer    uint32
}

// An event is a removal.
type event struct {
	key   Key
	cause Cause
}

// oracle is the table as one would explain it: a map of records, sorted whenever
// order matters. It stands for a table of one shard.
type oracle struct {
	cfg     Config
	records map[Key]*record
	turn    int
	stats   Stats
	events  []event
}

func (o *oracle) touch(r *record, class Class, now uint64) {
	o.turn++
	for _, other := range o.records {
		if other != r && other.class == class {
			now = max(now, other.touched) // a time that steps back
		}
	}
	r.class, r.touched, r.turn = class, now, o.turn
}

// oldest returns the records of a class, the one touched first in front.
func (o *oracle) oldest(class Class) []*record {
	var rs []*record
	for _, r := range o.records {
		if r.class == class {
			rs = append(rs, r)
		}
	}
	slices.SortFunc(rs, func(a, b *record) int { return a.turn - b.turn })
	return rs
}

func (o *oracle) remove(r *record, cause Cause) {
	delete(o.records, r.key)
	o.events = append(o.events, event{r.key, cause})
	switch cause {
	case Expired:
		o.stats.Expired++
	case Evicted:
		o.stats.Evicted++
	case Deleted:
		o.stats.Deleted++
	}
}

func (o *oracle) move(r *record, class Class, now uint64) {
	grain := uint64(min(o.cfg.Timeouts[class]/256, time.Second).Milliseconds())
	if r.class == class && now < r.touched+grain {
		return
	}
	o.touch(r, class, now)
}

func (o *oracle) insert(k Key, class Class, now uint64) *record {
	if len(o.records) == o.cfg.MaxFlows && !o.evict() {
		o.stats.Full++
		return nil
	}
	r := &record{key: k}
	o.touch(r, class, now)
	o.records[k] = r
	o.stats.Inserted++
	return r
}

func (o *oracle) evict() bool {
	for _, class := range o.cfg.Evict {
		if rs := o.oldest(class); len(rs) > 0 {
			o.remove(rs[0], Evicted)
			return true
		}
	}
	return false
}

func (o *oracle) expire(now uint64, limit int) (removed int) {
	for class := range Class(Classes) {
		timeout := uint64(o.cfg.Timeouts[class].Milliseconds())
		for _, r := range o.oldest(class) {
			if limit == 0 || now < r.touched+timeout {
				break
			}
			limit--
			if next, stays := o.cfg.Keep(&Entry{Key: r.key, status: Status(class)}); stays {
				o.touch(r, next, now)
				continue
			}
			o.remove(r, Expired)
			removed++
		}
	}
	return removed
}

// machine runs a table and an oracle side by side.
type machine struct {
	table  *Table
	oracle oracle
	hashes uint64 // the bits that hashes differ in
	origin uint32 // the table's time at the oracle's time 0
	now    uint64
	events []event
}

func newMachine(t *rapid.T) *machine {
	classes := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) Class {
		return Class(rapid.IntRange(0, Classes-1).Draw(t, "class"))
	}), 0, Classes, rapid.ID[Class])
	cfg := Config{
		MaxFlows: rapid.IntRange(1, 40).Draw(t, "size"),
		Shards:   1,
		Evict:    classes.Draw(t, "evict"),
		// A flow on port 1 of every service lives elsewhere, too. One on port 2 is
		// given a longer time.
		Keep: func(e *Entry) (Class, bool) {
			if e.Key.ClientPort == 2 {
				return Classes - 1, e.Class() != Classes-1
			}
			return e.Class(), e.Key.ClientPort == 1
		},
	}
	timeout := rapid.SampledFrom([]time.Duration{1, 10, 1000, 7_200_000, MaxTimeout / time.Millisecond})
	for c := range cfg.Timeouts {
		cfg.Timeouts[c] = timeout.Draw(t, "timeout") * time.Millisecond
	}
	m := &machine{
		oracle: oracle{cfg: cfg, records: map[Key]*record{}},
		// Few bits have many flows share a bucket.
		hashes: rapid.SampledFrom([]uint64{1<<64 - 1, 1, 3<<32 | 3, 0}).Draw(t, "hashes"),
		origin: rapid.SampledFrom([]uint32{0, 1<<31 - 500, 1<<32 - 500}).Draw(t, "origin"),
	}
	cfg.OnRemove = func(e *Entry, c Cause) { m.events = append(m.events, event{e.Key, c}) }
	m.table = newTable(t, cfg)
	return m
}

// clock is the table's time, with 32 bits.
func (m *machine) clock() uint32 { return m.origin + uint32(m.now) }

func drawKey(t *rapid.T) Key {
	k := Key{ClientPort: uint16(rapid.IntRange(0, 15).Draw(t, "port")), Service: uint16(rapid.IntRange(0, 3).Draw(t, "service"))}
	k.Client[1] = uint64(k.Service) // several words differ
	return k
}

func drawClass(t *rapid.T) Class { return Class(rapid.IntRange(0, Classes-1).Draw(t, "class")) }

// packet does what a packet does: look up, then move, insert or delete.
func (m *machine) packet(t *rapid.T) {
	k, class := drawKey(t), drawClass(t)
	// A goroutine may have read the clock a little earlier than the one before.
	now := m.now - min(m.now, uint64(rapid.IntRange(0, 2).Draw(t, "late")))
	h := m.table.Hash(&k) & m.hashes
	var guess [1]uint32
	m.table.Touch([]uint64{h}, guess[:])
	s := m.table.Lock(h)
	defer s.Unlock()
	e, r := find(s, &k, h, guess[0]), m.oracle.records[k]
	require.Equal(t, r != nil, e != nil, "lookup")
	switch {
	case e == nil:
		e, r = s.Insert(&k, h, m.origin+uint32(now), &Start{Class: class, Peer: uint32(m.oracle.turn)}), m.oracle.insert(k, class, now)
		require.Equal(t, r != nil, e != nil, "insert")
		if e != nil {
			r.peer = e.Peer()
		}
	case rapid.IntRange(0, 3).Draw(t, "delete") == 0:
		s.Delete(e)
		m.oracle.remove(r, Deleted)
	default:
		require.Equal(t, r.peer, e.Peer())
		s.Move(e, class, m.origin+uint32(now))
		m.oracle.move(r, class, now)
	}
}

func (m *machine) expire(t *rapid.T) {
	limit := rapid.IntRange(0, 30).Draw(t, "limit")
	require.Equal(t, m.oracle.expire(m.now, limit), m.table.Expire(m.clock(), limit))
}

// wait lets time pass and, as a caller must, has everything expire that is due
// before the time wraps.
func (m *machine) wait(t *rapid.T) {
	m.now += rapid.SampledFrom([]uint64{0, 1, 5, 10, 999, 60_000, 7_200_000, 1 << 30}).Draw(t, "step")
	if m.now-m.oldestTouch() >= 1<<30 {
		require.Equal(t, m.oracle.expire(m.now, 1000), m.table.Expire(m.clock(), 1000))
	}
}

// oldestTouch returns the time when the oldest entry was touched.
func (m *machine) oldestTouch() uint64 {
	first := m.now
	for _, r := range m.oracle.records {
		first = min(first, r.touched)
	}
	return first
}

// check compares all that can be seen from outside.
func (m *machine) check(t *rapid.T) {
	o := &m.oracle
	require.Equal(t, o.events, m.events, "removals, in order")
	require.Equal(t, o.stats, m.table.Stats())
	require.Equal(t, len(o.records), m.table.Len())
	require.LessOrEqual(t, m.table.Len(), o.cfg.MaxFlows)
	for class := range Class(Classes) {
		require.Equal(t, len(o.oldest(class)), m.table.Count(class), "class %d", class)
	}
	n := 0
	for e := range m.table.All() {
		n++
		r := o.records[e.Key]
		require.NotNil(t, r)
		require.Equal(t, record{r.key, r.class, uint64(m.origin + uint32(r.touched)), 0, r.peer},
			record{e.Key, e.Class(), uint64(e.Touched()), 0, e.Peer()})
	}
	require.Equal(t, len(o.records), n)
}

func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine(t)
		t.Repeat(map[string]func(*rapid.T){
			"packet": m.packet,
			"pocket": m.packet, // twice as likely as the others
			"expire": m.expire,
			"wait":   m.wait,
			"":       m.check,
		})
	})
}
