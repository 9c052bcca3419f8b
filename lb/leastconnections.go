package lb

import (
	"math"
	"time"
)

// LeastConnections hands a connection to the host with the lowest count of all,
// weights considered, unless the own host is within Threshold of it. Each count
// is the host's last report, corrected by what this chooser has handed to it
// since (see [Host.Estimate]).
//
// Source: Aversa and Bestavros, "Load Balancing a Cluster of Web Servers using
// Distributed Packet Rewriting", 1999, whose rule it is but for the correction.
//
// It wins while reports are younger than half a mean connection lifetime, in
// small clusters: with ten hosts at load 0.9 the mean response is 2.5 service
// times at a report period of 0.5 lifetimes, where [HomeOrOther] needs 3.1.
//
// It loses when reports are older or hosts many: every chooser sees the same
// lowest host and all send there. At 5 lifetimes the mean response is 4.8 with
// the correction and 10.2 without, no better than never redirecting; with a
// hundred hosts the correction no longer helps (13.2). A Threshold of 2 repairs
// much of it. Each pick looks at all hosts.
type LeastConnections struct {
	// Threshold is what a redirect must gain, in connections: it needs a peer
	// with more than Threshold fewer. 0 is the rule of the paper: any gain will do,
	// and a tie stays at home. Negative values count as 0.
	Threshold int
}

// Build implements [Policy].
func (p LeastConnections) Build(s *Snapshot) Picker {
	return &leastConnections{candidatesOf(s), margin(p.Threshold)}
}

type leastConnections struct {
	candidates
	margin int64
}

func (p *leastConnections) Pick(f Flow, _ time.Duration) Choice {
	d, best := draws(f.Conn), lightest{host: -1}
	for _, i := range p.peers {
		best.offer(int(i), &p.hosts[i], &d)
	}
	return p.settle(&best, p.margin)
}

// margin is a threshold within the range that settle can multiply by a weight.
func margin(threshold int) int64 {
	return int64(min(max(threshold, 0), math.MaxInt32))
}
