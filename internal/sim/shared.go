package sim

import (
	"sync/atomic"
	"time"

	"github.com/carom-dpr/carom/lb"
	"github.com/carom-dpr/carom/loadinfo"
)

// shared is the view of hosts that look at one board. What a chooser knows better
// than the board, its own count and its own redirects, is put on before it picks
// and taken off again: the hosts of the one snapshot point to counters that hold
// the differences. So choosers cost no more than what they know.
type shared struct {
	*simulation
	board    *loadinfo.Board
	snapshot *lb.Snapshot
	news     bool
	taken    time.Duration
	place    []int32         // of a host in the snapshot, or none
	heard    []time.Duration // by host: when its last report came
	worn     *chooser        // whose knowledge is on
	better   []atomic.Int32  // by host: what that chooser knows better
}

// A correction is by how much a chooser's connections at a host have become more
// since a report.
type correction struct {
	by    int32
	since time.Duration // the report's time
}

// watcher is the only hearer of a shared view.
var watcher = []int32{0}

func newShared(s *simulation) *shared {
	v := &shared{
		simulation: s, news: true, place: make([]int32, s.sc.Hosts),
		heard: make([]time.Duration, s.sc.Hosts), better: make([]atomic.Int32, s.sc.Hosts),
	}
	v.board = loadinfo.NewBoard(loadinfo.BoardConfig{
		Period: s.period(), MaxHosts: s.sc.Hosts,
		Live: func(host, _ string) *atomic.Int32 { return &v.better[number(host)] },
	})
	v.board.Snapshot(serviceName, clock(0)) // from now on it asks for the counters
	for i := range s.choosers {
		s.choosers[i].sight.changes = map[int32]correction{}
	}
	for i := range s.hosts {
		v.moved(int32(i), s.hosts[i].state)
	}
	return v
}

func (v *shared) moved(n int32, to state) {
	if to != draining {
		v.hosts[n].board = v.newBoard(n, loadinfo.BoardConfig{})
	}
	if v.sc.Routers == 0 && to == gone {
		v.wear(nil)
		clear(v.choosers[n].sight.changes)
	}
}

func (v *shared) hearers(int32) ([]int32, bool) { return watcher, true }

func (v *shared) receive(_ int32, r *loadinfo.Report) {
	v.wear(nil) // the board notes the counters with each report: they must be 0
	if v.board.Receive(*r, clock(v.now)) == nil {
		v.news = true
		v.heard[number(r.ID)] = v.now
	}
}

func (v *shared) pick(c *chooser, f lb.Flow) (int32, bool) {
	if v.news && (v.snapshot == nil || v.now-v.taken >= lifetimes(v.sc.Rebuild)) {
		v.look()
	}
	if c.home != none && v.place[c.home] == none {
		return c.home, true // nobody has heard of it, so it is not in the snapshot
	}
	v.wear(c)
	if c.picker == nil {
		c.sight.own = *v.snapshot
		c.sight.own.Self = int(v.placeOf(c.home))
		c.snapshot = &c.sight.own
		c.picker = c.policy.Build(c.snapshot)
	}
	return v.choose(c, f)
}

func (v *shared) placeOf(host int32) int32 {
	if host == none {
		return none
	}
	return v.place[host]
}

// look takes a snapshot. Pickers of the one before go at once: with ten thousand
// hosts those of ten thousand choosers have gigabytes.
func (v *shared) look() {
	v.wear(nil)
	v.snapshot = v.board.Snapshot(serviceName, clock(v.now))
	v.snapshot.Taken = origin + v.now
	v.news, v.taken = false, v.now
	for i := range v.choosers {
		v.choosers[i].picker = nil
	}
	for i := range v.place {
		v.place[i] = none
	}
	for i := range v.snapshot.Hosts {
		v.place[number(v.snapshot.Hosts[i].ID)] = int32(i)
	}
}

// wear puts on what a chooser knows better, nil for nothing.
func (v *shared) wear(c *chooser) {
	if v.worn != c {
		v.undress()
		if v.worn = c; c != nil {
			v.dress(c)
		}
	}
	if c == nil {
		return
	}
	if at := v.placeOf(c.home); at != none { // its own count changes at any time
		v.better[c.home].Store(v.hosts[c.home].conns.Load() - int32(v.snapshot.Hosts[at].Conns))
	}
}

func (v *shared) undress() {
	if v.worn == nil {
		return
	}
	for host := range v.worn.sight.changes {
		v.better[host].Store(0)
	}
	if v.worn.home != none {
		v.better[v.worn.home].Store(0)
	}
}

func (v *shared) dress(c *chooser) {
	for host, x := range c.sight.changes {
		if x.since != v.heard[host] {
			delete(c.sight.changes, host) // a report has it by now
			continue
		}
		v.better[host].Store(x.by)
	}
}

func (v *shared) change(c *chooser, host int32, by int32) {
	x := c.sight.changes[host]
	if x.since != v.heard[host] {
		x = correction{since: v.heard[host]}
	}
	x.by += by
	c.sight.changes[host] = x
	if v.worn == c {
		v.better[host].Store(x.by)
	}
}
