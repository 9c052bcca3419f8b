package sim

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/carom-dpr/carom/lb"
	"github.com/carom-dpr/carom/loadinfo"
)

// A view is what choosers know of hosts.
type view interface {
	// pick returns the host for a connection; ok is false if it is refused.
	pick(c *chooser, f lb.Flow) (server int32, ok bool)
	// change notes that the connections which a chooser has at a host became one
	// more or less, as far as it knows.
	change(c *chooser, host int32, by int32)
	// hearers returns who hears a host's reports, in the view's own numbers, and
	// whether a broadcast reaches them.
	hearers(host int32) (list []int32, broadcast bool)
	// receive lets one of the hearers hear a report, which it may keep.
	receive(hearer int32, r *loadinfo.Report)
	// moved notes that a host came, drains or is gone.
	moved(host int32, to state)
}

// A sight is what a view keeps for a chooser. Each kind of view uses its own part.
type sight struct {
	peers []int32     // whom it hears, in order; nil: all
	own   lb.Snapshot // of its own, where there is one
	news  bool        // something that is not in the snapshot

	// Of a view with boards:
	board  *loadinfo.Board
	taken  time.Duration
	counts []atomic.Int32 // what it has where, by peer

	// Of a partial view:
	heard []time.Duration // by peer, or never

	// Of an exact view: the version of what its picker was built from.
	built uint64

	// Of a shared view:
	changes map[int32]correction
}

func (s *simulation) newView() view {
	switch {
	case s.sc.Period == 0:
		return newExact(s)
	case s.sc.View == viewShared:
		return newShared(s)
	case s.sc.View == viewPartial:
		return newPartial(s)
	}
	return newBoards(s)
}

// choose asks a chooser's picker. Without a host that may serve, a host serves
// itself and a router refuses.
func (s *simulation) choose(c *chooser, f lb.Flow) (server int32, ok bool) {
	choice := c.picker.Pick(f, origin+s.now)
	switch {
	case choice.Do == lb.Send:
		return number(c.snapshot.Hosts[choice.Host].ID), true
	case choice.Do == lb.Refuse || c.home == none:
		return 0, false
	}
	return c.home, true
}

// An audience is who hears whom.
type audience struct {
	hear [][]int32 // by host: the choosers that hear it; nil: all
	all  []int32
}

// newAudience draws the hosts that each chooser hears.
func newAudience(s *simulation) audience {
	var a audience
	if s.sc.Known > 0 {
		a.hear = make([][]int32, len(s.hosts))
	}
	for i := range s.choosers {
		c := &s.choosers[i]
		a.all = append(a.all, c.number)
		if s.sc.Known == 0 {
			continue
		}
		c.sight.peers = distinct(s.random.network, s.sc.Known, len(s.hosts), c.home)
		for _, p := range c.sight.peers {
			a.hear[p] = append(a.hear[p], c.number)
		}
	}
	return a
}

// distinct draws up to k numbers below n, in order, without one of them.
func distinct(r *rand.Rand, k, n int, without int32) []int32 {
	drawn := make([]int32, 0, k)
	for room := n - 1; len(drawn) < min(k, room); {
		x := int32(r.IntN(n))
		if at, found := slices.BinarySearch(drawn, x); !found && x != without {
			drawn = slices.Insert(drawn, at, x)
		}
	}
	return drawn
}

func (a *audience) hearers(host int32) ([]int32, bool) {
	if a.hear == nil {
		return a.all, true
	}
	return a.hear[host], false
}

// deaf reports whether a chooser does not hear a report: its host is gone, or says it.
func (s *simulation) deaf(c *chooser, r *loadinfo.Report) bool {
	return c.home != none && (s.hosts[c.home].state == gone || s.hosts[c.home].id == r.ID)
}
