package hostnet

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
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
// that it does not know, and a firewall's reload with tables of nftables. On an interface
// that was deleted and made again under its name it captures anew. Call it once.
func (n *Net) Run(ctx context.Context) error {
	changed := make(chan struct{}, 1)
	var ears sync.WaitGroup
	defer ears.Wait()
	ears.Go(func() { hear(n.changes, changed, func(uint16) bool { return true }) })
	if n.tables != nil {
		ears.Go(func() { hear(n.tables, changed, removesTable) })
	}
	defer n.deafen()
	for {
		n.awaitChange(ctx, changed)
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

// hear tells of the kernel's notices of some types, of those that were lost, and at last
// that the socket is closed, which is when nothing but errors come from it.
func hear(s *nl.NetlinkSocket, changed chan<- struct{}, wanted func(kind uint16) bool) {
	for failed := 0; failed < 2; {
		msgs, _, err := s.Receive()
		if err == nil || err == unix.ENOBUFS {
			failed = 0
		} else {
			failed++
		}
		if err != nil || slices.ContainsFunc(msgs, func(m syscall.NetlinkMessage) bool { return wanted(m.Header.Type) }) {
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}
}

// removesTable reports whether a notice of nftables says that a table went, as all do
// when a ruleset is flushed.
func removesTable(kind uint16) bool {
	return kind == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_DELTABLE
}

// awaitChange returns when something has changed and settled, when nothing has for
// long, or when ctx is done.
func (n *Net) awaitChange(ctx context.Context, changed <-chan struct{}) {
	var deadline <-chan time.Time
	for wait := n.repairAfter; ; wait = settlePeriod {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
			return
		case <-deadline:
			return
		case <-changed:
		}
		if deadline == nil {
			deadline = time.After(maxSettle)
		}
	}
}
