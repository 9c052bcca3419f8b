package lb

import "slices"

// reported returns the hosts with the own one's live count taken from now on: the
// others' counts start at their reports, and what it says of itself besides Conns
// is as old as the snapshot.
func reported(s *Snapshot) *Snapshot {
	own := *s
	if s.Self >= 0 && s.Self < len(s.Hosts) && s.Hosts[s.Self].Live != nil {
		own.Hosts = slices.Clone(s.Hosts)
		h := &own.Hosts[s.Self]
		h.LiveThen = h.Live.Load()
	}
	return &own
}

// A scorer rates hosts by something other than counts of connections.
type scorer interface {
	// score is the less the better the host is; what is not below limit is no host
	// at all.
	score(i int) (score float64)
}

// cheapest returns the host of least score, of the own one and of draw random
// peers, or all of them if draw is negative. A tie stays at home; equal peers are
// equally likely. It returns -1 if no score is below limit.
func (c *candidates) cheapest(f Flow, draw int, limit float64, of scorer) int {
	d, best, least, ties := draws(f.Conn), -1, limit, uint64(0)
	offer := func(i int) {
		switch score := of.score(i); {
		case score < least:
			best, least, ties = i, score, 1
		case score == least && ties > 0:
			if ties++; d.below(ties) == 0 {
				best = i
			}
		}
	}
	if draw < 0 {
		for _, i := range c.peers {
			offer(int(i))
		}
	} else {
		var set [MaxD]int32
		for _, k := range d.subset(draw, len(c.peers), &set) {
			offer(int(c.peers[k]))
		}
	}
	if c.home >= 0 {
		if own := of.score(c.home); own < limit && own <= least {
			return c.home
		}
	}
	return best
}
