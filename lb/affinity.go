package lb

import (
	"slices"
	"time"
)

// Affinity has a key choose among its D candidates, which are hosts that the key
// always has: affinity first, balance second. The first candidate serves unless
// another one carries more than Threshold connections less, weights considered.
// The candidates are the owners of D places on a [Ring], or the next ones that are
// distinct. Use it by pointer:
// it keeps the ring until hosts or weights change.
//
// Source: Byers, Considine and Mitzenmacher, "Simple Load Balancing for
// Distributed Hash Tables", IPTPS 2003.
//
// It wins where a client's connections shall meet few servers and no server shall
// be full: two candidates even out nearly as well as two random hosts, while each
// cache sees but a D-th part more of the clients. A host that lost its table finds
// a flow's owner among the candidates, see [Finder]; if a host goes, only those
// keys that had it get another candidate.
//
// It loses to [HomeOrOther] in redirects, since the own host is seldom a
// candidate, and where a single client makes most of the load.
type Affinity struct {
	// D is the number of candidates; 0 means 2. More than MaxD counts as MaxD.
	D int
	// Threshold is what leaving the first candidate must gain, in connections: it
	// needs another one with more than Threshold fewer. Negative values count as 0.
	Threshold int
	// Points is that of [Ring]. 0 means 32: the choice evens out what is left, and
	// with fewer points more of the ring stays in the processor's cache.
	Points int
	// By is what a connection's key is. Default ByConn.
	By Key

	kept kept[*ring]
}

const affinityPoints = 32

// Build implements [Policy].
func (p *Affinity) Build(s *Snapshot) Picker {
	points, m := pointsOr(p.Points, affinityPoints), membersOf(s)
	r := p.kept.get(m, func(m members) *ring { return newRing(m, points) })
	d := p.D
	if d <= 0 {
		d = 2
	}
	d = min(d, MaxD, len(m.list))
	return &affinity{ring: r, hosts: s.Hosts, d: d, margin: margin(p.Threshold), by: p.By, self: s.Self}
}

type affinity struct {
	ring   *ring
	hosts  []Host
	d      int
	margin int64
	by     Key
	self   int
}

func (p *affinity) Pick(f Flow, _ time.Duration) Choice {
	var room [MaxD]int32
	of := p.candidates(f, &room)
	if len(of) == 0 {
		return Choice{}
	}
	d, best := draws(f.Conn), lightest{host: -1}
	best.offerAll(of[1:], p.hosts, &d)
	if best.host >= 0 && best.beats(&p.hosts[of[0]], p.margin) {
		return to(best.host, p.self)
	}
	return to(int(of[0]), p.self)
}

// candidates lists d distinct hosts: for each of d random places the owner of the
// point that comes next, of those that are not in the list yet. If one goes, the
// others stay in the list.
func (p *affinity) candidates(f Flow, room *[MaxD]int32) []int32 {
	of, d := room[:0], draws(p.by.of(f))
	for range p.d {
		at := p.ring.next(d.next())
		for slices.Contains(of, p.ring.points[at].owner) {
			if at++; at == len(p.ring.points) {
				at = 0
			}
		}
		of = append(of, p.ring.points[at].owner)
	}
	return of
}

// Candidates implements [Finder].
func (p *affinity) Candidates(dst []int, f Flow) []int {
	var room [MaxD]int32
	for _, i := range p.candidates(f, &room) {
		dst = append(dst, int(i))
	}
	return dst
}

func (p *affinity) key(f Flow) uint64 { return p.by.of(f) }
