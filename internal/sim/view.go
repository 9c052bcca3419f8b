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
	// Of a view with boards:
	board  *loadinfo.Board
	news   bool
	taken  time.Duration
	peers  []int32 // whom it hears, in order; nil: all
	counts []atomic.Int32

	// Of a shared view:
	built   uint64
	own     lb.Snapshot
	changes map[int32]correction
}

func (s *simulation) newView() view {
	switch {
	case s.sc.Period == 0:
		return newExact(s)
	case s.sc.View == viewShared:
		return newShared(s)
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

// boards is the view of hosts that each have a board, as in a real cluster.
type boards struct {
	*simulation
	hear [][]int32 // by host: the choosers that hear it; nil: all
	all  []int32
}

func newBoards(s *simulation) *boards {
	v := &boards{simulation: s}
	for i := range s.choosers {
		c := &s.choosers[i]
		v.all = append(v.all, c.number)
		if s.sc.Known > 0 {
			v.meet(c)
		}
	}
	for i := range s.hosts {
		v.moved(int32(i), s.hosts[i].state)
	}
	if s.sc.Routers > 0 {
		for i := range s.choosers {
			c := &s.choosers[i]
			v.open(c, loadinfo.NewBoard(v.config(c)))
		}
	}
	return v
}

// meet draws the hosts that a chooser hears.
func (v *boards) meet(c *chooser) {
	if v.hear == nil {
		v.hear = make([][]int32, len(v.hosts))
	}
	c.sight.peers = distinct(v.random.network, v.sc.Known, len(v.hosts), c.home)
	for _, p := range c.sight.peers {
		v.hear[p] = append(v.hear[p], c.number)
	}
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

func (v *boards) config(c *chooser) loadinfo.BoardConfig {
	return loadinfo.BoardConfig{
		Period: v.period(), MaxHosts: len(v.hosts),
		Live: func(host, _ string) *atomic.Int32 { return v.count(c, number(host)) },
	}
}

// count is a chooser's counter of the connections that it has at a host.
func (v *boards) count(c *chooser, host int32) *atomic.Int32 {
	if c.sight.peers == nil {
		return &c.sight.counts[host]
	}
	at, _ := slices.BinarySearch(c.sight.peers, host)
	return &c.sight.counts[at]
}

// open gives a chooser an empty board.
func (v *boards) open(c *chooser, b *loadinfo.Board) {
	n := len(c.sight.peers)
	if c.sight.peers == nil {
		n = len(v.hosts)
	}
	c.sight.board, c.sight.counts, c.sight.news = b, make([]atomic.Int32, n), true
	b.Snapshot(serviceName, clock(v.now)) // from now on it asks for the counters
}

func (v *boards) moved(n int32, to state) {
	h := &v.hosts[n]
	if v.sc.Routers > 0 {
		if to != draining {
			h.board = v.newBoard(n, loadinfo.BoardConfig{})
		}
		return
	}
	c := &v.choosers[n]
	if to != draining {
		h.board = v.newBoard(n, v.config(c))
		v.open(c, h.board)
	}
	c.sight.news = true
}

func (v *boards) pick(c *chooser, f lb.Flow) (int32, bool) {
	own := &c.sight
	if c.picker == nil || own.news && v.now-own.taken >= lifetimes(v.sc.Rebuild) {
		c.snapshot = own.board.Snapshot(serviceName, clock(v.now))
		c.snapshot.Taken = origin + v.now
		c.picker = c.policy.Build(c.snapshot)
		own.news, own.taken = false, v.now
	}
	return v.choose(c, f)
}

func (v *boards) change(c *chooser, host int32, by int32) { v.count(c, host).Add(by) }

func (v *boards) hearers(host int32) ([]int32, bool) {
	if v.hear == nil {
		return v.all, true
	}
	return v.hear[host], false
}

func (v *boards) receive(hearer int32, r *loadinfo.Report) {
	c := &v.choosers[hearer]
	if c.home != none && (v.hosts[c.home].state == gone || v.hosts[c.home].id == r.ID) {
		return
	}
	if c.sight.board.Receive(*r, clock(v.now)) == nil {
		c.sight.news = true
	}
}
