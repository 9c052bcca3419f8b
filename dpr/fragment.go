package dpr

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/carom-dpr/carom/internal/flowtable"
	"github.com/carom-dpr/carom/internal/header"
)

// fragmentService marks the keys of fragments in the flow table: the low byte is
// the protocol. Service indexes stay below.
const fragmentService = 0xff00

// fragmentKey is the key of all fragments of one datagram: addresses, protocol and
// identification (RFC 791; RFC 8200, section 4.5).
func fragmentKey(h *header.Packet, addr uint16) flowtable.Key {
	return flowtable.Key{
		Client:     words(&h.Src),
		ClientPort: uint16(h.FragID >> 16),
		Port:       uint16(h.FragID),
		Service:    fragmentService | uint16(h.FragProto),
		Addr:       addr,
	}
}

// answerFragments marks those of answers in the same way.
const answerFragments = 0xfe00

// turnedFragmentKey is the key of all fragments of a datagram that a server sends.
func turnedFragmentKey(h *header.Packet, addr uint16) flowtable.Key {
	key := fragmentKey(h, addr)
	key.Client, key.Service = words(&h.Dst), answerFragments|uint16(h.FragProto)
	return key
}

// fragmentKey is the key of the fragments of the job's datagram.
func (b *batch) fragmentKey(j *job) flowtable.Key {
	switch {
	case j.answers:
		return turnedFragmentKey(j.hdr, j.key.Addr)
	case j.way.back:
		return fragmentKey(j.hdr, b.view.servers[j.way.server].addr)
	}
	return fragmentKey(j.hdr, j.key.Addr)
}

// fragment decides about a fragment without ports, or with those of no service. The
// latter is noted, for what follows it is for no service either.
func (b *batch) fragment(p *Packet, j *job) {
	if b.answerFragment(p, j) {
		return
	}
	addr, ok := b.view.dialled(&j.hdr.Dst)
	switch {
	case ok && j.hdr.FragOffset > 0:
		b.laterFragment(p, j, fragmentKey(j.hdr, addr))
	case j.hdr.IsICMPError():
		b.aboutFlow(p, j)
	default:
		b.notOurs(p)
	}
	if ok && j.hdr.FragOffset == 0 {
		b.firstFragment(p, fragmentKey(j.hdr, addr), j.way)
	}
}

// laterFragment sends a fragment without ports where the first one went, or keeps
// it until the first one comes.
func (b *batch) laterFragment(p *Packet, j *job, key flowtable.Key) {
	hash := b.engine.table.Hash(&key)
	w, known := b.firstWent(&key, hash)
	if known {
		b.follow(p, j, w)
		return
	}
	b.hold(p, key)
	if w, known = b.firstWent(&key, hash); known { // it came on another queue meanwhile
		b.engine.extra.release(key, w, b.now)
	}
}

// firstWent returns where the first fragment of a datagram went.
func (b *batch) firstWent(key *flowtable.Key, hash uint64) (w way, known bool) {
	shard := b.engine.table.Lock(hash)
	defer shard.Unlock()
	entry := shard.Lookup(key, hash)
	if entry == nil {
		return w, false
	}
	shard.Move(entry, flowtable.Class(Fragment), b.millis)
	return wayOf(entry), true
}

// kernel stands for the peer in the entries of datagrams that are for no service,
// network in those of answers that are transmitted. Their slot is nobody's.
const (
	kernel  PeerID = 1 << slotBits
	network PeerID = 2 << slotBits
)

// follow sends a packet without a flow of its own the way of the flow it belongs to; to
// this host if there is none, or if a peer sent it here.
func (b *batch) follow(p *Packet, j *job, w way) {
	switch {
	case w.peer == kernel || w.server != 0 && !b.session(j, w):
		b.notOurs(p)
		return
	case w.peer == network:
		b.transmit(p, j.hdr)
		return
	case p.Peer != 0 || b.view.peer(w.peer) == nil:
		w = way{}
	}
	b.apply(p, j, w)
}

// session fills in the key of the flow that has the port of a plain server; it fails if
// there is none any more.
func (b *batch) session(j *job, w way) (ok bool) {
	if int(w.server) < len(b.view.servers) && b.view.servers[w.server] != nil {
		*j.key, ok = b.flowAt(b.view.servers[w.server], w.port)
	}
	return ok
}

// firstFragment remembers where the first fragment of a datagram went, and lets
// those that came before it follow.
func (b *batch) firstFragment(p *Packet, key flowtable.Key, w way) {
	switch p.Verdict {
	case Local:
		w = way{}
	case Pass:
		w = way{peer: kernel}
	case Forward:
		w = way{peer: p.Peer}
	case Transmit:
		if w.server == 0 {
			w = way{peer: network}
		}
	default:
		return
	}
	hash := b.engine.table.Hash(&key)
	shard := b.engine.table.Lock(hash)
	if entry := shard.Lookup(&key, hash); entry != nil {
		shard.Delete(entry)
	}
	start := flowtable.Start{Class: flowtable.Class(Fragment), Peer: uint32(w.peer), Server: w.server, NATPort: w.port}
	if w.back {
		start.Flags = back
	}
	shard.Insert(&key, hash, b.millis, &start)
	shard.Unlock()
	b.engine.extra.release(key, w, b.now)
}

// The limits of fragments that wait for their first one. They bound what a sender
// of nothing but later fragments can make the engine keep: 64 packets for a second.
const (
	maxHeld = 64
	// holdTime is far above any reordering, and below a sender's first repetition
	// of a lost datagram (RFC 6298, section 2.1: 1 s).
	holdTime = time.Second
)

// extras are packets that leave the engine later than the Process that they came
// with: fragments that wait for the first one of their datagram, and the pieces of
// packets that had to be fragmented.
type extras struct {
	ready atomic.Int32 // packets that wait for nothing
	held  atomic.Int32 // packets that wait for their first fragment
	mu    sync.Mutex
	list  []extra // a buffer once grown is used again
	n     int     // list[:n] are in use
}

// An extra is one packet that waits.
type extra struct {
	data    []byte
	key     flowtable.Key
	way     way
	from    PeerID
	ready   bool
	expires time.Duration
}

// add returns a place for one more packet, nil if too many wait already.
func (x *extras) add(data []byte) *extra {
	if x.n == maxHeld {
		return nil
	}
	if x.n == len(x.list) {
		x.list = append(x.list, extra{})
	}
	slot := &x.list[x.n]
	*slot = extra{data: append(slot.data[:0], data...)}
	x.n++
	return slot
}

func (x *extras) remove(i int) {
	x.n--
	x.list[i], x.list[x.n] = x.list[x.n], x.list[i]
}

// hold keeps a copy of a fragment until its first one comes.
func (b *batch) hold(p *Packet, key flowtable.Key) {
	x := &b.engine.extra
	b.count[firstReason+int(FragmentLost)] += uint32(x.expire(b.now))
	x.mu.Lock()
	defer x.mu.Unlock()
	slot := x.add(p.Bytes())
	if slot == nil {
		b.drop(p, FragmentLost)
		return
	}
	slot.key, slot.from, slot.expires = key, p.Peer, b.now+holdTime
	x.held.Add(1)
	p.Verdict = Hold
}

// expire forgets the fragments that waited in vain and returns their number.
func (x *extras) expire(now time.Duration) (lost int) {
	if x.held.Load() == 0 {
		return 0
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := x.n - 1; i >= 0; i-- {
		if s := &x.list[i]; !s.ready && s.expires <= now {
			x.remove(i)
			x.held.Add(-1)
			lost++
		}
	}
	return lost
}

// release marks the packets that waited for the key.
func (x *extras) release(key flowtable.Key, w way, now time.Duration) {
	if x.held.Load() == 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := range x.list[:x.n] {
		if s := &x.list[i]; !s.ready && s.key == key && s.expires > now {
			s.ready, s.way = true, w
			x.held.Add(-1)
			x.ready.Add(1)
		}
	}
}

// split makes fragments of an IPv4 packet that is too long for its way (RFC 791,
// section 3.2). The first stays in p; the others are extras.
func (b *batch) split(p *Packet, j *job, to *peer) {
	h, w := j.hdr, j.way
	if w.server == 0 {
		w = way{peer: to.id}
	}
	if p.GSO.NeedsCsum {
		header.PutChecksum(p.Bytes()[h.L4:], h.Proto, &h.Src, &h.Dst)
		p.GSO = GSO{}
	}
	ip := header.IPv4(p.Bytes())
	length, room := len(ip.Payload()), header.FragmentRoom(ip, to.mtu)
	x := &b.engine.extra
	x.mu.Lock()
	defer x.mu.Unlock()
	for at := room; at < length; at += room {
		slot := x.add(nil)
		if slot == nil {
			b.count[firstReason+int(FragmentLost)]++
			break
		}
		slot.data = header.AppendFragment(slot.data, ip, at, room)
		slot.ready, slot.way = true, w
		x.ready.Add(1)
	}
	p.Len = ip.HeaderLen() + room
	ip.SetTotalLen(p.Len)
	ip.SetFragment(false, true, int(h.FragOffset))
	ip.ComputeChecksum()
}

// Extra fills pkts with packets that earlier calls of Process kept back and that
// can go now, with their verdicts, and returns their number. Their bytes are
// copied into pkts' buffers, behind Headroom. Call it after Process until it
// returns 0; without such packets it costs one load.
//
// Kept back are fragments that overtook the first fragment of their datagram,
// which alone has ports, and all but the first of the pieces of a packet that had
// to be fragmented to fit a tunnel.
func (e *Engine) Extra(pkts []Packet, now time.Time) int {
	if e.extra.ready.Load() == 0 {
		return 0
	}
	b := e.start(now)
	n := b.takeReady(pkts[:min(len(pkts), maxBatch)])
	for i := range pkts[:n] {
		p, j := &pkts[i], &b.jobs[i]
		if p.Len == 0 || j.hdr.Parse(p.Bytes()) != header.OK {
			b.drop(p, FragmentLost) // the buffer is shorter than the packet
		} else {
			b.follow(p, j, j.way)
		}
		b.count[p.Verdict]++
	}
	e.finish(b)
	return n
}

// takeReady copies packets that wait for nothing into pkts, and their ways into the
// jobs.
func (b *batch) takeReady(pkts []Packet) (n int) {
	x := &b.engine.extra
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := x.n - 1; i >= 0 && n < len(pkts); i-- {
		s := &x.list[i]
		if !s.ready {
			continue
		}
		p := &pkts[n]
		p.Off, p.Len, p.GSO, p.Peer = Headroom, 0, GSO{}, s.from
		if Headroom+len(s.data) <= len(p.Buf) {
			p.Len = copy(p.Buf[Headroom:], s.data)
		}
		b.jobs[n].way = s.way
		x.remove(i)
		x.ready.Add(-1)
		n++
	}
	return n
}
