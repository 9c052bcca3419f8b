package dprtest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carom-dpr/carom/dpr"
)

// Stats counts packets of an endpoint.
type Stats struct {
	Sent     uint64 // handed to Write
	Received uint64 // handed out by Read

	// What became of sent packets that never reached another endpoint's queue:
	Malformed uint64 // no IP packet
	Offload   uint64 // a super-frame, or a checksum left to the device
	NoRoute   uint64 // no endpoint for the address
	TooBig    uint64 // longer than the MTU of either link
	Filtered  uint64 // the network's filter said no
	Lost      uint64 // on either link

	Duplicated uint64 // copies made of sent packets
	QueueFull  uint64 // packets to this endpoint that found its queue full
	Discarded  uint64 // packets to this endpoint that it was closed before it read, or read into too short a buffer
}

// An Endpoint is a host's place in a network. It is a dpr.Device: what is written
// to it goes to the endpoints that own the destination addresses, and Read returns
// what came for its own. Peers play no part: Peer is ignored on Write and zero on
// Read. No packet is ever a super-frame.
type Endpoint struct {
	net  *Network
	link atomic.Pointer[Link]

	send sync.Mutex // guards dice: one packet draws after the other
	dice *rand.Rand

	mu      sync.Mutex
	arrived sync.Cond // there is a packet to read, or the endpoint is closed
	ready   fifo
	coming  []flight // sorted by time of arrival; of two at the same time, the earlier sent first
	timer   *time.Timer
	free    [][]byte // buffers to use again
	stats   Stats
	closed  bool
}

var _ dpr.Device = (*Endpoint)(nil)

// A flight is a packet that has not arrived yet.
type flight struct {
	due time.Time
	pkt []byte
}

// Addrs returns the addresses that the endpoint owns, sorted.
func (e *Endpoint) Addrs() []netip.Addr {
	e.net.mu.RLock()
	defer e.net.mu.RUnlock()
	var addrs []netip.Addr
	for a, owner := range e.net.owners {
		if owner == e {
			addrs = append(addrs, a)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs
}

// Add gives further addresses to the endpoint. If another endpoint owns one of
// them, it returns an error and adds none.
func (e *Endpoint) Add(addrs ...netip.Addr) error {
	e.net.mu.Lock()
	defer e.net.mu.Unlock()
	if e.isClosed() {
		return fmt.Errorf("dprtest: add addresses to an endpoint: %w", os.ErrClosed)
	}
	return e.net.own(e, addrs)
}

// Remove takes addresses from the endpoint; those it does not own are ignored.
// Packets on their way to it still arrive.
func (e *Endpoint) Remove(addrs ...netip.Addr) {
	e.net.mu.Lock()
	defer e.net.mu.Unlock()
	for _, a := range addrs {
		if e.net.owners[a.Unmap()] == e {
			delete(e.net.owners, a.Unmap())
		}
	}
}

// SetLink changes the endpoint's link for packets sent from now on. A Loss of 1
// cuts the cable.
func (e *Endpoint) SetLink(link Link) error {
	link, err := link.withDefaults()
	if err != nil {
		return err
	}
	e.link.Store(&link)
	return nil
}

// Stats returns the endpoint's counters.
func (e *Endpoint) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stats
}

// Write sends packets, copying their bytes, and returns how many went out onto the
// link; see [Stats] for the others. It never blocks. After Close it returns an
// error that matches os.ErrClosed.
func (e *Endpoint) Write(pkts []dpr.Packet) (int, error) {
	e.send.Lock()
	defer e.send.Unlock()
	if e.isClosed() {
		return 0, fmt.Errorf("dprtest: write to an endpoint: %w", os.ErrClosed)
	}
	var out Stats
	sent := 0
	for i := range pkts {
		if e.transmit(&pkts[i], &out) {
			sent++
		}
	}
	out.Sent = uint64(len(pkts))
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stats.add(&out)
	return sent, nil
}

func (e *Endpoint) isClosed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed
}

// add adds the counters of a batch of sent packets.
func (s *Stats) add(out *Stats) {
	s.Sent += out.Sent
	s.Malformed += out.Malformed
	s.Offload += out.Offload
	s.NoRoute += out.NoRoute
	s.TooBig += out.TooBig
	s.Filtered += out.Filtered
	s.Lost += out.Lost
	s.Duplicated += out.Duplicated
}

// transmit puts one packet onto the link and reports whether it could.
func (e *Endpoint) transmit(p *dpr.Packet, out *Stats) bool {
	pkt := p.Bytes()
	dst, ok := destination(pkt)
	if !ok {
		out.Malformed++
		return false
	}
	if p.GSO.Type != dpr.GSONone || p.GSO.NeedsCsum {
		out.Offload++
		return false
	}
	to, pass := e.net.route(dst)
	if to == nil {
		out.NoRoute++
		return false
	}
	near, far := e.link.Load(), to.link.Load()
	switch {
	case len(pkt) > min(near.MTU, far.MTU):
		out.TooBig++
		return false
	case pass != nil && !pass(e, to, pkt):
		out.Filtered++
		return false
	case e.draw(near.Loss) || e.draw(far.Loss):
		out.Lost++
		return true
	}
	copies := 1
	for _, l := range [...]*Link{near, far} {
		if e.draw(l.Duplicate) {
			copies++
			out.Duplicated++
		}
	}
	for range copies {
		to.deliver(pkt, near.Delay+far.Delay+e.jitter(near)+e.jitter(far), far.Queue)
	}
	return true
}

// destination returns the address an IP packet goes to.
func destination(pkt []byte) (netip.Addr, bool) {
	switch {
	case len(pkt) >= 20 && pkt[0]>>4 == 4:
		return netip.AddrFrom4([4]byte(pkt[16:20])), true
	case len(pkt) >= 40 && pkt[0]>>4 == 6:
		return netip.AddrFrom16([16]byte(pkt[24:40])), true
	}
	return netip.Addr{}, false
}

// draw throws dice that say yes with the given probability.
func (e *Endpoint) draw(p float64) bool { return p > 0 && e.dice.Float64() < p }

func (e *Endpoint) jitter(l *Link) time.Duration {
	if l.Jitter == 0 {
		return 0
	}
	return time.Duration(e.dice.Int64N(int64(l.Jitter) + 1))
}

// deliver takes a copy of a packet that arrives after a delay.
func (e *Endpoint) deliver(pkt []byte, delay time.Duration, queue int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.closed:
		e.stats.Discarded++
		return
	case e.ready.n+len(e.coming) >= queue:
		e.stats.QueueFull++
		return
	}
	var buf []byte
	if last := len(e.free) - 1; last >= 0 {
		buf, e.free = e.free[last], e.free[:last]
	}
	buf = append(buf[:0], pkt...)
	if delay == 0 {
		e.ready.push(buf)
		e.arrived.Signal()
		return
	}
	e.launch(flight{time.Now().Add(delay), buf})
}

// launch notes a packet that is on its way. The caller holds e.mu.
func (e *Endpoint) launch(f flight) {
	at := len(e.coming)
	for at > 0 && e.coming[at-1].due.After(f.due) {
		at--
	}
	e.coming = slices.Insert(e.coming, at, f)
	switch {
	case e.timer == nil:
		e.timer = time.AfterFunc(time.Until(f.due), e.land)
	case at == 0:
		e.timer.Reset(time.Until(f.due))
	}
}

// land moves the packets whose time has come to the queue.
func (e *Endpoint) land() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	now, n := time.Now(), 0
	for n < len(e.coming) && !e.coming[n].due.After(now) {
		e.ready.push(e.coming[n].pkt)
		n++
	}
	e.coming = slices.Delete(e.coming, 0, n)
	if len(e.coming) > 0 {
		e.timer.Reset(time.Until(e.coming[0].due))
	}
	if n > 0 {
		e.arrived.Broadcast()
	}
}

// Read fills pkts with what came for the endpoint's addresses, as dpr.Device asks.
func (e *Endpoint) Read(pkts []dpr.Packet) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for n == 0 && len(pkts) > 0 {
		for e.ready.n == 0 && !e.closed {
			e.arrived.Wait()
		}
		if e.closed {
			return 0, fmt.Errorf("dprtest: read from an endpoint: %w", os.ErrClosed)
		}
		for n < len(pkts) && e.ready.n > 0 {
			buf := e.ready.pop()
			if receive(&pkts[n], buf) {
				n++
			} else {
				e.stats.Discarded++
			}
			e.free = append(e.free, buf)
		}
	}
	e.stats.Received += uint64(n)
	return n, nil
}

// receive copies bytes behind the headroom of p, if there is room.
func receive(p *dpr.Packet, b []byte) bool {
	if len(p.Buf) < dpr.Headroom+len(b) {
		return false
	}
	*p = dpr.Packet{Buf: p.Buf, Off: dpr.Headroom, Len: copy(p.Buf[dpr.Headroom:], b)}
	return true
}

// Close takes the endpoint off the network, wakes all Reads and discards what is on
// its way to it.
func (e *Endpoint) Close() error {
	e.shut()
	e.net.leave(e)
	return nil
}

func (e *Endpoint) shut() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	if e.timer != nil {
		e.timer.Stop()
	}
	e.stats.Discarded += uint64(e.ready.n + len(e.coming))
	e.ready, e.coming, e.free = fifo{}, nil, nil
	e.arrived.Broadcast()
}

// A fifo is a queue of packets in a ring that grows.
type fifo struct {
	ring    [][]byte // its length is a power of two, or 0
	head, n int
}

func (q *fifo) push(b []byte) {
	if q.n == len(q.ring) {
		bigger := make([][]byte, max(16, 2*len(q.ring)))
		for i := range q.n {
			bigger[i] = q.ring[(q.head+i)&(len(q.ring)-1)]
		}
		q.ring, q.head = bigger, 0
	}
	q.ring[(q.head+q.n)&(len(q.ring)-1)] = b
	q.n++
}

func (q *fifo) pop() []byte {
	b := q.ring[q.head]
	q.ring[q.head] = nil
	q.head = (q.head + 1) & (len(q.ring) - 1)
	q.n--
	return b
}
