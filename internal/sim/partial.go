package sim

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/carom-dpr/carom/lb"
	"github.com/carom-dpr/carom/loadinfo"
)

// partial is the view of choosers that keep the last reports of the few hosts that
// they know, in a snapshot that is updated in place. It is what remains of a board
// where there are a hundred thousand: silence makes hosts stale, but none is ever
// removed, and none needs to be heard for a while before it counts.
type partial struct {
	*simulation
	audience
}

// never is when a host was heard that was not.
const never = -1

// silence is after how many periods without a report a host is stale, as on a board.
const silence = 3

func newPartial(s *simulation) *partial {
	v := &partial{s, newAudience(s)}
	for i := range s.choosers {
		v.open(&s.choosers[i])
	}
	for i := range s.hosts {
		s.hosts[i].board = s.newBoard(int32(i), loadinfo.BoardConfig{})
	}
	return v
}

// open makes a chooser's snapshot, with nobody heard.
func (v *partial) open(c *chooser) {
	members := slices.Clone(c.sight.peers)
	own := &c.sight.own
	*own = lb.Snapshot{Self: -1}
	if c.home != none {
		own.Self, _ = slices.BinarySearch(members, c.home)
		members = slices.Insert(members, own.Self, c.home)
	}
	own.Hosts = make([]lb.Host, len(members))
	c.sight.counts, c.sight.heard = make([]atomic.Int32, len(members)), make([]time.Duration, len(members))
	for i, n := range members {
		h := &v.hosts[n]
		own.Hosts[i] = lb.Host{ID: h.id, Live: &c.sight.counts[i], Flags: lb.Unhealthy}
		if c.sight.heard[i] = never; n == c.home {
			own.Hosts[i] = lb.Host{ID: h.id, Weight: uint16(v.sc.weight(int(n))), Live: &h.conns, Flags: lb.Local}
		}
	}
	own.Members = lb.HashMembers(own.Hosts)
	c.snapshot, c.picker = own, nil
}

// place is where a host is in a chooser's snapshot.
func (v *partial) place(c *chooser, host int32) int {
	at, _ := slices.BinarySearch(c.sight.peers, host)
	if c.home != none && host > c.home {
		at++
	}
	return at
}

func (v *partial) moved(n int32, to state) {
	h := &v.hosts[n]
	if to != draining {
		h.board = v.newBoard(n, loadinfo.BoardConfig{})
	}
	if v.sc.Routers > 0 {
		return
	}
	c := &v.choosers[n]
	if to != draining {
		v.open(c)
		return
	}
	c.sight.own.Hosts[c.sight.own.Self].Flags |= lb.Draining
	c.sight.news = true
}

func (v *partial) receive(hearer int32, r *loadinfo.Report) {
	c := &v.choosers[hearer]
	if v.deaf(c, r) {
		return
	}
	at, said := v.place(c, number(r.ID)), &r.Services[0]
	h := &c.sight.own.Hosts[at]
	h.Weight, h.Conns, h.LiveThen, h.Load = said.Weight, said.Conns, h.Live.Load(), r.Resources
	h.InFlight, h.Latency, h.Since = said.InFlight, said.Latency, said.Since
	h.Flags = 0
	if r.State == loadinfo.Draining {
		h.Flags = lb.Draining
	}
	c.sight.heard[at], c.sight.news = v.now, true
}

func (v *partial) pick(c *chooser, f lb.Flow) (int32, bool) {
	own := &c.sight
	if c.picker == nil || own.news && v.now-own.taken >= lifetimes(v.sc.Rebuild) {
		v.judge(c)
		own.own.Taken = origin + v.now
		c.picker = c.policy.Build(&own.own)
		own.news, own.taken = false, v.now
	}
	return v.choose(c, f)
}

// judge notes how old reports are, and who has fallen silent.
func (v *partial) judge(c *chooser) {
	for i, heard := range c.sight.heard {
		if heard == never {
			continue
		}
		h := &c.sight.own.Hosts[i]
		h.Age = v.now - heard
		if h.Age >= silence*v.period() {
			h.Flags |= lb.Stale
		}
	}
}

func (v *partial) change(c *chooser, host int32, by int32) {
	c.sight.counts[v.place(c, host)].Add(by)
}
