package loadinfo

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// DefaultPeriod is the time between two reports of a host. Half a second is well
// below the lifetime of the connections that matter for balance.
const DefaultPeriod = 500 * time.Millisecond

// BoardConfig configures a Board. Zero fields take the defaults that they state.
type BoardConfig struct {
	// Period is the time between two reports of a host; 0 means DefaultPeriod.
	Period time.Duration
	// StaleAfter is the silence after which a host gets no new connections; 0
	// means 3 periods, so that two lost datagrams are forgiven. Shorter reacts
	// faster to a dead host, and wrongly to a bad network. For a host that says that
	// its own period is longer, this and the next two are as much longer.
	StaleAfter time.Duration
	// DownAfter is the silence after which a host counts as dead and leaves the
	// snapshots; 0 means 10 periods. It is also what a host waits to be heard that
	// comes back with a lower Boot.
	DownAfter time.Duration
	// Blackout is how long a host of which the board has no history, or only a
	// silence, must have been heard before it gets new connections: three times at
	// least, and never StaleAfter apart. 0 means 2 periods, NoBlackout none. Without,
	// a single datagram, recorded or come by a detour, could bring a dead host back.
	Blackout time.Duration
	// ForgetAfter is the silence after which nothing is kept of a host; 0 means an
	// hour. Until then its old reports are refused.
	ForgetAfter time.Duration
	// MaxHosts bounds the memory; 0 means 4096. When it is reached, a new host
	// takes the place of the one that has been down the longest, or is refused.
	// Package gossip takes no more from a peer at once than such a cluster needs.
	MaxHosts int
	// Live returns the counter of the flows that this process has handed to a
	// host for a service, for lb.Host.Live; it may return nil, and may be nil. The
	// board asks once and keeps the counter until it forgets the host. It asks
	// while it is locked: Live must not call the board.
	Live func(host, service string) *atomic.Int32
}

// NoBlackout, as a Blackout, takes every host at its first word.
const NoBlackout = -1

func (c BoardConfig) withDefaults() BoardConfig {
	c.Period = positive(c.Period, DefaultPeriod)
	c.StaleAfter = positive(c.StaleAfter, 3*c.Period)
	c.DownAfter = max(positive(c.DownAfter, 10*c.Period), c.StaleAfter)
	c.ForgetAfter = max(positive(c.ForgetAfter, time.Hour), c.DownAfter)
	if c.Blackout == 0 {
		c.Blackout = 2 * c.Period
	}
	if c.MaxHosts <= 0 {
		c.MaxHosts = 4096
	}
	return c
}

func positive(d, def time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return def
}

// Why a report was not put on the board.
var (
	// ErrOwn: the report is this host's own, come back.
	ErrOwn = errors.New("loadinfo: own report")
	// ErrReplayed: the report is not newer than what the board has.
	ErrReplayed = errors.New("loadinfo: report replayed or out of order")
	// ErrConflict: another live host has the same ID or node address.
	ErrConflict = errors.New("loadinfo: two hosts claim one ID or node address: give each an ID of its own (by default it is the host's name, which clones share)")
	// ErrFull: the board has no room for another host.
	ErrFull = errors.New("loadinfo: too many hosts")
)

// A Board keeps what each host has said of itself last. All methods may be called
// by several goroutines; none blocks. Where a method takes the time it should be
// time.Now's, for its monotonic clock; a time before an earlier one does no harm.
type Board struct {
	cfg BoardConfig

	mu       sync.Mutex
	hosts    map[string]*record
	order    []*record                 // the same, in the order of IDs
	nodes    map[netip.AddrPort]string // who is at which node address
	services map[ServiceID]string      // the names that were asked for
	self     own
	watchers []chan struct{}
}

// record is one host on the board.
type record struct {
	report Report
	heard  time.Time
	since  time.Time // when it was first heard, or came back
	times  int       // how often it has been heard since, up to blackoutReports
	back   bool      // it came back from silence
	failed time.Time // when another said that it is dead; zero: nobody did
	state  State     // at the last Tick; to tell a change
	limits limits
	live   map[ServiceID]counter
}

// counter is what this process knows itself of a host and a service.
type counter struct {
	live *atomic.Int32
	then int32 // when the last report came
}

// NewBoard returns an empty board. Negative fields of the configuration, but for
// Blackout, count as zero; DownAfter is at least StaleAfter, ForgetAfter at least DownAfter.
func NewBoard(cfg BoardConfig) *Board {
	return &Board{
		cfg:      cfg.withDefaults(),
		hosts:    map[string]*record{},
		nodes:    map[netip.AddrPort]string{},
		services: map[ServiceID]string{},
	}
}

// MaxHosts returns how many hosts the board has room for; see BoardConfig.
func (b *Board) MaxHosts() int { return b.cfg.MaxHosts }

// Receive puts a report on the board, as of now; a report that came by a detour
// is given the time at which its sender made it. The board keeps the report's
// slices. The error, if any, matches ErrOwn, ErrReplayed, ErrConflict or ErrFull, or is
// that of Report.Validate, and the board is as it was.
func (b *Board) Receive(r Report, now time.Time) error {
	if err := r.Validate(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.admit(&r, now); err != nil {
		return err
	}
	rec := b.hosts[r.ID]
	if rec == nil {
		rec = &record{since: now, live: map[ServiceID]counter{}}
		b.hosts[r.ID] = rec
		at, _ := b.find(r.ID)
		b.order = slices.Insert(b.order, at, rec)
	} else if rec.dead(now) {
		rec.since, rec.times, rec.back = now, 0, r.Boot == rec.report.Boot
	} else if rec.limits.blackout && rec.stale(now) {
		rec.since, rec.times = now, 0
	}
	if now.After(rec.failed) {
		rec.failed = time.Time{}
	}
	b.move(rec.report.Node, &r)
	rec.report, rec.heard, rec.times = r, now, min(rec.times+1, blackoutReports)
	rec.limits = b.limits(rec)
	rec.state = b.stateIn(pool{heard: 1}, rec, now)
	for _, s := range r.Services {
		if name, asked := b.services[s.ID]; asked {
			rec.note(s.ID, b.live(r.ID, name, rec.live[s.ID].live))
		}
	}
	b.notify()
	return nil
}

// admit decides whether a report counts, and makes room for it.
func (b *Board) admit(r *Report, now time.Time) error {
	if b.self.set && r.ID == b.self.ID {
		return b.self.heard(r)
	}
	old := b.hosts[r.ID]
	if old != nil {
		if err := b.succeeds(old, r, now); err != nil {
			return err
		}
	}
	if err := b.claim(r, now); err != nil {
		return err
	}
	if old == nil && len(b.hosts) >= b.cfg.MaxHosts && !b.evict(now) {
		return ErrFull
	}
	return nil
}

// succeeds says whether r may follow the report that old holds.
func (b *Board) succeeds(old *record, r *Report, now time.Time) error {
	was := &old.report
	switch {
	case r.Boot != was.Boot && now.Before(old.heard):
		return ErrReplayed // of a former life, by a detour: its clock was ahead of the present one's
	case r.Boot > was.Boot:
		return nil
	case r.Boot == was.Boot && r.Seq > was.Seq:
		return nil
	case r.Boot == was.Boot:
		return ErrReplayed
	case old.dead(now):
		return nil // its clock went back while it was away
	case r.Node != was.Node:
		return ErrConflict
	}
	return ErrReplayed
}

// claim says whether r may have its node address, and ends the record of a former
// name there.
func (b *Board) claim(r *Report, now time.Time) error {
	if !r.Node.IsValid() {
		return nil
	}
	if b.self.set && r.Node == b.self.Node {
		return ErrConflict
	}
	name, taken := b.nodes[r.Node]
	if !taken || name == r.ID {
		return nil
	}
	former := b.hosts[name]
	if r.Boot <= former.report.Boot && !former.dead(now) {
		return ErrConflict
	}
	b.forget(name)
	return nil
}

// move keeps the index of node addresses.
func (b *Board) move(was netip.AddrPort, r *Report) {
	if b.nodes[was] == r.ID {
		delete(b.nodes, was)
	}
	if r.Node.IsValid() {
		b.nodes[r.Node] = r.ID
	}
}

func (b *Board) forget(name string) {
	if node := b.hosts[name].report.Node; b.nodes[node] == name {
		delete(b.nodes, node)
	}
	delete(b.hosts, name)
	if at, found := b.find(name); found {
		b.order = slices.Delete(b.order, at, at+1)
	}
}

// find returns where a host is in order, or would be.
func (b *Board) find(id string) (at int, found bool) {
	return slices.BinarySearchFunc(b.order, id, func(rec *record, id string) int {
		return strings.Compare(rec.report.ID, id)
	})
}

// evict forgets the host that has been silent the longest, if it is down.
func (b *Board) evict(now time.Time) bool {
	oldest, silence := "", time.Duration(-1)
	for name, rec := range b.hosts {
		if a := age(rec.heard, now); a > silence && rec.dead(now) {
			oldest, silence = name, a
		}
	}
	if oldest == "" {
		return false
	}
	b.forget(oldest)
	return true
}

// live returns the counter for a host and a service: have, or else a new one.
func (b *Board) live(host, service string, have *atomic.Int32) *atomic.Int32 {
	if have == nil && b.cfg.Live != nil {
		return b.cfg.Live(host, service)
	}
	return have
}

// note remembers the counter's value at the time of a report.
func (r *record) note(id ServiceID, live *atomic.Int32) {
	if live != nil {
		r.live[id] = counter{live, live.Load()}
	}
}

// age is the time from then to now, 0 if the clock went back.
func age(then, now time.Time) time.Duration { return max(now.Sub(then), 0) }

// Fail says that a host is dead before its silence does, as another failure
// detector found: it is Down at once. boot says which of its lives ended; reports
// of a later life, or made after now, are heard.
func (b *Board) Fail(id string, boot uint64, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if rec := b.hosts[id]; rec != nil && rec.report.Boot == boot {
		rec.failed, rec.state = now, Down
		b.notify()
	}
}

// Tick notes who has fallen silent by now, forgets who has been silent for too
// long, and tells subscribers of it. A Transport calls it; without one call it
// once per period. Snapshot and Members do not depend on it.
func (b *Board) Tick(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tick(now)
}

func (b *Board) tick(now time.Time) {
	b.self.touch(now)
	changed := false
	pools := b.pools(now)
	var old []string
	for _, rec := range b.order {
		state := b.stateAt(rec, pools, now)
		changed = changed || state != rec.state
		rec.state = state
		if age(rec.heard, now) >= b.cfg.ForgetAfter {
			old = append(old, rec.report.ID)
		}
	}
	for _, name := range old {
		b.forget(name)
	}
	if changed || len(old) > 0 {
		b.notify()
	}
}

// Subscribe returns a channel that holds a value whenever Snapshot or Members may
// have something new to say: a report came, a host fell silent, this host's own
// state was set. Its capacity is 1, so changes that are not fetched become one.
// cancel ends the subscription; it does not close the channel.
func (b *Board) Subscribe() (changes <-chan struct{}, cancel func()) {
	c := make(chan struct{}, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.watchers = append(b.watchers, c)
	return c, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.watchers = slices.DeleteFunc(b.watchers, func(w chan struct{}) bool { return w == c })
	}
}

func (b *Board) notify() {
	for _, w := range b.watchers {
		select {
		case w <- struct{}{}:
		default: // it has not fetched the last one yet
		}
	}
}
