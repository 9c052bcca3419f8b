package hostnet

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// repairPeriod is how long a change can go unnoticed if the kernel's notice of
	// it was lost.
	repairPeriod = 10 * time.Second
	// settlePeriod lets a burst of changes pass before they are looked at: whoever
	// replaces a route removes it first.
	settlePeriod = 100 * time.Millisecond
	// maxSettle ends the wait where changes never cease.
	maxSettle = time.Second
)

// Run keeps rules, routes and alias addresses in place until ctx is done, which is
// no error: it follows changes of the main table's routes and of interfaces' MTUs,
// and puts back what others remove, as systemd-networkd does with rules and routes
// that it does not know. Call it once.
func (n *Net) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, n.changes.Close) // wakes Receive
	defer stop()
	for {
		n.awaitChange(ctx)
		if ctx.Err() != nil {
			return nil
		}
		n.mu.Lock()
		if n.closed {
			n.mu.Unlock()
			return fmt.Errorf("hostnet: Run: %w", os.ErrClosed)
		}
		err := n.syncRouting()
		n.mu.Unlock()
		if err != nil {
			n.cfg.Log.Warn("hostnet: repair failed, will be tried again", "err", err)
		}
	}
}

// awaitChange returns when the kernel's routing has changed and settled, when it
// has not changed for long, or when the socket is closed.
func (n *Net) awaitChange(ctx context.Context) {
	wait, deadline := repairPeriod, time.Time{}
	for ctx.Err() == nil {
		timeout := unix.NsecToTimeval(int64(wait))
		_ = n.changes.SetReceiveTimeout(&timeout) // stores the value, cannot fail
		_, _, err := n.changes.Receive()
		if err != nil && err != unix.ENOBUFS { // nobody has spoken, or closed
			return
		}
		if deadline.IsZero() {
			deadline = time.Now().Add(maxSettle)
		}
		if wait = min(settlePeriod, time.Until(deadline)); wait <= 0 {
			return
		}
	}
}
