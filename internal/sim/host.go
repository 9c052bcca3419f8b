package sim

import (
	"sync/atomic"
	"time"

	"github.com/carom-dpr/carom/loadinfo"
)

// A conn is a connection between its arrival and its end.
type conn struct {
	arrived time.Duration
	work    time.Duration // the service time that is needed at speed 1
	server  int32
	chooser int32
	next    int32 // the one behind it in a line, or the next free one

	// The lives of the two in which it began: what it means to a later one is nothing.
	serverLife, chooserLife uint32

	request *loadinfo.Request // if the scenario measures requests
}

// none ends a list of connections.
const none = -1

// conns is a slab of connections, so that a run of millions makes no garbage.
type conns struct {
	slab []conn
	free int32
}

func (c *conns) add(x conn) int32 {
	if c.free == none {
		c.slab = append(c.slab, x)
		return int32(len(c.slab) - 1)
	}
	i := c.free
	c.free = c.slab[i].next
	c.slab[i] = x
	return i
}

func (c *conns) drop(i int32) {
	c.slab[i].request = nil
	c.slab[i].next, c.free = c.free, i
}

// state is what a host can do.
type state uint8

const (
	up state = iota
	draining
	gone // it has not come yet, or died
)

// A host is a server, and an entry unless the scenario has routers.
type host struct {
	id     string
	speed  float64
	state  state
	life   uint32 // counts its lives, so that events of a former one are known
	conns  atomic.Int32
	board  *loadinfo.Board // makes its reports; in some views it hears others too
	meter  *loadinfo.Requests
	served int32 // how many connections are being served
	first  int32 // the line of those that wait
	last   int32

	// What it has done since its last report, for its load.
	work     time.Duration // slots times time
	changed  time.Duration
	reported time.Duration

	share sharing
}

// line appends a connection to those that wait.
func (h *host) line(c *conns, i int32) {
	c.slab[i].next = none
	if h.first == none {
		h.first = i
	} else {
		c.slab[h.last].next = i
	}
	h.last = i
}

// serving notes that the number of connections being served changes at now.
func (h *host) serving(change int32, now time.Duration) {
	h.work += time.Duration(h.served) * (now - h.changed)
	h.served, h.changed = h.served+change, now
}

// busy returns the share of slots that was busy since the last report.
func (h *host) busy(slots int, now time.Duration) float64 {
	h.serving(0, now)
	span := max(now-h.reported, 1)
	share := float64(h.work) / float64(span) / float64(slots)
	h.work, h.reported = 0, now
	return share
}

// sharing is a processor that all connections served share alike. Its own clock,
// done, is the work that each of them has had; it runs the slower the more they
// are. So a connection ends when done reaches a value that is known when it begins,
// and the order of ends never changes.
type sharing struct {
	done float64 // seconds of work
	at   time.Duration
	due  time.Duration // when the first one ends; other events are out of date
	ends []end         // a binary heap
}

type end struct {
	done float64
	conn int32
}

// run lets the clock run to now.
func (s *sharing) run(now time.Duration, speed float64) {
	if n := len(s.ends); n > 0 {
		s.done += (now - s.at).Seconds() * speed / float64(n)
	}
	s.at = now
}

func (s *sharing) push(e end) {
	s.ends = append(s.ends, e)
	for i := len(s.ends) - 1; i > 0 && s.ends[(i-1)/2].done > s.ends[i].done; i = (i - 1) / 2 {
		s.ends[i], s.ends[(i-1)/2] = s.ends[(i-1)/2], s.ends[i]
	}
}

func (s *sharing) pop() int32 {
	h := s.ends
	top, n := h[0].conn, len(h)-1
	h[0] = h[n]
	for i := 0; ; {
		c := 2*i + 1
		if c+1 < n && h[c+1].done < h[c].done {
			c++
		}
		if c >= n || h[i].done <= h[c].done {
			break
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
	s.ends = h[:n]
	return top
}

// next returns when the first connection ends if none comes before.
func (s *sharing) next(speed float64) time.Duration {
	left := max(s.ends[0].done-s.done, 0) * float64(len(s.ends)) / speed
	s.due = s.at + time.Duration(left*float64(time.Second)) + 1 // rounded up: then it has ended
	return s.due
}
