package gossip

import (
	"container/heap"
	"encoding/binary"
	"sync"
	"time"

	"github.com/carom-dpr/carom/loadinfo"
)

// table holds the newest report of each host, this one among them, to be sent on.
// Its heap has the report on top that has been sent the fewest times, and of those
// the youngest.
type table struct {
	mu    sync.Mutex
	hosts map[string]*entry
	heard map[string]*entry // by the report, those that others sent
	heap  entries
	bytes int // of all reports
}

// entry is one report, as it came.
type entry struct {
	id   string
	boot uint64
	msg  string    // encoded, without a tag of a key
	made time.Time // by its sender, on this host's clock
	keep time.Duration
	end  bool // it says that the host drains
	own  bool
	sent int // copies; see lastWord
	at   int // in the heap
}

// lastWord is how many copies more than of others go of a report that says that its
// host drains, and it goes before others: it may be the last one, so that none after
// it mends a miss. Of 4 copies to hosts at random one in 55 hosts hears nothing, of 12
// one in 160,000.
const lastWord = 8

// keepPeriods is how many of its sender's periods a report is sent on: twice as
// long as boards take for the sender to be dead.
const keepPeriods = 20

func newTable() *table {
	return &table{hosts: map[string]*entry{}, heard: map[string]*entry{}}
}

// put takes a report that is newer than the one that the table has, own if it is this
// host's.
func (t *table) put(r *loadinfo.Report, msg []byte, made time.Time, own bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.hosts[r.ID]
	if e == nil {
		e = &entry{}
		t.hosts[r.ID] = e
		heap.Push(&t.heap, e)
	} else {
		t.unsay(e)
	}
	*e = entry{
		id: r.ID, boot: r.Boot, msg: string(msg), made: made,
		keep: keepPeriods * max(r.Period, loadinfo.DefaultPeriod),
		end:  r.State == loadinfo.Draining, own: own, at: e.at,
	}
	if e.end {
		e.sent = -lastWord
	}
	if !own {
		t.heard[e.msg] = e
	}
	t.bytes += len(msg)
	heap.Fix(&t.heap, e.at)
}

// has reports whether another host's last report is this one.
func (t *table) has(report []byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.heard[string(report)] != nil
}

// drained reports whether the host's last word in that life was that it drains.
func (t *table) drained(id string, boot uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.hosts[id]
	return e != nil && e.boot == boot && e.end
}

func (t *table) drop(id string) {
	if e := t.hosts[id]; e != nil {
		heap.Remove(&t.heap, e.at)
		t.forget(e)
	}
}

// forget takes out an entry that is not in the heap.
func (t *table) forget(e *entry) {
	delete(t.hosts, e.id)
	t.unsay(e)
}

// unsay takes out what an entry says.
func (t *table) unsay(e *entry) {
	if t.heard[e.msg] == e {
		delete(t.heard, e.msg)
	}
	t.bytes -= len(e.msg)
}

// size returns the number of hosts and the mean length of a report, in bytes.
func (t *table) size() (hosts, length int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(t.hosts)
	return n, t.bytes / max(n, 1)
}

// take returns messages to send, with overhead bytes around each no more than
// room bytes, none of a report that has been sent limit times.
func (t *table) take(now time.Time, overhead, room, limit int) (msgs [][]byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var passed []*entry // taken off the heap, to go back
	left := room
	for misses := 0; misses < maxMisses && len(t.heap) > 0 && t.heap[0].sent < limit; {
		e := heap.Pop(&t.heap).(*entry)
		if now.Sub(e.made) > e.keep {
			t.forget(e)
			continue
		}
		passed = append(passed, e)
		switch need := overhead + maxAge + len(e.msg); {
		case need <= left:
			left -= need
			e.sent++
			msgs = append(msgs, e.encode(now, nil))
		case need <= room:
			misses++ // a smaller one may fit
		} // else it waits until there is less news of members, and is in nobody's way
	}
	for _, e := range passed {
		heap.Push(&t.heap, e)
	}
	return msgs
}

// maxMisses bounds the search for one that fits what room is left.
const maxMisses = 4

// maxAge is the longest age of a report on its way, in bytes: in milliseconds, as a
// varint.
const maxAge = binary.MaxVarintLen32

func (e *entry) encode(now time.Time, b []byte) []byte {
	age := min(max(now.Sub(e.made), 0), tooOld)
	return append(binary.AppendUvarint(b, uint64(age/time.Millisecond)), e.msg...)
}

// all appends everything that there is, each message behind its length, and forgets
// what is too old.
func (t *table) all(now time.Time, b []byte) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, e := range t.hosts {
		if now.Sub(e.made) > e.keep {
			t.drop(id)
			continue
		}
		msg := e.encode(now, nil)
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(msg))), msg...)
	}
	return b
}

// entries is a container/heap.
type entries []*entry

func (h entries) Len() int { return len(h) }

func (h entries) Less(i, j int) bool {
	a, b := h[i], h[j]
	if a.sent != b.sent {
		return a.sent < b.sent
	}
	return a.made.After(b.made)
}

func (h entries) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

func (h *entries) Push(x any) {
	e := x.(*entry)
	e.at = len(*h)
	*h = append(*h, e)
}

func (h *entries) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return e
}
