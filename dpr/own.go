package dpr

import (
	"fmt"
	"sync/atomic"
	"time"
)

// Sockets are a service's counts of this host's own sockets, as the kernel or a
// wrapped listener keeps them.
type Sockets struct {
	// Live is the number of established connections.
	Live *atomic.Int32
	// Opened is the number of connections that became established so far; it may
	// wrap. Nil if nobody counts them.
	Opened *atomic.Uint32
}

// SetSockets tells the engine where the service's own connections are counted, so
// that Serving is right for a TCP service.
func (e *Engine) SetSockets(service string, s Sockets) error {
	for _, have := range e.view.Load().services {
		if have != nil && have.Name == service {
			have.own.sockets.Store(&s)
			return nil
		}
	}
	return fmt.Errorf("dpr: there is no service %q", service)
}

// Serving returns the number of open connections of the service that this host
// serves; it is what lb.Host.Live of this host should point to. The engine keeps
// it up to date whenever it is about to choose, and in Tick. It is nil if there is
// no such service.
//
// For a TCP service it is the count of SetSockets and, if that tells openings, the
// connections that were chosen for this host and are about to be established: in a
// burst of SYNs each must see those before it, or the whole burst stays here. For
// a UDP service, and for TCP without SetSockets, it is the number of the engine's
// entries.
func (e *Engine) Serving(service string) *atomic.Int32 {
	for _, s := range e.view.Load().services {
		if s != nil && s.Name == service {
			return &s.own.serving
		}
	}
	return nil
}

// ownCount is what this host serves of a service.
type ownCount struct {
	serving atomic.Int32
	sockets atomic.Pointer[Sockets]
	// The least difference between connections chosen for this host and those that
	// opened, in this window of time and in the one before: so many never will.
	window      atomic.Int64
	floor, last atomic.Int32
}

// handshakeTime is the length of a window: far above any handshake's time, so that
// in one window at least some moment sees few connections under way, and short
// enough that a flood of SYNs without handshakes is soon forgotten.
const handshakeTime = time.Second

// refreshServing brings the service's serving count up to date.
func (s *service) refreshServing(now time.Duration) {
	sockets := s.own.sockets.Load()
	switch {
	case sockets == nil:
		s.own.serving.Store(s.here.open.Load())
	case sockets.Opened == nil:
		s.own.serving.Store(sockets.Live.Load())
	default:
		chosen := uint32(s.count.served.Load() + s.count.in.Load())
		under := s.own.underWay(int32(chosen-sockets.Opened.Load()), now)
		s.own.serving.Store(sockets.Live.Load() + under)
	}
}

// underWay returns how many connections are chosen but not established, of gap
// that have not been so far. Goroutines that come here at once may each begin a new
// window; the error is that of a few connections for a window.
func (o *ownCount) underWay(gap int32, now time.Duration) int32 {
	if begin := o.window.Load(); int64(now)-begin > int64(handshakeTime) {
		o.last.Store(o.floor.Load())
		o.floor.Store(gap)
		o.window.Store(int64(now))
	}
	if gap-o.floor.Load() < 0 {
		o.floor.Store(gap)
	}
	return max(gap-o.floor.Load(), gap-o.last.Load(), 0)
}
