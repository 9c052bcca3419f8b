package dpr

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carom-dpr/carom/internal/flowtable"
	"github.com/carom-dpr/carom/internal/header"
	"github.com/carom-dpr/carom/internal/siphash"
)

// An Engine decides what happens to packets. It does no I/O, starts no goroutine
// and reads no clock. All methods may be called from several goroutines at once.
type Engine struct {
	cfg    Config
	seed   siphash.Key
	table  *flowtable.Table
	view   atomic.Pointer[view]
	epoch  time.Time
	errors limiter
	full   atomic.Int64 // when the table last had no room, since epoch; 0 for never
	wait   atomic.Int64 // Timeouts.Embryonic
	stats  tally
	made   atomic.Uint32 // batches
	extra  extras
	// What confirms that flows are alive.
	watch     atomic.Pointer[watch]
	ticked    atomic.Int64 // when Tick was called last, since epoch
	questions questions
	jobs      sync.Pool // of *batch

	mu           sync.Mutex // guards changes of view and all below
	serviceIndex map[string]uint16
	addrIndex    map[[16]byte]uint16
	addrs        []netip.Addr    // by index
	servers      []*server       // by number, see view
	states       []*serviceState // by service index, as in view
	live         map[hostService]*atomic.Int32
	generation   uint16
}

// New returns an engine without peers. Its memory is reserved at once and used as
// flows come.
func New(cfg Config) (*Engine, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	e := &Engine{
		cfg:          cfg,
		seed:         siphash.KeyFromBytes(cfg.Seed[:]),
		epoch:        time.Now(),
		serviceIndex: make(map[string]uint16),
		addrIndex:    make(map[[16]byte]uint16),
		live:         make(map[hostService]*atomic.Int32),
		servers:      make([]*server, 1),
	}
	e.errors.interval = time.Second / time.Duration(cfg.ErrorsPerSecond)
	v := &view{peers: make([]peer, 1)}
	v.natFirst, v.natLast = cfg.NAT.Ports()
	e.view.Store(v)
	for _, a := range cfg.NAT.Sources {
		if _, err := e.internAddr(a); err != nil {
			return nil, err
		}
	}
	e.jobs.New = e.newBatch
	if err := e.SetServices(cfg.Services); err != nil {
		return nil, err
	}
	tc := flowtable.Config{MaxFlows: cfg.MaxFlows, Evict: evictionOrder, OnRemove: e.removed, Keep: e.idle}
	e.watch.Store(newWatch(&cfg.Timeouts, cfg.Confirm))
	for class, d := range e.watch.Load().every {
		tc.Timeouts[class] = d
	}
	e.wait.Store(int64(cfg.Timeouts.Embryonic))
	var err error
	if e.table, err = flowtable.New(tc); err != nil {
		return nil, fmt.Errorf("dpr: %w", err)
	}
	return e, nil
}

// SetTimeouts changes the idle times, of flows that are there too. Zero fields
// take the defaults. On an error nothing changes.
func (e *Engine) SetTimeouts(t Timeouts) error {
	t.setDefaults()
	if err := t.validate(); err != nil {
		return err
	}
	w := newWatch(&t, e.cfg.Confirm)
	e.watch.Store(w)
	for class, d := range w.every {
		e.table.SetTimeout(flowtable.Class(class), d)
	}
	e.wait.Store(int64(t.Embryonic))
	return nil
}

// Close releases the flow table. No other method may be running or be called
// afterwards.
func (e *Engine) Close() error { return e.table.Close() }

// removed keeps the open counts true when an entry leaves the table, and takes back its
// port.
func (e *Engine) removed(entry *flowtable.Entry, _ flowtable.Cause) {
	v := e.view.Load()
	if entry.Server != 0 && State(entry.Class()) != Fragment {
		s := v.servers[entry.Server]
		s.free(entry.NATPort, s.rest(seconds(time.Duration(e.ticked.Load()))))
	}
	if entry.Flags()&counted == 0 {
		return
	}
	if c := v.countsOf(entry); c != nil {
		c.open.Add(-1)
	}
}

// Tick forgets flows that were idle for too long, at most 65,536 at a time, which
// takes a few milliseconds, drops fragments that waited in vain, and brings counts
// up to date. Call it about four times a second.
func (e *Engine) Tick(now time.Time) {
	e.ticked.Store(int64(e.since(now)))
	e.table.Expire(e.millis(now), maxExpire)
	e.stats[0].counters[firstReason+int(FragmentLost)].Add(uint64(e.extra.expire(e.since(now))))
	for _, s := range e.view.Load().services {
		if s != nil {
			s.refreshServing(e.since(now))
		}
	}
}

// maxExpire keeps up with 250,000 new flows a second at four ticks a second.
const maxExpire = 1 << 16

// Clock returns the time on the clock of Pick's now: lb.Snapshot.Taken of a snapshot
// that is made now.
func (e *Engine) Clock(now time.Time) time.Duration { return e.since(now) }

func (e *Engine) since(now time.Time) time.Duration { return now.Sub(e.epoch) }

// millis is the clock of the flow table. It wraps after 49 days, which the table
// expects.
func (e *Engine) millis(now time.Time) uint32 {
	return uint32(e.since(now) / time.Millisecond)
}

// Process decides about each packet and rewrites it: afterwards its Verdict says
// where it goes and, for Forward, Peer to whom. A packet with a Peer came from an
// uplink, one without from a device. The packets and their buffers stay the
// caller's; now is the current time.
//
// Process allocates nothing, blocks for no longer than a table lock, and is fastest
// with batches of 32 or more.
func (e *Engine) Process(pkts []Packet, now time.Time) {
	b := e.start(now)
	for len(pkts) > 0 {
		n := min(len(pkts), maxBatch)
		b.run(pkts[:n])
		pkts = pkts[n:]
	}
	e.finish(b)
}

// parse reads the headers, and drops packets whose headers are wrong.
func (b *batch) parse(p *Packet, j *job) {
	j.service, j.parsed, j.answers, j.way = nil, false, false, way{}
	if p.Peer != 0 {
		b.count[fromUplink]++
	}
	if reason := j.hdr.Parse(p.Bytes()); reason != header.OK {
		b.drop(p, parseReason(reason))
		return
	}
	p.Len = j.hdr.Len
	j.parsed = true
}

// classify gives packets that need no flow their verdict, and others their
// service and key.
func (b *batch) classify(p *Packet, j *job) {
	h := j.hdr
	service, addr := b.view.lookup(Proto(h.Proto), &h.Dst, h.DstPort)
	switch {
	case h.RouteDst:
		b.notOurs(p) // this host is a stop on the packet's way, not its end
	case service != nil && h.Proto == header.ProtoUDP && noChecksum(p, h):
		b.drop(p, NoChecksum)
	case service != nil && p.Peer != 0 && h.Proto == header.ProtoTCP:
		b.redirectedIn(p, h, service, addr)
	case service != nil:
		j.service = service
		setKey(j.key, service, addr, h)
	case p.Peer == 0 && b.classifyBack(p, j):
	case h.Fragment:
		b.fragment(p, j)
	case h.IsICMPError():
		b.aboutFlow(p, j)
	default:
		b.answer(p, j)
	}
}

// classifyBack recognizes a packet from a plain server and gives it the key of its flow.
func (b *batch) classifyBack(p *Packet, j *job) bool {
	w, key, ok := b.translated(j.hdr)
	if !ok || b.view.services[key.Service] == nil {
		return false
	}
	if j.hdr.Proto == header.ProtoUDP && noChecksum(p, j.hdr) {
		b.drop(p, NoChecksum)
		return true
	}
	j.service, *j.key, j.way = b.view.services[key.Service], key, w
	return true
}

// noChecksum reports whether a UDP datagram lacks the checksum that it must have over
// IPv6 (RFC 8200, section 8.1).
func noChecksum(p *Packet, h *header.Packet) bool {
	return h.Version == 6 && header.UDP(p.Bytes()[h.L4:]).Checksum() == 0
}

// notOurs gives a packet that is for no service back to the kernel; from an uplink
// there must be none.
func (b *batch) notOurs(p *Packet) {
	if p.Peer != 0 {
		b.drop(p, NotService)
		return
	}
	p.Verdict = Pass
}

// ProbePort is the source port of SYNs by which a host asks whether connections that it
// hands to a peer are answered. They open nothing, so the peer does not count them. It
// is GUE's port, which no client has: it is below those that systems choose from.
const ProbePort = 6080

// redirectedIn serves a TCP packet that a peer redirected. It is never redirected
// again, so no packet can travel in a circle. The kernel's sockets are all the
// memory that such flows need.
func (b *batch) redirectedIn(p *Packet, h *header.Packet, s *service, addr uint16) {
	p.Verdict = Local
	if opens(h) && h.SrcPort != ProbePort {
		s.count.in.Add(1)
	}
	b.clamp(p, h, s)
	if h.Fragment {
		b.firstFragment(p, fragmentKey(h, addr), way{})
	}
}

func flowKey(s *service, addr uint16, h *header.Packet) (key flowtable.Key) {
	setKey(&key, s, addr, h)
	return key
}

// setKey writes the key of a client's packet in place: a key that is copied must
// first be stored, and the copy would wait for that.
func setKey(key *flowtable.Key, s *service, addr uint16, h *header.Packet) {
	key.Client = words(&h.Src)
	key.ClientPort, key.Port = h.SrcPort, h.DstPort
	key.Service, key.Addr = s.index, addr
}

// opens reports whether the packet is a TCP connection's first.
func opens(h *header.Packet) bool {
	return h.Proto == header.ProtoTCP && h.TCPFlags&(header.SYN|header.ACK) == header.SYN
}

// decide gives the packet its verdict by its flow's entry, in its locked shard.
func (b *batch) decide(p *Packet, j *job, shard *flowtable.Shard, entry *flowtable.Entry) {
	if j.predicted {
		b.unpredicted(p, j)
	}
	if j.way.back {
		b.fromServer(p, j, shard, entry)
		return
	}
	if p.Peer != 0 {
		if j.answers {
			b.toClient(p, j, shard, entry)
		} else {
			b.served(p, j, shard, entry)
		}
		return
	}
	if entry != nil && entry.Peer() != 0 && !b.view.serves(entry) {
		b.view = b.engine.view.Load() // the flow may be younger than the batch's
	}
	if entry != nil && entry.Peer() != 0 && !b.view.serves(entry) {
		shard.Delete(entry)
		b.count[peerGone]++
		if j.hdr.Proto == header.ProtoTCP && !opens(j.hdr) {
			b.disown(p, j.hdr)
			return
		}
		entry = nil
	}
	if entry != nil && !b.reopens(entry, j.hdr) {
		b.track(shard, entry, j.hdr)
		if entry.Server == 0 {
			b.hand(p, j, PeerID(entry.Peer()))
		} else {
			b.apply(p, j, wayOf(entry))
		}
		return
	}
	if entry != nil {
		shard.Delete(entry)
	}
	if j.hdr.Proto == header.ProtoTCP && !opens(j.hdr) {
		b.unknown(p, j, shard)
		return
	}
	b.open(p, j, shard)
}

// served serves a UDP packet that a peer redirected, like redirectedIn. Its flow has
// an entry, since no socket says how many there are.
func (b *batch) served(p *Packet, j *job, shard *flowtable.Shard, entry *flowtable.Entry) {
	p.Verdict = Local
	if entry != nil {
		b.track(shard, entry, j.hdr)
		return
	}
	j.service.count.in.Add(1)
	b.bind(j, shard, way{})
}

// apply does what was bound to a flow: a peer serves it, or this host.
func (b *batch) apply(p *Packet, j *job, w way) {
	if w.server == 0 || w.peer == 0 {
		b.hand(p, j, w.peer)
		return
	}
	j.way = w
	b.translate(p, j, w, b.view.peer(w.peer))
}

// hand gives a packet to the peer, or to this host if that is 0.
func (b *batch) hand(p *Packet, j *job, peer PeerID) {
	if peer == 0 {
		p.Verdict = Local
		return
	}
	to := b.view.peer(peer)
	if b.fits(p, j, to) && b.hop(p, j.hdr) {
		p.Verdict, p.Peer = Forward, peer
	}
}

// hop lowers the packet's TTL or hop limit, the last guard against a circle.
func (b *batch) hop(p *Packet, h *header.Packet) bool {
	if h.HopLimit <= 1 {
		b.expired(p, h)
		return false
	}
	if h.Version == 4 {
		header.IPv4(p.Bytes()).DecrementTTL()
	} else {
		header.IPv6(p.Bytes()).SetHopLimit(h.HopLimit - 1)
	}
	return true
}

func (b *batch) drop(p *Packet, r Reason) {
	p.Verdict = Drop
	b.count[firstReason+int(r)]++
}
