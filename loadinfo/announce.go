package loadinfo

import (
	"context"
	"slices"
	"time"

	"github.com/carom-dpr/carom/internal/beat"
)

// A Transport carries this host's reports to its peers and theirs to the board
// that it was made with. A Broadcaster is one, and so is a gossip.Gossip: who
// chooses between them chooses by a word and treats them alike.
type Transport interface {
	// Run works until the context is done, and returns nil then. It can be called
	// once, and leaves neither a socket open nor a goroutine behind.
	Run(ctx context.Context) error
	// SetKeys changes the keyring at any time; see Keyring.
	SetKeys(k *Keyring)
	// Stats returns the counts so far.
	Stats() Stats
}

// DefaultMinInterval bounds the reports of a host to 20 per second.
const DefaultMinInterval = 50 * time.Millisecond

// A change is large when a count has moved by this many connections and by this
// share: below, the next regular report will do.
const (
	largeCount = 8
	largeShare = 4 // a quarter
)

// Announce calls send with this host's report whenever one is due: once per
// period, give or take a tenth, together with the process's other periodic work if
// that can be, and when much has changed since the last, but least apart. A change
// after a time without any is noticed within half a period. It asks pace for both
// before each, since they may depend on how many hosts there are. It calls Tick
// meanwhile. When the context is done it calls send once more, to say that the host
// drains, so that peers need not wait for its silence, and returns. It is what a
// Transport's Run is made of.
func (b *Board) Announce(ctx context.Context, pace func() (period, least time.Duration), send func(r *Report)) {
	wake := time.NewTimer(0)
	defer wake.Stop()
	var last, seen Report
	due, rest := time.Now(), time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			b.farewell(send)
			return
		case now := <-wake.C:
			b.Tick(now)
			period, least := pace()
			is := b.draft()
			if !now.Before(due) || largeChange(&last, is) {
				if r, ok := b.Report(now); ok {
					r.Period = period
					send(&r)
					last = r
				}
				due = now.Add(next(now, period))
			}
			// An idle host that looked at its counts every time would do little else.
			rest = min(2*rest, period/2)
			if !slices.Equal(is.Services, seen.Services) {
				rest = 0
			}
			rest, seen = max(rest, least), is
			now = time.Now()
			wake.Reset(min(due.Sub(now), max(beat.Wait(now, rest), least)))
		}
	}
}

// farewell tells peers that nothing new should come here.
func (b *Board) farewell(send func(r *Report)) {
	if r, ok := b.Report(time.Now()); ok {
		r.State = Draining
		send(&r)
	}
}

// next returns how long after now the next report is due: a period, give or take a tenth,
// at a beat if one falls there, else nearer to where one will. Beats differ between
// processes, so hosts do not fall into step.
func next(now time.Time, period time.Duration) time.Duration {
	tenth := period / 10
	return max(beat.Wait(now, period+tenth), period-tenth)
}

// largeChange says whether peers should hear of the change from was to is before
// the next report is due.
func largeChange(was *Report, is Report) bool {
	if is.ID != was.ID || is.Boot != was.Boot || is.State != was.State || is.Weight != was.Weight || is.Node != was.Node ||
		!slices.Equal(is.Dialled, was.Dialled) || len(is.Services) != len(was.Services) {
		return true
	}
	for i, s := range is.Services {
		old := was.Services[i]
		if s.ID != old.ID || s.Weight != old.Weight || s.Healthy != old.Healthy ||
			largeMove(s.Conns, old.Conns) || largeMove(s.InFlight, old.InFlight) {
			return true
		}
	}
	return false
}

func largeMove(is, was uint32) bool {
	moved := max(is, was) - min(is, was)
	return moved >= max(largeCount, was/largeShare)
}
