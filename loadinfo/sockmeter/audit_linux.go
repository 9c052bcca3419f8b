package sockmeter

// Audit compares the counters with a dump of the sockets, corrects those that
// are off and returns the sum of the corrections, without sign. In mode Poll
// there is nothing to compare with: the dump is the count, and the result 0.
//
// Connections come and go while the kernel makes the dump, so it agrees with a
// counter only up to the number of changes meanwhile. Audit corrects what lies
// outside that, in two dumps running, and no more than they agree upon; so an
// audit of a right counter changes nothing, however busy the host is.
func (m *Meter) Audit() (corrected int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return 0, errClosed
	}
	return m.audit()
}

func (m *Meter) audit() (corrected int, err error) {
	if m.kernel == nil {
		return 0, m.poll()
	}
	first, err := m.compare()
	if err != nil || !first.off() {
		return 0, err
	}
	second, err := m.compare()
	if err != nil {
		return 0, err
	}
	for _, s := range m.services {
		slot := m.slots[s.Name]
		n := first[slot].and(second[slot]).nearest()
		if n == 0 {
			continue
		}
		m.cells[slot].live.Add(n)
		corrected += int(max(n, -n))
		m.log.Info("sockmeter: counter corrected", "service", s.Name, "by", n)
	}
	return corrected, nil
}

// poll stores the sockets' number in the counters.
func (m *Meter) poll() error {
	truth, err := m.established()
	if err != nil {
		return err
	}
	for slot := 1; slot <= len(m.slots); slot++ {
		m.cells[slot].live.Store(truth[slot])
	}
	return nil
}

// established counts the established sockets of each slot by a dump.
func (m *Meter) established() (*[maxServices + 1]int32, error) {
	var n [maxServices + 1]int32
	err := m.diag.dump(stateEstablished, 0, func(s socket) { n[m.ports[s.port]]++ })
	return &n, err
}

// A span is an interval of what a counter may lack, both ends included.
type span struct{ lo, hi int32 }

// and returns what both spans allow. If that is nothing, lo is above hi.
func (s span) and(o span) span { return span{max(s.lo, o.lo), min(s.hi, o.hi)} }

// nearest returns the number of the span that is nearest to 0, and 0 if it is
// empty.
func (s span) nearest() int32 {
	switch {
	case s.lo > s.hi:
		return 0
	case s.lo > 0:
		return s.lo
	case s.hi < 0:
		return s.hi
	}
	return 0
}

// spans holds one span for each slot.
type spans [maxServices + 1]span

// off reports whether any counter is certainly wrong.
func (s *spans) off() bool {
	for _, x := range s {
		if x.nearest() != 0 {
			return true
		}
	}
	return false
}

// compare returns what each counter may lack by one dump.
func (m *Meter) compare() (*spans, error) {
	var out spans
	var before [maxServices + 1]uint32
	for slot := range before {
		before[slot] = m.cells[slot].events.Load()
	}
	truth, err := m.established()
	if err != nil {
		return nil, err
	}
	for _, s := range m.services {
		slot := m.slots[s.Name]
		c := &m.cells[slot]
		lack := truth[slot] - c.live.Load()
		// Loaded after live, so that no change in live is missing here.
		changes := int32(c.events.Load() - before[slot])
		out[slot] = span{lack - changes, lack + changes}
	}
	return &out, nil
}
