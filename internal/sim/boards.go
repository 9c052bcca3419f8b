package sim

import (
	"slices"
	"sync/atomic"

	"github.com/carom-dpr/carom/lb"
	"github.com/carom-dpr/carom/loadinfo"
)

// boards is the view of hosts that each have a board, as in a real cluster.
type boards struct {
	*simulation
	audience
}

func newBoards(s *simulation) *boards {
	v := &boards{s, newAudience(s)}
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

func (v *boards) receive(hearer int32, r *loadinfo.Report) {
	c := &v.choosers[hearer]
	if !v.deaf(c, r) && c.sight.board.Receive(*r, clock(v.now)) == nil {
		c.sight.news = true
	}
}
