package gossip

import (
	"sync"
	"time"
)

// budget is a token bucket of bytes. What must be sent may overdraw it; what can
// wait asks first. It is never overdrawn by more than a second's worth: a seed that two
// hundred hosts join at once tells each of them everything, megabytes, and would then
// have no reports to send for minutes, so that all took it for dead.
type budget struct {
	perSecond float64

	mu   sync.Mutex
	left float64 // up to one second's worth
	at   time.Time
}

// spend takes n bytes.
func (b *budget) spend(n int, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill(now)
	b.left = max(b.left-float64(n), -b.perSecond)
}

// open reports whether there is anything left.
func (b *budget) open(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill(now)
	return b.left > 0
}

func (b *budget) refill(now time.Time) {
	if b.at.IsZero() {
		b.left = b.perSecond
	} else if passed := now.Sub(b.at); passed > 0 {
		b.left = min(b.left+passed.Seconds()*b.perSecond, b.perSecond)
	}
	b.at = now
}
