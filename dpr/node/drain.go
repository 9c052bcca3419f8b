package node

import (
	"context"
	"time"
)

// drainedEvery is how often Drained looks: as often as the engine brings its counts
// up to date.
const drainedEvery = 100 * time.Millisecond

// Drained returns when what Drain began is complete: the peers have had two report
// periods to hear of it, and no connection is left that this host serves. If ctx is
// done before, it returns its error. The node and the server must go on meanwhile;
// the server should end connections that are merely kept open, as an http.Server does
// after SetKeepAlivesEnabled(false).
//
// Connections that were dialled at this host and that peers serve need its node to
// the end: take its address out of the DNS first, and see Status.Engine.Open.
func (n *Node) Drained(ctx context.Context) error {
	tick := time.NewTicker(drainedEvery)
	defer tick.Stop()
	heard := time.Now().Add(joinPeriods * n.cfg.Period)
	for time.Now().Before(heard) || n.serving() > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// serving returns the number of connections that this host serves.
func (n *Node) serving() (sum int) {
	for _, s := range n.Status().Services {
		sum += s.Conns
	}
	return sum
}
