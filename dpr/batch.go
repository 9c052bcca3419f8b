package dpr

import (
	"time"

	"github.com/carom-dpr/carom/internal/flowtable"
	"github.com/carom-dpr/carom/internal/header"
)

// maxBatch is how many packets are looked up together: enough to overlap the cache
// misses of a large table, few enough to stay in the first-level cache.
const maxBatch = 64

// A batch is the working state of one Process.
type batch struct {
	engine *Engine
	view   *view
	now    time.Duration
	millis uint32
	count  [numCounters]uint32
	stats  *counters // that count goes to
	last   dialled
	jobs   [maxBatch]job
	hdrs   [maxBatch]header.Packet // of the jobs, as are the keys
	keys   [maxBatch]flowtable.Key
	// The work: jobs that have a key, their hashes, the guesses of the table, and
	// the next one of the same shard, plus 1.
	work    [maxBatch]uint8
	hashes  [maxBatch]uint64
	guesses [maxBatch]uint32
	next    [maxBatch]uint8
	lanes   []lane   // by shard of the flow table
	busy    []uint16 // the shards whose lanes are not empty
}

// A job is a packet between its passes. It fills little more than a cache line.
type job struct {
	key       *flowtable.Key
	hash      uint64
	service   *service // nil: the verdict is there already
	hdr       *header.Packet
	seq       uint32 // of a predicted packet
	payload   uint16 // of a predicted packet, in bytes
	predicted bool   // hdr is not filled in, or not yet
	parsed    bool
	answers   bool // the packet is the server's
	way       way  // of a translated flow
}

// A lane queues the work of one shard: the numbers of its first and last, plus 1.
type lane struct{ first, last uint8 }

func (e *Engine) newBatch() any {
	b := &batch{
		engine: e,
		stats:  &e.stats[e.made.Add(1)%uint32(len(e.stats))].counters,
		lanes:  make([]lane, e.table.Shards()),
		busy:   make([]uint16, 0, maxBatch),
	}
	for i := range b.jobs {
		b.jobs[i].hdr, b.jobs[i].key = &b.hdrs[i], &b.keys[i]
	}
	return b
}

// run takes a batch in passes, each of which does one thing for all packets: parse,
// classify, hash, touch, decide. Touching overlaps the cache misses of a large table,
// which would otherwise follow one another. Packets that go as predicted take no lock;
// of the others, deciding takes one lock for all of a shard. And what one pass stores in
// parts, as the parser does, the next can load whole: right after the stores, the
// processor would wait until the cache has them.
func (b *batch) run(pkts []Packet) {
	if b.predict(pkts) < len(pkts) {
		b.parseRest(pkts)
	}
	b.engine.table.Hashes(b.keys[:len(pkts)], b.hashes[:])
	n := 0
	for i := range pkts {
		if j := &b.jobs[i]; j.service != nil {
			b.work[n], b.hashes[n] = uint8(i), b.hashes[i]
			n++
		}
	}
	b.engine.table.Touch(b.hashes[:n], b.guesses[:])
	if b.expectAll(pkts, n) < len(pkts) {
		b.decideAll(pkts)
		b.countRest(pkts)
	}
}

// expectAll handles the work that goes as predicted, returns how much that is, and queues
// the rest. What shares six bits of its hash with something queued is queued as well, or
// it might overtake packets of its own flow.
func (b *batch) expectAll(pkts []Packet, n int) (went int) {
	queued := uint64(0)
	for k := range n {
		i, h := b.work[k], b.hashes[k]
		j := &b.jobs[i]
		if j.predicted && queued>>(h&63)&1 == 0 && b.expected(&pkts[i], j, b.engine.table.Entry(b.guesses[k])) {
			went++
			continue
		}
		queued |= 1 << (h & 63)
		j.hash = h
		b.queue(k)
	}
	return went
}

// parseRest parses and classifies the packets that were not predicted.
func (b *batch) parseRest(pkts []Packet) {
	for i := range pkts {
		if j := &b.jobs[i]; !j.predicted {
			b.parse(&pkts[i], j)
		}
	}
	for i := range pkts {
		if j := &b.jobs[i]; !j.predicted && j.parsed {
			b.classify(&pkts[i], j)
		}
	}
}

// countRest counts the packets that did not go as predicted.
func (b *batch) countRest(pkts []Packet) {
	for i := range pkts {
		j := &b.jobs[i]
		if j.predicted {
			continue
		}
		if j.service != nil && j.hdr.Fragment {
			b.firstFragment(&pkts[i], b.fragmentKey(j), j.way)
		}
		b.count[pkts[i].Verdict]++
	}
}

// queue puts a piece of the work into the lane of its shard.
func (b *batch) queue(k int) {
	shard := b.engine.table.ShardOf(b.hashes[k])
	l := &b.lanes[shard]
	if l.first == 0 {
		l.first = uint8(k + 1)
		b.busy = append(b.busy, uint16(shard))
	} else {
		b.next[l.last-1] = uint8(k + 1)
	}
	b.next[k], l.last = 0, uint8(k+1)
}

// decideAll empties all lanes.
func (b *batch) decideAll(pkts []Packet) {
	for _, n := range b.busy {
		l := &b.lanes[n]
		shard := b.engine.table.Lock(b.hashes[l.first-1])
		for k := l.first; k != 0; k = b.next[k-1] {
			i := b.work[k-1]
			j := &b.jobs[i]
			entry := shard.Guessed(j.key, b.guesses[k-1])
			if entry == nil {
				entry = shard.Lookup(j.key, j.hash)
			}
			b.decide(&pkts[i], j, shard, entry)
		}
		shard.Unlock()
		*l = lane{}
	}
	b.busy = b.busy[:0]
}

func (e *Engine) start(now time.Time) *batch {
	b := e.jobs.Get().(*batch)
	b.view, b.now, b.millis = e.view.Load(), e.since(now), e.millis(now)
	b.last = nowhere
	return b
}

func (e *Engine) finish(b *batch) {
	b.flush()
	b.view = nil // a batch that waits for its next use must not keep an old view
	e.jobs.Put(b)
}
