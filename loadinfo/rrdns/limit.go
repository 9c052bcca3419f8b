package rrdns

import (
	"hash/maphash"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// limiter bounds the answers to each client network, in memory that does not grow:
// networks share cells by a secret hash. A cell holds when its next answer would be
// due if they came evenly (the generic cell rate algorithm, ITU-T I.371).
type limiter struct {
	seed   maphash.Seed
	origin time.Time
	each   time.Duration // time for one answer
	burst  time.Duration // how far ahead of its time an answer may be
	cells  [4096]atomic.Int64
	parity atomic.Uint32
}

func newLimiter(perSecond int) *limiter {
	each := time.Second / time.Duration(perSecond)
	return &limiter{seed: maphash.MakeSeed(), origin: time.Now(), each: each, burst: 2 * time.Second}
}

// allow counts an answer to a client and reports whether it is within the rate.
func (l *limiter) allow(client netip.Addr, now time.Time) bool {
	bits := 24
	if client.Is6() {
		bits = 56
	}
	network, err := client.Prefix(bits)
	if err != nil { // no address, no limit: there is none to send to
		return true
	}
	cell := &l.cells[maphash.Comparable(l.seed, network)%uint64(len(l.cells))]
	at := int64(now.Sub(l.origin))
	for {
		due := cell.Load()
		if due-at > int64(l.burst) {
			return false
		}
		if cell.CompareAndSwap(due, max(due, at)+int64(l.each)) {
			return true
		}
	}
}

// slips reports of every second call that it gets a short answer after all.
func (l *limiter) slips() bool { return l.parity.Add(1)%2 == 0 }

// limitConns returns a listener that has at most n connections open.
func limitConns(l net.Listener, n int) net.Listener {
	return &limited{Listener: l, room: make(chan struct{}, n), closed: make(chan struct{})}
}

type limited struct {
	net.Listener
	room   chan struct{}
	closed chan struct{}
	once   sync.Once
}

func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.room <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.room
		return nil, err
	}
	return &counted{Conn: conn, done: sync.OnceFunc(func() { <-l.room })}, nil
}

func (l *limited) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type counted struct {
	net.Conn
	done func()
}

func (c *counted) Close() error {
	c.done()
	return c.Conn.Close()
}
