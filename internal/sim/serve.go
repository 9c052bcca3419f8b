package sim

import "time"

// enter brings a connection to its host.
func (s *simulation) enter(i int32) {
	c := &s.conns.slab[i]
	h := &s.hosts[c.server]
	switch n := h.conns.Load(); {
	case h.state == gone:
		s.count(&s.tally.lost, 1)
		s.leave(i)
		return
	case s.sc.Limit > 0 && int(n) >= s.sc.Limit:
		s.count(&s.tally.refused, 1)
		s.leave(i)
		return
	}
	h.conns.Add(1)
	s.inSystem(+1)
	c.serverLife = h.life
	if h.meter != nil {
		c.request = h.meter.Begin(clock(s.now))
	}
	if s.sc.Slots > 0 && int(h.served) >= s.sc.Slots {
		h.line(&s.conns, i)
		return
	}
	s.serve(h, i)
}

// serve begins to serve a connection.
func (s *simulation) serve(h *host, i int32) {
	h.serving(+1, s.now)
	work := s.conns.slab[i].work
	if !s.sc.Sharing {
		s.events.push(event{s.now + time.Duration(float64(work)/h.speed), finish, i})
		return
	}
	h.share.run(s.now, h.speed)
	h.share.push(end{h.share.done + work.Seconds(), i})
	s.events.push(event{h.share.next(h.speed), share, s.conns.slab[i].server})
}

// finish ends a connection, and begins to serve the one that waits longest.
func (s *simulation) finish(i int32) {
	c := &s.conns.slab[i]
	h := &s.hosts[c.server]
	if c.serverLife != h.life {
		s.leave(i) // its host died
		return
	}
	h.serving(-1, s.now)
	h.conns.Add(-1)
	s.inSystem(-1)
	if c.request != nil {
		c.request.End(clock(s.now))
	}
	s.tally.done(s.now, s.now-c.arrived)
	s.leave(i)
	if next := h.first; next != none {
		h.first = s.conns.slab[next].next
		s.serve(h, next)
	}
}

// finishShare ends those connections of a host that have had all their work.
func (s *simulation) finishShare(n int32) {
	h := &s.hosts[n]
	if s.now != h.share.due {
		return // another one came or went since
	}
	h.share.run(s.now, h.speed)
	for len(h.share.ends) > 0 && h.share.ends[0].done <= h.share.done {
		s.finish(h.share.pop())
	}
	if len(h.share.ends) > 0 {
		s.events.push(event{h.share.next(h.speed), share, n})
	}
}

// leave forgets a connection, which its chooser may see.
func (s *simulation) leave(i int32) {
	c := &s.conns.slab[i]
	if s.sc.Correction == "live" && c.server != s.choosers[c.chooser].home && c.chooserLife == s.life(c.chooser) {
		if s.sc.Unseen == 0 || s.random.network.Float64() >= s.sc.Unseen {
			s.view.change(&s.choosers[c.chooser], c.server, -1)
		}
	}
	s.conns.drop(i)
}

// life is which of its lives a chooser has; routers do not die.
func (s *simulation) life(chooser int32) uint32 {
	if home := s.choosers[chooser].home; home != none {
		return s.hosts[home].life
	}
	return 0
}

// die takes a host away with all its connections. Those that are being served are
// forgotten when their time comes: their events cannot be taken back.
func (s *simulation) die(h *host) {
	n := h.conns.Swap(0)
	s.count(&s.tally.lost, uint64(n))
	s.inSystem(-n)
	h.serving(-h.served, s.now)
	h.state, h.life = gone, h.life+1
	for i := h.first; i != none; {
		next := s.conns.slab[i].next
		s.leave(i)
		i = next
	}
	h.first = none
	for len(h.share.ends) > 0 {
		s.leave(h.share.pop())
	}
	h.share = sharing{}
}
