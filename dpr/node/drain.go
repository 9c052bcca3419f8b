package node

import (
	"context"
	"time"
)

// drainedEvery is how often Drained looks: as often as the engine brings its counts
// up to date.
const drainedEvery = 100 * time.Millisecond

// Drained returns when what Drain began is complete: the peers have had two report
// periods to hear of it, no connection is left that this host serves, and none that
// was dialled here and that a peer serves, which needs this node as long. If ctx is
// done before, it returns its error. The node and the server must go on meanwhile;
// the server should end connections that are merely kept open, as an http.Server does
// after SetKeepAlivesEnabled(false).
//
// While clients still dial this host it hands them to peers, and that may never end:
// take its address out of the DNS first.
func (n *Node) Drained(ctx context.Context) error {
	tick := time.NewTicker(drainedEvery)
	defer tick.Stop()
	heard := time.Now().Add(joinPeriods * n.cfg.Period)
	for time.Now().Before(heard) || n.needed() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// needed reports whether any connection needs this node: one that this host serves, or
// one that was dialled here and that a peer serves.
func (n *Node) needed() bool {
	for name := range n.Status().Services {
		if n.busy(name) {
			return true
		}
	}
	return false
}
