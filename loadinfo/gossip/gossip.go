package gossip

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/carom-dpr/carom/loadinfo"
)

// A Gossip sends this host's reports, receives those of others and sends them on.
type Gossip struct {
	cfg    Config
	name   string // of this host as a member
	ring   *memberlist.Keyring
	table  *table
	budget *budget
	lost   lost
	seeds  atomic.Pointer[[]string]
	ran    atomic.Bool

	mu     sync.Mutex
	stats  loadinfo.Stats
	warned map[string]time.Time // when, by what
}

var _ loadinfo.Transport = (*Gossip)(nil)

// New returns a Gossip that does nothing until Run. An error names the field of the
// configuration; the sockets are then still the caller's.
func New(cfg Config) (*Gossip, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	self, ok := cfg.Board.Report(time.Now())
	if !ok {
		return nil, errors.New("gossip: Config.Board does not say who this host is: call its SetSelf first")
	}
	g := &Gossip{
		cfg:    cfg,
		name:   memberName(self.ID, self.Boot),
		ring:   &memberlist.Keyring{},
		table:  newTable(),
		budget: &budget{perSecond: float64(cfg.MaxRate)},
		warned: map[string]time.Time{},
	}
	g.SetKeys(cfg.Keys)
	return g, g.SetSeeds(cfg.Seeds)
}

// SetSeeds changes the seeds from the next try on; see Config.Seeds. It may be called
// at any time. On an error nothing changes.
func (g *Gossip) SetSeeds(seeds []string) error {
	if err := validSeeds(seeds); err != nil {
		return err
	}
	seeds = slices.Clone(seeds)
	g.seeds.Store(&seeds)
	return nil
}

// memberName tells the lives of a host apart.
func memberName(id string, boot uint64) string { return id + "@" + strconv.FormatUint(boot, 16) }

func parseMemberName(name string) (id string, boot uint64, ok bool) {
	at := strings.LastIndexByte(name, '@')
	if at < 1 {
		return "", 0, false
	}
	boot, err := strconv.ParseUint(name[at+1:], 16, 64)
	return name[:at], boot, err == nil
}

// purpose names what keys are derived for.
const purpose = "carom gossip, AES-256-GCM"

// SetKeys changes the keyring at any time. A host that has keys keeps its last ones
// when k is nil: encryption can be turned on while it runs, and off by a restart.
func (g *Gossip) SetKeys(k *loadinfo.Keyring) {
	keys := k.Derive(purpose)
	if len(keys) == 0 {
		if len(g.ring.GetKeys()) > 0 {
			g.cfg.Logger.Warn("gossip: encryption is turned off by a restart only; the keys stay as they are")
		}
		return
	}
	for _, key := range keys {
		_ = g.ring.AddKey(key) // it fails for other lengths than that of Derive
	}
	_ = g.ring.UseKey(keys[0])
	for _, key := range slices.Clone(g.ring.GetKeys()) {
		if !slices.ContainsFunc(keys, func(k []byte) bool { return string(k) == string(key) }) {
			_ = g.ring.RemoveKey(key) // it is not the one in use
		}
	}
}

// Stats returns the counts so far. Of each report several copies come by several
// ways; all but the first count as Replayed. Sent counts datagrams, of reports and
// of the protocol of members.
func (g *Gossip) Stats() loadinfo.Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stats
}

func (g *Gossip) count(f func(s *loadinfo.Stats)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f(&g.stats)
}

var errSocket = errors.New("gossip: a socket is broken")

// leaveTime is how long a host that stops waits for the news of it to go out.
const leaveTime = 2 * time.Second

// Run takes part in the cluster until the context is done, and returns nil then, or
// an error when a socket is broken. At the end it takes leave, which takes about a
// second, or four where hosts are told rarely. It closes the sockets and can be called
// once: any other call returns an error and does nothing. Goroutines of memberlist that
// wait for a peer at that moment end within its time-outs.
func (g *Gossip) Run(ctx context.Context) error {
	if g.ran.Swap(true) {
		return errors.New("gossip: Run was called already: make another Gossip")
	}
	working, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t := newTransport(g, func(err error) {
		if ctx.Err() == nil { // who stops may take the network away too
			cancel(err)
		}
	})
	list, err := memberlist.Create(g.memberlistConfig(t))
	if err != nil {
		return errors.Join(fmt.Errorf("gossip: %w", err), t.Shutdown())
	}
	var seeking sync.WaitGroup
	seeking.Go(func() { g.seek(working, list) })
	g.cfg.Board.Announce(working, g.pace, g.send)
	err = context.Cause(working)
	if !errors.Is(err, errSocket) {
		err = nil
		t.hangUp()                                     // seeds that do not answer
		<-time.After(min(2*g.cfg.Interval, leaveTime)) // let the last report go out first
		_ = list.Leave(leaveTime)                      // who did not hear it will notice
	}
	seeking.Wait()
	_ = list.Shutdown()
	return err
}

// reserved is the part of each datagram that reports have for themselves: half.
func (g *Gossip) reserved() int { return g.cfg.MaxDatagram / 2 }

// crcLen is the CRC of a datagram with its type, in bytes, which memberlist does not
// count.
const crcLen = 5

// streamTime bounds an exchange by a stream.
const streamTime = 10 * time.Second

func (g *Gossip) memberlistConfig(t *transport) *memberlist.Config {
	c := memberlist.DefaultLANConfig()
	c.Name = g.name
	c.Label = g.cfg.Cluster
	c.Transport = t
	c.Keyring = g.ring
	c.BindPort, c.AdvertisePort = int(g.cfg.Advertise.Port()), int(g.cfg.Advertise.Port())
	c.ProtocolVersion = protocol
	c.EnableCompression = false // reports hardly shrink, and tame refuses it
	c.GossipInterval = g.cfg.Interval
	c.GossipNodes = g.cfg.Fanout
	c.ProbeInterval = g.cfg.ProbeInterval
	c.ProbeTimeout = g.cfg.ProbeTimeout
	c.TCPTimeout = streamTime
	// memberlist fills up to this with news of members; delegate goes on from there.
	c.UDPBufferSize = g.cfg.MaxDatagram - crcLen - g.reserved()
	c.Logger = log.New(&logWriter{g}, "", 0)
	d := &delegate{g}
	c.Delegate, c.Events, c.Alive = d, d, d
	return c
}

// redundancy is how many copies of each report a host should be able to send on. At
// 4, one host in 55 would miss a version that all others send to hosts at random,
// and it gets the next one.
const redundancy = 4

// pace lets the period grow with the cluster, so that the reports of a period fit
// into the datagrams of a period.
func (g *Gossip) pace() (period, least time.Duration) {
	hosts, length := g.table.size()
	perRound := g.cfg.Fanout * (g.cfg.MaxDatagram - roundOverhead) / (length + messageOverhead)
	rounds := float64(hosts*redundancy) / float64(perRound)
	period = max(g.cfg.Period, time.Duration(rounds*float64(g.cfg.Interval)))
	return period, max(g.cfg.MinInterval, period/10)
}

// What is around all messages of a datagram, encryption included, and around each.
const (
	roundOverhead   = 40
	messageOverhead = 3 + 2 // compound and type; age
)

// copies is how often this host sends a version of a report: as often as memberlist
// sends a piece of news, 4 ceil(log10(n+1)) times.
func (g *Gossip) copies() int {
	hosts, _ := g.table.size()
	return 4 * int(math.Ceil(math.Log10(float64(hosts)+1)))
}

// send puts this host's report where the next round finds it.
func (g *Gossip) send(r *loadinfo.Report) {
	msg, err := r.Append(nil, nil)
	if err != nil { // SetSelf validated it
		g.cfg.Logger.Error("gossip: own report cannot be sent", "err", err)
		return
	}
	g.table.put(r, msg, time.Now(), true)
}

// tooOld is an age that no report that still matters has on its way.
const tooOld = time.Hour

var errMessage = fmt.Errorf("%w: age", loadinfo.ErrMalformed)

// receive takes a report as it travels: its age in milliseconds as a varint, then
// the report. One that is news is sent on. Most are not: where all tell all, a report
// comes several times, and what came before need not be read again.
func (g *Gossip) receive(msg []byte, now time.Time) {
	report, made, err := parseAge(msg, now)
	var r loadinfo.Report
	switch {
	case err != nil:
	case g.table.has(report):
		err = loadinfo.ErrReplayed
	default:
		r, err = loadinfo.ParseReport(report, nil)
	}
	if err == nil {
		err = g.cfg.Board.Receive(r, made)
	}
	if err == nil {
		g.table.put(&r, report, made, false)
		if r.State == loadinfo.Draining {
			g.lost.left(memberName(r.ID, r.Boot))
		}
	}
	g.count(func(s *loadinfo.Stats) { s.Count(err) })
	if loadinfo.Actionable(err) {
		g.warn("report of "+r.ID, "gossip: report refused; the host is not heard", "id", r.ID, "err", err)
	}
}

func parseAge(msg []byte, now time.Time) (report []byte, made time.Time, err error) {
	age, n := binary.Uvarint(msg)
	if n <= 0 || age > uint64(tooOld/time.Millisecond) {
		return nil, now, errMessage
	}
	return msg[n:], now.Add(-time.Duration(age) * time.Millisecond), nil
}

// warnEvery is the least time between two warnings of one kind, and maxKinds how
// many kinds are told apart.
const (
	warnEvery = time.Minute
	maxKinds  = 256
)

// warn logs a message, unless it did so less than a minute ago.
func (g *Gossip) warn(kind, msg string, args ...any) {
	now := time.Now()
	g.mu.Lock()
	last, before := g.warned[kind]
	silent := before && now.Sub(last) < warnEvery
	if !silent {
		if len(g.warned) >= maxKinds {
			clear(g.warned)
		}
		g.warned[kind] = now
	}
	g.mu.Unlock()
	if !silent {
		g.cfg.Logger.Warn(msg, args...)
	}
}
