package lb

import (
	"cmp"
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
	q.fill()
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
	shares := make([]float64, len(p.all))
	p.shares(p.levels, p.all, since, shares)
	return newAlias(p.all, shares)
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
	q := &staleLoad{
		rule: p.Rule, all: ready(s), hosts: s.Hosts, self: s.Self, taken: s.Taken,
		period: p.Period, rate: p.Load / float64(p.Service),
	}
	weights, age, peers := 0.0, time.Duration(0), time.Duration(0)
	for _, i := range q.all {
		weights += float64(s.Hosts[i].Weight)
		if int(i) != s.Self {
			age, peers = age+s.Hosts[i].Age, peers+1
		}
	}
	q.scale, q.age = float64(len(q.all))/weights, age/max(peers, 1)
	return q
}

type staleLoad struct {
	rule   Interpretation
	all    []int32 // the eligible hosts; in the order of levels, if k is 0
	hosts  []Host
	self   int
	k      int
	levels levels  // of all hosts, if k is 0
	scale  float64 // one over the mean weight
	rate   float64 // connections per nanosecond that come to a host of that weight
	period time.Duration
	age    time.Duration // of the peers' reports on average, when the snapshot was taken
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
	return to(p.levelled(p.levels, p.all, since, &d), p.self)
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
		return p.levelled(l, some, since, d)
	}
	return p.draw(l, some, since, d)
}

// levelled takes one of the hosts that are level by now.
func (p *staleLoad) levelled(l levels, hosts []int32, since time.Duration, d *draws) int {
	return int(hosts[l.among(l.reach(p.arrivals(l, p.age+since)), d.unit())])
}

// draw takes one of a few hosts by its share.
func (p *staleLoad) draw(l levels, hosts []int32, since time.Duration, d *draws) int {
	var shares [MaxD]float64
	sum := 0.0
	p.shares(l, hosts, since, shares[:])
	for _, share := range shares[:len(hosts)] {
		sum += share
	}
	x := d.unit() * sum
	for at, i := range hosts {
		if x -= shares[at]; x < 0 {
			return int(i)
		}
	}
	return int(hosts[l[0].first])
}

// shares sets the part of the connections that each host is to have, before they
// are made to add up to 1.
func (p *staleLoad) shares(l levels, hosts []int32, since time.Duration, shares []float64) {
	conns := max(p.arrivals(l, p.period), fewest)
	surface := l.surface(conns)
	for k := range l {
		for at := l[k].first; at < l[k].first+l[k].hosts; at++ {
			if p.rule == AgedLI {
				conns = max(p.arrivals(l, p.hosts[hosts[at]].Age+since), fewest)
				surface = l.surface(conns)
			}
			shares[at] = l[k].share(surface) / conns
		}
	}
}

// arrivals is the number of connections that come to the hosts of l in a time.
func (p *staleLoad) arrivals(l levels, over time.Duration) float64 {
	return p.rate * float64(over) * l[len(l)-1].capacities
}

// level puts each of a few hosts into l, which has room for them, on the packet path.
// Vessels are written field by field: to copy one that was just made in parts stalls a
// processor's loads.
func (p *staleLoad) level(hosts []int32, l levels) levels {
	for at, i := range hosts {
		h := &p.hosts[i]
		l = l[:len(l)+1]
		v := &l[len(l)-1]
		v.load, v.capacity, v.first, v.hosts = float64(h.Estimate()), float64(h.Weight)*p.scale, int32(at), 1
	}
	for k := range l {
		for ; k > 0 && l[k].compare(&l[k-1]) < 0; k-- {
			v, w := &l[k], &l[k-1]
			v.load, v.capacity, v.first, w.load, w.capacity, w.first = w.load, w.capacity, w.first, v.load, v.capacity, v.first
		}
	}
	l.sum()
	return l
}

// fill makes the levels of all hosts, and puts these in the order of their levels.
func (p *staleLoad) fill() {
	l, of := p.alike()
	order := make([]int32, len(l)) // of the levels
	for g := range order {
		order[g] = int32(g)
	}
	slices.SortFunc(order, func(a, b int32) int { return l[a].compare(&l[b]) })
	first := int32(0)
	for _, g := range order {
		l[g].first = first
		first += l[g].hosts
		p.levels = append(p.levels, l[g])
	}
	sorted := make([]int32, len(p.all))
	for at, g := range of {
		sorted[l[g].first] = p.all[at]
		l[g].first++
	}
	p.all = sorted
	p.levels.sum()
}

// alike makes a level of all hosts of one load and weight, and says of each host
// which one is its.
func (p *staleLoad) alike() (l levels, of []int32) {
	type kind struct {
		load   int64
		weight uint16
	}
	found := map[kind]int32{}
	var seen [256]struct { // what was found last, by a hash: it spares most looks into the map
		kind
		level int32
	}
	of = make([]int32, len(p.all))
	for at, i := range p.all {
		is := kind{p.hosts[i].Estimate(), p.hosts[i].Weight}
		last := &seen[(uint64(is.load)<<16|uint64(is.weight))*0x9e3779b97f4a7c15>>56]
		if last.kind != is {
			g, known := found[is]
			if !known {
				g = int32(len(l))
				found[is], l = g, append(l, level{load: float64(is.load), capacity: float64(is.weight) * p.scale})
			}
			last.kind, last.level = is, g
		}
		of[at] = last.level
		l[last.level].hosts++
	}
	return l, of
}

// levels is hosts as vessels of different width and filling, the lowest first, into
// which connections are poured. Vessels that are alike can be one level: of ten
// thousand hosts there are a few dozen.
type levels []level

type level struct {
	load, capacity float64 // of each of its hosts
	first, hosts   int32   // where they begin in the list of hosts, and how many they are
	// Sums up to here, and the connections that it takes to bring all the hosts
	// before up to this level.
	loads, capacities, cost float64
}

func (v *level) compare(o *level) int {
	switch a, b := v.load*o.capacity, o.load*v.capacity; {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return cmp.Compare(v.load, o.load)
}

// sum sets the sums.
func (l levels) sum() {
	loads, capacities := 0.0, 0.0
	for k := range l {
		v := &l[k]
		loads += v.load * float64(v.hosts)
		capacities += v.capacity * float64(v.hosts)
		v.loads, v.capacities = loads, capacities
		v.cost = v.load/v.capacity*capacities - loads
	}
}

// reach returns how many levels get wet if so many connections are poured.
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

// share is how many connections go to each host of the level.
func (v *level) share(surface float64) float64 {
	return max(surface*v.capacity-v.load, 0)
}

// among returns where one of the hosts of the first m levels is in the list, by their
// capacities; x is from 0 to 1.
func (l levels) among(m int, x float64) int32 {
	x *= l[m-1].capacities
	k := sort.Search(m-1, func(k int) bool { return l[k].capacities > x })
	if k > 0 {
		x -= l[k-1].capacities
	}
	return l[k].first + min(int32(x/l[k].capacity), l[k].hosts-1)
}
