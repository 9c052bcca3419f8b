package lb

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// SlowStart lets hosts that just came warm up: any other policy chooses, and of
// what it would give to a young host, only a part gets there; the rest is chosen
// among the settled hosts. Use it by pointer: it remembers who is young.
//
// A host is young for Window after it came, and from then on until it carries, for
// its weight, what the average host does: otherwise a policy that looks for the
// lowest count would flood it when the window ends. Meanwhile the host gets, of
// the connections that this chooser sees, at most Share times its part by weight,
// times a factor that grows from Floor to 1 over Window (give or take four
// connections); clients that dial the host itself are served there in any case. One
// young host's part does not depend on another one's.
//
// Policies that hash need no bound, but a ramp: of the keys that shall be the
// host's, the share that has moved there grows with the factor, each key moves
// once, and all choosers agree.
//
// The factor is relative to the average of all hosts, so that a cluster which
// starts as a whole has no slow start.
//
// Source: the slow start mode of Envoy, whose formula the factor is, and which as a
// weight alone does not hold back a policy that compares counts (envoyproxy/envoy
// 11050, 26290); the bound is the generic cell rate algorithm of ITU-T I.371,
// counting connections instead of time.
//
// It wins where servers start cold: caches, compilers at run time, pools of
// connections. It loses time where they do not: the others carry what the young
// host could.
type SlowStart struct {
	// Policy chooses. Required; see [Validate].
	Policy Policy
	// Settled chooses among the settled hosts. It should be a policy like Policy,
	// but one of its own if that is used by pointer. nil means Policy.
	Settled Policy
	// Window is how long a host is young. 0 means 60 s.
	Window time.Duration
	// Aggression bends the ramp: above 1 it is steep at first, below at the end.
	// 0 means 1, a straight line.
	Aggression float64
	// Floor is where the ramp starts, from 0 to 1. 0 means 0.1.
	Floor float64
	// Share is the bound, in parts of what the host would have by its weight. 0
	// means 2, which is what two random choices would give it at most.
	Share float64

	mu    sync.Mutex
	young map[string]*pace
	picks atomic.Int64
}

const (
	slowWindow = time.Minute
	slowFloor  = 0.1
	slowShare  = 2
	// warm is the factor at which a host counts as settled: so much difference
	// there is between hosts that start together.
	warm = 0.9
)

// Build implements [Policy].
func (p *SlowStart) Build(s *Snapshot) Picker {
	q := &slowStart{full: p.Policy.Build(s), picks: &p.picks, self: s.Self}
	keyed, hashes := q.full.(keyer)
	factors := p.factors(s)
	if hashes {
		q.young = movers(s, factors)
	} else {
		q.young = p.paced(s, factors)
	}
	others := q.without(s)
	if q.young == nil || len(ready(others)) == 0 {
		return q.full
	}
	settled := p.Settled
	if settled == nil {
		settled = p.Policy
	}
	q.settled = settled.Build(others)
	if hashes {
		return &slowKeys{*q, keyed}
	}
	return q
}

// A keyer is a picker that hashes.
type keyer interface{ key(f Flow) uint64 }

// ramp is the factor of a host that came so long ago, alone.
func (p *SlowStart) ramp(since time.Duration) float64 {
	window, aggression, floor := p.Window, p.Aggression, p.Floor
	if window <= 0 {
		window = slowWindow
	}
	if aggression <= 0 {
		aggression = 1
	}
	if floor <= 0 {
		floor = slowFloor
	}
	if since <= 0 || since >= window {
		return 1
	}
	return max(floor, math.Pow(float64(since)/float64(window), 1/aggression))
}

// factors returns each host's factor, relative to the average of those eligible.
func (p *SlowStart) factors(s *Snapshot) []float64 {
	all, sum := ready(s), 0.0
	for _, i := range all {
		sum += p.ramp(s.Hosts[i].Since)
	}
	average := sum / float64(len(all))
	factors := make([]float64, len(s.Hosts))
	for i := range factors {
		factors[i] = min(1, p.ramp(s.Hosts[i].Since)/average)
	}
	return factors
}

// A youngster is what a picker knows of a young host; the zero value is a settled one.
type youngster struct {
	pace     *pace
	interval int64  // between two of its connections, in parts of a pick
	seed     uint64 // for the policies that hash: the host's
	share    uint64 // the keys that have moved to it, of 2^64
}

// movers lists the young hosts for policies that hash, nil if there are none.
func movers(s *Snapshot, factors []float64) (young []youngster) {
	for _, i := range ready(s) {
		if factors[i] >= warm || int(i) == s.Self {
			continue
		}
		if young == nil {
			young = make([]youngster, len(s.Hosts))
		}
		n := numbers(s.Hosts[i].ID)
		young[i] = youngster{seed: ^n.next(), share: uint64(factors[i] * (1 << 63) * 2)}
	}
	return young
}

// paced lists the young hosts for the others, nil if there are none.
func (p *SlowStart) paced(s *Snapshot, factors []float64) (young []youngster) {
	p.mu.Lock()
	defer p.mu.Unlock()
	conns, weight := 0.0, 0.0
	all, still := ready(s), map[string]*pace{}
	for _, i := range all {
		conns, weight = conns+float64(s.Hosts[i].Estimate()), weight+float64(s.Hosts[i].Weight)
	}
	share := p.Share
	if share <= 0 {
		share = slowShare
	}
	for _, i := range all {
		h := &s.Hosts[i]
		has, known := p.young[h.ID]
		behind := float64(h.Estimate())*weight < conns*float64(h.Weight)
		if int(i) == s.Self || factors[i] >= warm && !(known && behind) {
			continue
		}
		if !known {
			has = new(pace)
		}
		if young == nil {
			young = make([]youngster, len(s.Hosts))
		}
		still[h.ID] = has
		young[i] = youngster{pace: has, interval: int64(pick * weight / (share * factors[i] * float64(h.Weight)))}
	}
	p.young = still
	return young
}

// without returns the snapshot with the young hosts not eligible.
func (p *slowStart) without(s *Snapshot) *Snapshot {
	t := *s
	t.Hosts = append([]Host(nil), s.Hosts...)
	for i := range p.young {
		if p.young[i] != (youngster{}) {
			t.Hosts[i].Flags |= Unhealthy
		}
	}
	return &t
}

// A pace spaces the connections of a young host.
type pace struct {
	next atomic.Int64 // when the next one would be due, in parts of a pick
}

const (
	pick = 1 << 16 // parts: a host may have one connection in several thousand
	// burst is how many connections a host may have ahead of its pace: chance
	// bunches them, and less would turn away from hosts that are within bounds.
	burst = 4
)

// allow counts a connection at a time if the pace permits it. If another goroutine
// counts one at the same moment, it does not.
func (p *pace) allow(at, interval int64) bool {
	due := p.next.Load()
	if due-(burst-1)*interval > at {
		return false
	}
	return p.next.CompareAndSwap(due, max(due, at)+interval)
}

type slowStart struct {
	full, settled Picker
	young         []youngster // by host
	picks         *atomic.Int64
	self          int
}

func (p *slowStart) Pick(f Flow, now time.Duration) Choice {
	at := p.picks.Add(1) * pick
	c := p.full.Pick(f, now)
	if c.Do == Send {
		if y := &p.young[c.Host]; y.pace != nil && !y.pace.allow(at, y.interval) {
			f.Conn = ^f.Conn // the draws that led here would lead to the host's neighbours
			return p.settled.Pick(f, now)
		}
	}
	return c
}

// slowKeys is slowStart for policies that hash.
type slowKeys struct {
	slowStart
	keyer
}

func (p *slowKeys) Pick(f Flow, now time.Duration) Choice {
	c := p.full.Pick(f, now)
	if c.Do == Send {
		if y := &p.young[c.Host]; y.seed != 0 && scramble(p.key(f)^y.seed) >= y.share {
			return p.settled.Pick(f, now)
		}
	}
	return c
}

// Candidates implements [Finder], if the policy does.
func (p *slowKeys) Candidates(dst []int, f Flow) []int {
	for _, of := range []Picker{p.full, p.settled} {
		if finder, ok := of.(Finder); ok {
			dst = finder.Candidates(dst, f)
		}
	}
	return dst
}
