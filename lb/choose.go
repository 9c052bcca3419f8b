package lb

import (
	"cmp"
	"math/bits"
)

// candidates is what the policies that compare counts keep of a snapshot: the
// hosts that may get a new connection.
type candidates struct {
	hosts []Host
	home  int     // the chooser's own host, or -1 if that may not get one
	peers []int32 // the others, in the snapshot's order
}

func candidatesOf(s *Snapshot) candidates {
	c := candidates{hosts: s.Hosts, home: -1, peers: make([]int32, 0, len(s.Hosts))}
	for i := range s.Hosts {
		switch {
		case !s.Hosts[i].Eligible():
		case i == s.Self:
			c.home = i
		default:
			c.peers = append(c.peers, int32(i))
		}
	}
	return c
}

// others returns how many peers are to be drawn so that d hosts are compared, the
// own host, where it may serve, among them. 0 means two; MaxD bounds it.
func (c *candidates) others(d int) int {
	if d <= 0 {
		d = 2
	}
	d = min(d, MaxD)
	if c.home >= 0 {
		d--
	}
	return min(d, len(c.peers))
}

// to is the choice of host i, where negative means that there is none.
func to(i, self int) Choice {
	if i < 0 || i == self {
		return Choice{}
	}
	return Choice{Do: Send, Host: i}
}

// settle answers with best, or with the own host unless that carries, for its
// weight, more than margin connections above best. Without an eligible own host
// any peer is better; without a peer the connection stays.
func (c *candidates) settle(best *lightest, margin int64) Choice {
	if best.host < 0 {
		return Choice{}
	}
	if c.home >= 0 && !best.beats(&c.hosts[c.home], margin) {
		return Choice{}
	}
	return Choice{Do: Send, Host: best.host}
}

// lightest keeps the host with the least load for its weight of those offered to
// it. The load includes the connection to be placed, as in the shortest expected
// delay rule of IPVS (ip_vs_sed.c): an idle small host then does not look as
// good as an idle large one.
type lightest struct {
	host         int // -1: none yet
	load, weight int64
	ties         uint64
}

// offer takes host i in if it is lighter than what there is. Of k hosts that are
// equal each is kept with probability 1/k (reservoir sampling), so that neither
// the first nor the last of several idle hosts gets everything.
func (l *lightest) offer(i int, h *Host, d *draws) { l.take(i, h.Estimate(), h, d) }

// offerAll offers several hosts. It looks at the counts of all before it compares any:
// with many hosts these are far from the processor, and what it waits for overlaps.
func (l *lightest) offerAll(list []int32, hosts []Host, d *draws) {
	var counts [MaxD]int64
	for k, i := range list {
		counts[k] = hosts[i].Estimate()
	}
	for k, i := range list {
		l.take(int(i), counts[k], &hosts[i], d)
	}
}

func (l *lightest) take(i int, conns int64, h *Host, d *draws) {
	load, weight := conns+1, int64(h.Weight)
	switch order := l.order(load, weight); {
	case order < 0:
		*l = lightest{host: i, load: load, weight: weight, ties: 1}
	case order == 0:
		if l.ties++; d.below(l.ties) == 0 {
			l.host, l.load, l.weight = i, load, weight
		}
	}
}

// order is negative if load is the lighter one for its weight, 0 if equal.
func (l *lightest) order(load, weight int64) int {
	if l.host < 0 {
		return -1
	}
	// load/weight against l.load/l.weight: at most 2^33 times 2^16, exact.
	return cmp.Compare(load*l.weight, l.load*weight)
}

// beats reports whether h carries, for its weight, more than margin connections
// above what l has.
func (l *lightest) beats(h *Host, margin int64) bool {
	return l.load*int64(h.Weight) < (h.Estimate()+1-margin)*l.weight
}

// draws is a stream of pseudo-random numbers that starts from a flow's hash: the
// splitmix64 generator (Steele, Lea and Flood, OOPSLA 2014).
type draws uint64

func (d *draws) next() uint64 {
	*d += 0x9e3779b97f4a7c15
	z := uint64(*d)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// below returns a number from 0 to n-1. Its bias, n/2^64, cannot be seen.
func (d *draws) below(n uint64) uint64 {
	hi, _ := bits.Mul64(d.next(), n)
	return hi
}

// unit returns a number between 0 and 1, both excluded.
func (d *draws) unit() float64 { return unit(d.next()) }

func unit(x uint64) float64 { return (float64(x>>11) + 0.5) / (1 << 53) }

// subset draws k distinct numbers from 0 to n-1 and returns them in set; every
// subset is as likely as any other (Floyd; Bentley, CACM 30(9), 1987). k is at
// most n and at most MaxD.
func (d *draws) subset(k, n int, set *[MaxD]int32) []int32 {
	got := set[:0]
	for top := n - k; top < n; top++ {
		x := int32(d.below(uint64(top) + 1))
		for _, y := range got {
			if x == y {
				x = int32(top)
				break
			}
		}
		got = append(got, x)
	}
	return got
}
