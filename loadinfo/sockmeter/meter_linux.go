package sockmeter

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// A cell is the counter of one service, shared with the BPF program (struct
// counter there).
type cell struct {
	// live is the number of established connections.
	live atomic.Int32
	// events counts changes of live. The program counts the event first.
	events atomic.Uint32
	// opened counts connections that were accepted.
	opened atomic.Uint32
	_      [52]byte
}

// A Meter counts the established connections of services in one network
// namespace: that of the thread that called [Open]. Its methods may be called
// from any goroutine.
type Meter struct {
	log    *slog.Logger
	period time.Duration
	netns  uint64 // cookie of the namespace
	kernel *kernel

	// cells and ports are memory of the BPF program, or ordinary memory in mode
	// Poll.
	cells []cell
	ports *[65536]uint16

	mu       sync.Mutex
	closed   bool
	diag     *diag
	services []Service
	slots    map[string]uint16 // of every name there ever was
}

// Open starts counting, in the network namespace of the calling thread. The
// counts are right when it returns. It starts no goroutine: see [Meter.Run].
//
// In mode Exact, and in Auto where it can, it attaches a program to the cgroup,
// beside those of others; the program goes when the meter is closed or the
// process ends.
func Open(c Config) (*Meter, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	m := &Meter{log: c.Logger, period: c.Period, slots: make(map[string]uint16)}
	if m.diag, err = openDiag(); err != nil {
		return nil, err
	}
	if err := m.start(c); err != nil {
		m.abandon()
		return nil, err
	}
	if m.period == 0 {
		m.period = defaultAudit
		if m.kernel == nil {
			m.period = defaultPoll
		}
	}
	return m, nil
}

// start chooses the mode and counts for the first time.
func (m *Meter) start(c Config) (err error) {
	if m.netns, err = m.diag.netns(); err != nil && c.Mode == Exact {
		return err
	}
	if c.Mode != Poll && err == nil {
		m.kernel, err = openKernel(c.Cgroup, m.netns)
	}
	switch {
	case m.kernel != nil:
		m.cells, m.ports = m.kernel.cells, m.kernel.ports
	case c.Mode == Exact:
		return err
	default:
		if c.Mode == Auto {
			m.log.Warn("sockmeter: counts come from polling", "reason", err)
		}
		m.cells, m.ports = make([]cell, maxServices+1), new([65536]uint16)
	}
	return m.SetServices(c.Services)
}

// Mode returns Exact or Poll: how the meter counts.
func (m *Meter) Mode() Mode {
	if m.kernel != nil {
		return Exact
	}
	return Poll
}

// Counter returns the number of established connections of the named service,
// nil if there is no such service. The counter may be read at any time and must
// not be written. It stays valid as long as the process lives: after [Meter.Close]
// it keeps its last value, and a service that is removed and added again has the
// same one.
func (m *Meter) Counter(name string) *atomic.Int32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.services {
		if s.Name == name {
			return &m.cells[m.slots[name]].live
		}
	}
	return nil
}

// Opened returns the number of connections of the service that became established
// since Open; it wraps. Like Counter it is a pointer to where the kernel counts. It
// is nil for an unknown service, and in mode Poll, which sees no connection open.
func (m *Meter) Opened(name string) *atomic.Uint32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.services {
		if s.Name == name && m.Mode() == Exact {
			return &m.cells[m.slots[name]].opened
		}
	}
	return nil
}

// SetServices replaces the services. Counters of services that stay go on; the
// counts of new ones, and of those whose ports changed, are right when it
// returns. In mode Exact it must be called in the meter's network namespace. On
// an error that is the argument's, nothing has changed.
func (m *Meter) SetServices(services []Service) error {
	if err := checkServices(services); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return errClosed
	}
	if err := m.assign(services); err != nil {
		return err
	}
	m.fillPorts()
	if m.kernel != nil {
		if err := m.kernel.adopt(m.netns); err != nil {
			// The audit below brings the counts in line, and later ones do so
			// again as the connections that could not be adopted end.
			m.log.Warn("sockmeter: connections from before are counted by audits", "reason", err)
		}
	}
	_, err := m.audit()
	return err
}

// assign gives every new name a slot.
func (m *Meter) assign(services []Service) error {
	fresh := 0
	for _, s := range services {
		if _, ok := m.slots[s.Name]; !ok {
			fresh++
		}
	}
	if len(m.slots)+fresh > maxServices {
		return errTooMany
	}
	for _, s := range services {
		if _, ok := m.slots[s.Name]; !ok {
			m.slots[s.Name] = uint16(len(m.slots) + 1)
		}
	}
	m.services = append([]Service(nil), services...)
	return nil
}

// fillPorts writes the port table, changing nothing that stays: the kernel reads
// it meanwhile.
func (m *Meter) fillPorts() {
	var want [65536]uint16
	for _, s := range m.services {
		for p := int(s.Port); p <= int(s.last()); p++ {
			want[p] = m.slots[s.Name]
		}
	}
	for p, slot := range want {
		if m.ports[p] != slot {
			m.ports[p] = slot
		}
	}
}

// Listening reports whether a TCP socket of the namespace listens on the port
// and would accept a connection to addr: it is bound to that address or to the
// wildcard of its family; the IPv6 wildcard takes IPv4 too unless the socket is
// restricted to IPv6. With the zero Addr, any listener on the port will do.
//
// A socket bound to an interface counts like any other. A host whose server does
// not listen should report itself unhealthy for the service.
func (m *Meter) Listening(addr netip.Addr, port uint16) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false, errClosed
	}
	found := false
	err := m.diag.dump(stateListen, port, func(s socket) {
		found = found || s.port == port && s.accepts(addr)
	})
	return found, err
}

// Run audits the counters, or polls, once per period until the context is done.
// It returns nil; what goes wrong meanwhile is logged and tried again.
func (m *Meter) Run(ctx context.Context) error {
	tick := time.NewTicker(m.period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if _, err := m.Audit(); err != nil {
				m.log.Warn("sockmeter: audit failed", "error", err)
			}
		}
	}
}

// Close stops counting and detaches the program. It may be called more than
// once. The counters keep their values.
func (m *Meter) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	err := m.diag.close()
	if m.kernel != nil {
		err = m.kernel.close()
	}
	return err
}

// abandon undoes a failed start. No counter was handed out, so their memory goes
// too.
func (m *Meter) abandon() {
	m.Close()
	if m.kernel != nil {
		m.kernel.unmap()
	}
}

var errClosed = fmt.Errorf("sockmeter: %w", os.ErrClosed)
