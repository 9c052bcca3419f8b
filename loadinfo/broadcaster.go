package loadinfo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// DefaultPort is the UDP port of reports: near GUE's 6080, and past 6081, which
// is Geneve's.
const DefaultPort = 6082

// A PacketConn is what a Broadcaster needs of a socket. *net.UDPConn is one; see
// Listen and ListenGroup.
type PacketConn interface {
	// ReadFromUDPAddrPort waits for a datagram and stores as much of it as fits b.
	ReadFromUDPAddrPort(b []byte) (n int, from netip.AddrPort, err error)
	// WriteToUDPAddrPort sends b as a datagram.
	WriteToUDPAddrPort(b []byte, to netip.AddrPort) (n int, err error)
	// Close wakes a Read that waits; it returns net.ErrClosed.
	Close() error
}

// BroadcasterConfig configures a Broadcaster. Zero fields take the defaults that
// they state.
type BroadcasterConfig struct {
	// Board is where own reports come from and others' go. Required.
	Board *Board
	// Conn is the socket, ready for use. Required. Run closes it.
	Conn PacketConn
	// To lists where reports are sent: the broadcast address of a network, a
	// multicast group, peers one by one, or several of these. A peer that hears a
	// report twice takes it once. Required.
	To []netip.AddrPort
	// Period is the time between two reports, give or take a tenth; 0 means
	// DefaultPeriod.
	Period time.Duration
	// MinInterval is the shortest time between two reports, when much changes; 0
	// means DefaultMinInterval.
	MinInterval time.Duration
	// MaxRate bounds what is sent, in bytes per second, with the headers of IPv4 and
	// UDP; 0 means DefaultMaxRate. Reports to many peers one by one become rarer
	// under it, and say so, so that peers do not take rarity for silence.
	MaxRate int
	// Keys tags own reports and verifies those of others; nil means neither.
	Keys *Keyring
	// Logger hears once a minute at most of reports that were refused for a reason
	// that an operator can remove; nil means slog.Default.
	Logger *slog.Logger
}

// maxReadErrors is how many reads may fail in a row before the socket counts as
// broken. Single failures come from ICMP errors on some systems.
const maxReadErrors = 100

// warnEvery is the least time between two warnings in the log.
const warnEvery = time.Minute

// DefaultMaxRate is the default of MaxRate, in bytes per second: half a megabit,
// which no network of servers feels.
const DefaultMaxRate = 64 << 10

// A Broadcaster sends this host's reports and receives those of others.
type Broadcaster struct {
	cfg    BroadcasterConfig
	keys   atomic.Pointer[Keyring]
	to     atomic.Pointer[[]netip.AddrPort]
	length int // of the last report, in bytes
	warned time.Time
	ran    atomic.Bool

	mu    sync.Mutex
	stats Stats
}

var _ Transport = (*Broadcaster)(nil)

// NewBroadcaster returns a broadcaster that does nothing until Run. An error names
// the field of the configuration; the socket is then still the caller's.
func NewBroadcaster(cfg BroadcasterConfig) (*Broadcaster, error) {
	cfg.Period = positive(cfg.Period, DefaultPeriod)
	cfg.MinInterval = positive(cfg.MinInterval, DefaultMinInterval)
	if cfg.MaxRate <= 0 {
		cfg.MaxRate = DefaultMaxRate
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	switch {
	case cfg.Board == nil:
		return nil, errors.New("loadinfo: BroadcasterConfig.Board is nil: make one with NewBoard")
	case cfg.Conn == nil:
		return nil, errors.New("loadinfo: BroadcasterConfig.Conn is nil: open one with Listen")
	case cfg.MinInterval > cfg.Period:
		return nil, fmt.Errorf("loadinfo: BroadcasterConfig.MinInterval %v is above Period %v",
			cfg.MinInterval, cfg.Period)
	}
	b := &Broadcaster{cfg: cfg}
	b.keys.Store(cfg.Keys)
	if err := b.SetTargets(cfg.To); err != nil {
		return nil, err
	}
	return b, nil
}

// SetTargets changes where reports are sent from the next one on; see
// BroadcasterConfig.To. It may be called at any time. On an error nothing changes.
func (b *Broadcaster) SetTargets(to []netip.AddrPort) error {
	if len(to) == 0 {
		return errors.New("loadinfo: BroadcasterConfig.To is empty: want a broadcast address, a group or peers")
	}
	to = slices.Clone(to)
	for i, t := range to {
		if !t.IsValid() || t.Port() == 0 || t.Addr().IsUnspecified() {
			return fmt.Errorf("loadinfo: BroadcasterConfig.To: %q is not an address and port to send to", t)
		}
		to[i] = netip.AddrPortFrom(t.Addr().Unmap(), t.Port())
	}
	b.to.Store(&to)
	return nil
}

// SetKeys changes the keyring from the next report on, for the change of a
// cluster's key. It may be called at any time.
func (b *Broadcaster) SetKeys(k *Keyring) { b.keys.Store(k) }

// Run sends and receives until the context is done, and returns nil then, or an
// error when the socket is broken. Its last report says that this host drains, so
// that peers need not wait for its silence. Run closes the socket, leaves no
// goroutine behind and can be called once: any other call returns an error and does
// nothing.
func (b *Broadcaster) Run(ctx context.Context) error {
	if b.ran.Swap(true) {
		return errors.New("loadinfo: Run was called already: make another Broadcaster")
	}
	working, cancel := context.WithCancelCause(ctx)
	received := make(chan struct{})
	go func() {
		defer close(received)
		if err := b.receive(); ctx.Err() == nil { // who stops may take the network away too
			cancel(err)
		}
	}()
	b.cfg.Board.Announce(working, b.pace, b.send)
	b.cfg.Conn.Close()
	<-received
	cancel(nil)
	if err := context.Cause(working); errors.Is(err, errSocket) {
		return err
	}
	return nil
}

var errSocket = errors.New("loadinfo: the socket for reports is broken")

// pace is the configured one, or slower where that would take more than MaxRate.
func (b *Broadcaster) pace() (period, least time.Duration) {
	perReport := (b.length + udpOverhead) * len(*b.to.Load())
	full := time.Duration(perReport) * time.Second / time.Duration(b.cfg.MaxRate)
	return max(b.cfg.Period, full), max(b.cfg.MinInterval, full)
}

// udpOverhead is what IPv4 and UDP add to a report, in bytes.
const udpOverhead = 28

func (b *Broadcaster) send(r *Report) {
	msg, err := r.Append(make([]byte, 0, MaxReport), b.keys.Load())
	if err != nil { // SetSelf validated it
		b.cfg.Logger.Error("own report cannot be sent", "err", err)
		return
	}
	b.length = len(msg)
	for _, to := range *b.to.Load() {
		_, err := b.cfg.Conn.WriteToUDPAddrPort(msg, to)
		b.count(func(s *Stats) {
			if err != nil {
				s.SendErrors++
				return
			}
			s.Sent++
			s.SentBytes += uint64(len(msg))
		})
	}
}

func (b *Broadcaster) count(f func(s *Stats)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(&b.stats)
}

// Stats returns the counts so far.
func (b *Broadcaster) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stats
}

// receive reads until the socket is closed or broken.
func (b *Broadcaster) receive() error {
	buf := make([]byte, MaxReport+1) // one more shows a datagram that is too long
	for failed := 0; ; {
		n, from, err := b.cfg.Conn.ReadFromUDPAddrPort(buf)
		switch {
		case err == nil:
			failed = 0
			b.take(buf[:n], from, time.Now())
		case errors.Is(err, net.ErrClosed) || failed == maxReadErrors:
			return fmt.Errorf("%w: %w", errSocket, err)
		default:
			failed++
			b.count(func(s *Stats) { s.ReadErrors++ })
		}
	}
}

// take judges one datagram and counts it under what became of it.
func (b *Broadcaster) take(msg []byte, from netip.AddrPort, now time.Time) {
	r, err := ParseReport(msg, b.keys.Load())
	if err == nil {
		err = b.cfg.Board.Receive(r, now)
	}
	b.count(func(s *Stats) { s.Count(err) })
	if Actionable(err) && now.Sub(b.warned) >= warnEvery {
		b.warned = now
		if errors.Is(err, ErrTag) && b.keys.Load() != nil {
			err = fmt.Errorf("%w: its key and ours of the same ID differ: give all hosts the same", err)
		}
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		b.cfg.Logger.Warn("report refused; the host is not heard", "from", from, "id", r.ID, "err", err)
	}
}

// Actionable reports whether a refused report has a cause that an operator can
// remove: a key, a release or a name. The rest is the weather of networks.
func Actionable(err error) bool {
	for _, e := range []error{ErrKey, ErrTag, ErrVersion, ErrConflict, ErrFull} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
