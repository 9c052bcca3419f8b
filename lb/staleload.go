package lb

import (
	"slices"
	"sort"
	"time"
)

// StaleLoad interprets old reports: it reckons with the connections that must have
// come since, and sends each host what brings all to one level. The own host is
// one among all.
//
// How many have come follows from the cluster's rate of connections. That need not
// be measured: to assume full load, as is the default, costs 2 % at most.
//
// Source: Dahlin, "Interpreting Stale Load Information", IEEE TPDS 11(10), 2000.
//
// It wins where reports are from one to some fifty connection lifetimes old and
// hosts many. With a hundred hosts at load 0.9 and a report period of 10 lifetimes
// the mean response is 4.9 service times with BasicLI and 4.5 with AggressiveLI,
// where two random choices give 5.1 and the lowest in the table 23.5; at 50 it is
// 7.4 and 6.6 against 12.5. It never loses to random choice.
//
// It loses to [HomeOrOther] in redirects, as it sends nearly all connections away,
// and where Service or Period are far from the truth; and to [LeastConnections]
// where reports are fresh.
type StaleLoad struct {
	// Rule is how the connections of a report period are spread. Default BasicLI.
	Rule Interpretation
	// K is how many random hosts are looked at for a connection, at most MaxD, the
	// rate scaled accordingly; 0 means all. With few there is less to compute and
	// less to gain.
	K int
	// Service is the time a host of average weight needs for a connection, if it
	// does nothing else: one over the most it can finish per time. 0 means 1 s.
	Service time.Duration
	// Load is the assumed load, as a share of what the hosts can do. 0 means 1.
	Load float64
	// Period is how often a host reports. 0 means 500 ms.
	Period time.Duration
}

// An Interpretation says how [StaleLoad] spreads connections.
type Interpretation uint8

const (
	// BasicLI spreads the connections of a whole period so that at its end all
	// hosts it reaches are level.
	BasicLI Interpretation = iota
	// AggressiveLI spreads each connection over the hosts that are level now, by
	// the connections that have come since the reports: the lowest alone at first,
	// then the next with it. It needs Snapshot.Taken, to know how time goes on.
	AggressiveLI
	// AgedLI is BasicLI with each report's own age for the period, for hosts that
	// report when they like. As AggressiveLI it needs Snapshot.Taken; with K of 0 it
	// counts the time since then in eighths of a Period, and up to one.
	AgedLI
)

const (
	staleService = time.Second
	stalePeriod  = 500 * time.Millisecond
)

// Build implements [Policy].
func (p StaleLoad) Build(s *Snapshot) Picker {
	q := p.prepare(s)
	if len(q.all) == 0 {
		return stay{}
	}
	if p.K > 0 && p.K < len(q.all) {
		q.k = min(p.K, MaxD)
		return q
	}
	q.levels = q.level(q.all, make(levels, 0, len(q.all)))
	if p.Rule == AggressiveLI {
		return q
	}
	if p.Rule == BasicLI {
		return &random{q.table(0), s.Self}
	}
	for step := range q.steps {
		q.steps[step] = q.table((2*time.Duration(step) + 1) * q.period / (2 * agedSteps))
	}
	return q
}

// table draws from all hosts by their shares at a time since the snapshot.
func (p *staleLoad) table(since time.Duration) alias {
	shares, who := make([]float64, len(p.all)), make([]int32, len(p.all))
	p.shares(p.levels, since, shares)
	for k := range p.levels {
		who[k] = p.levels[k].host
	}
	return newAlias(who, shares)
}

func (p StaleLoad) prepare(s *Snapshot) *staleLoad {
	if p.Load <= 0 {
		p.Load = 1
	}
	if p.Service <= 0 {
		p.Service = staleService
	}
	if p.Period <= 0 {
		p.Period = stalePeriod
	}
	all := ready(s)
	q := &staleLoad{
		rule: p.Rule, all: all, hosts: s.Hosts, self: s.Self, taken: s.Taken, age: meanAge(s, all),
		period: p.Period, rate: p.Load / float64(p.Service),
	}
	for _, i := range all {
		q.scale += float64(s.Hosts[i].Weight)
	}
	q.scale = float64(len(all)) / q.scale
	return q
}

// meanAge is that of the peers' reports.
func meanAge(s *Snapshot, all []int32) time.Duration {
	sum, n := time.Duration(0), time.Duration(0)
	for _, i := range all {
		if int(i) != s.Self {
			sum, n = sum+s.Hosts[i].Age, n+1
		}
	}
	return sum / max(n, 1)
}

type staleLoad struct {
	rule   Interpretation
	all    []int32 // the eligible hosts
	hosts  []Host
	self   int
	k      int
	levels levels  // of all hosts, if k is 0
	scale  float64 // one over the mean weight
	rate   float64 // connections per nanosecond that come to a host of that weight
	period time.Duration
	age    time.Duration // of reports, when the snapshot was taken
	taken  time.Duration
	steps  [agedSteps]alias // of AgedLI, if k is 0: by the time since
}

// agedSteps is how many tables AgedLI makes for a period.
const agedSteps = 8

func (p *staleLoad) Pick(f Flow, now time.Duration) Choice {
	d := draws(f.Conn)
	since := time.Duration(0)
	if p.taken != 0 {
		since = max(now-p.taken, 0)
	}
	if p.k > 0 {
		return to(p.few(since, &d), p.self)
	}
	if p.rule == AgedLI {
		step := min(int64(since*agedSteps/p.period), agedSteps-1)
		return to(p.steps[step].at(d.next()), p.self)
	}
	return to(p.levelled(p.levels, since, &d), p.self)
}

// few chooses among k random hosts.
func (p *staleLoad) few(since time.Duration, d *draws) int {
	var set [MaxD]int32
	var room [MaxD]level
	some := d.subset(p.k, len(p.all), &set)
	for n, k := range some {
		some[n] = p.all[k]
	}
	l := p.level(some, room[:0])
	if p.rule == AggressiveLI {
		return p.levelled(l, since, d)
	}
	return p.draw(l, since, d)
}

// levelled takes one of the hosts that are level by now.
func (p *staleLoad) levelled(l levels, since time.Duration, d *draws) int {
	return l.among(l.reach(p.arrivals(l, p.age+since)), d.unit())
}

// draw takes one of a few hosts by its share.
func (p *staleLoad) draw(l levels, since time.Duration, d *draws) int {
	var shares [MaxD]float64
	sum := 0.0
	p.shares(l, since, shares[:len(l)])
	for _, share := range shares[:len(l)] {
		sum += share
	}
	x := d.unit() * sum
	for k := range l {
		if x -= shares[k]; x < 0 {
			return int(l[k].host)
		}
	}
	return int(l[0].host)
}

// shares sets the part of the connections that each host is to have, before they
// are made to add up to 1.
func (p *staleLoad) shares(l levels, since time.Duration, shares []float64) {
	conns := max(p.arrivals(l, p.period), fewest)
	surface, part := l.surface(conns), 1/conns
	for k := range l {
		if p.rule == AgedLI {
			conns = max(p.arrivals(l, p.hosts[l[k].host].Age+since), fewest)
			surface, part = l.surface(conns), 1/conns
		}
		shares[k] = part * l.share(k, surface)
	}
}

// arrivals is the number of connections that come to the hosts of l in a time.
func (p *staleLoad) arrivals(l levels, over time.Duration) float64 {
	return p.rate * float64(over) * l[len(l)-1].capacities
}

// level sorts the hosts into l, which has room for them. Vessels are written field
// by field: to copy one that was just made in parts stalls a processor's loads.
func (p *staleLoad) level(hosts []int32, l levels) levels {
	for _, i := range hosts {
		h := &p.hosts[i]
		l = l[:len(l)+1]
		v := &l[len(l)-1]
		v.host, v.load, v.capacity = i, float64(h.Estimate()), float64(h.Weight)*p.scale
	}
	l.sort()
	l.sum()
	return l
}

// levels is hosts as vessels of different width and filling, the lowest first, into
// which connections are poured.
type levels []level

type level struct {
	host           int32
	load, capacity float64
	// Sums up to here, and the connections that it takes to bring all the hosts
	// before up to this one's level.
	loads, capacities, cost float64
}

func (l levels) sort() {
	if len(l) > MaxD {
		slices.SortFunc(l, func(a, b level) int { return a.compare(&b) })
		return
	}
	for k := range l { // a few, on the packet path
		for ; k > 0 && l[k].compare(&l[k-1]) < 0; k-- {
			v, w := &l[k], &l[k-1]
			v.host, v.load, v.capacity, w.host, w.load, w.capacity = w.host, w.load, w.capacity, v.host, v.load, v.capacity
		}
	}
}

func (v *level) compare(o *level) int {
	switch a, b := v.load*o.capacity, o.load*v.capacity; {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return int(v.host - o.host)
}

// sum sets the sums.
func (l levels) sum() {
	loads, capacities := 0.0, 0.0
	for k := range l {
		v := &l[k]
		loads, capacities = loads+v.load, capacities+v.capacity
		v.loads, v.capacities = loads, capacities
		v.cost = v.load/v.capacity*capacities - loads
	}
}

// reach returns how many hosts get wet if so many connections are poured.
func (l levels) reach(conns float64) int {
	conns += rounding * (1 + l[len(l)-1].loads)
	return max(1, sort.Search(len(l), func(k int) bool { return l[k].cost > conns }))
}

// fewest is the least number of connections to spread: none at all would leave
// nothing to divide.
const fewest = 1e-3

// surface is the level that the hosts which get wet have at the end.
func (l levels) surface(conns float64) float64 {
	last := &l[l.reach(conns)-1]
	return (last.loads + conns) / last.capacities
}

// share is how many connections go to the k-th host.
func (l levels) share(k int, surface float64) float64 {
	return max(surface*l[k].capacity-l[k].load, 0)
}

// among returns one of the first m hosts by their capacities; x is from 0 to 1.
func (l levels) among(m int, x float64) int {
	k := int(x * float64(m)) // right if capacities are equal
	x *= l[m-1].capacities
	if l[k].capacities <= x || k > 0 && l[k-1].capacities > x {
		k = sort.Search(m-1, func(k int) bool { return l[k].capacities > x })
	}
	return int(l[k].host)
}
