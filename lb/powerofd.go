package lb

import "time"

// PowerOfD compares D distinct hosts and takes the lightest. The own host is
// always one of them, since looking at it and serving there cost nothing; the
// others are drawn at random. It is left only for a gain of more than Threshold.
// A router that serves nothing itself, or that drains, draws all D.
//
// Source: Azar, Broder, Karlin and Upfal, "Balanced Allocations", SIAM J. Comput.
// 29(1), 1999; Mitzenmacher's supermarket model, IEEE TPDS 12(10), 2001.
//
// It wins over one random choice exponentially: with n connections on n hosts the
// fullest gets ln ln n / ln D more than the average instead of ln n / ln ln n. D
// of 3 is best while reports are younger than a few connection lifetimes.
//
// It loses when reports are old and D is large: many choosers then agree on the
// same hosts. D of 2 stays good up to some forty lifetimes.
type PowerOfD struct {
	// D is the number of hosts compared, the own host included; 0 means 2. More
	// than MaxD counts as MaxD, more than there are as all.
	D int
	// Threshold is what leaving the own host must gain, in connections: it needs
	// a peer with more than Threshold fewer. Negative values count as 0.
	Threshold int
}

// MaxD bounds PowerOfD.D, so that a pick needs no memory beyond its stack. Eight
// is far past the point where another choice helps.
const MaxD = 8

// Build implements [Policy].
func (p PowerOfD) Build(s *Snapshot) Picker {
	c := candidatesOf(s)
	return &powerOfD{c, c.others(p.D), margin(p.Threshold)}
}

type powerOfD struct {
	candidates
	draw   int
	margin int64
}

func (p *powerOfD) Pick(f Flow, _ time.Duration) Choice {
	var set [MaxD]int32
	d, best := draws(f.Conn), lightest{host: -1}
	some := d.subset(p.draw, len(p.peers), &set)
	for n, k := range some {
		some[n] = p.peers[k]
	}
	best.offerAll(some, p.hosts, &d)
	return p.settle(&best, p.margin)
}
