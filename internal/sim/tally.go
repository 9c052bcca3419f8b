package sim

import (
	"math"
	"time"
)

// A Result is what came of a scenario. Only the time after Scenario.Warm counts,
// for connections that ended in it. Times are in lifetimes.
type Result struct {
	// Scenario is what was played, defaults filled in.
	Scenario Scenario `json:"scenario"`
	// Arrived counts connections that came, Finished those that were served,
	// Redirected those that a chooser sent to another host, Refused those that found
	// no room, and Lost those that died with their host.
	Arrived    uint64 `json:"arrived"`
	Finished   uint64 `json:"finished"`
	Redirected uint64 `json:"redirected"`
	Refused    uint64 `json:"refused"`
	Lost       uint64 `json:"lost"`
	// Share is the share of Arrived that was redirected.
	Share float64 `json:"redirected_share"`
	// Mean and the others are of response times: from the dial to the end.
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p99.9"`
	// InSystem is the mean number of connections at hosts.
	InSystem float64 `json:"in_system"`
	// Imbalance is the standard deviation, over hosts, of connections per speed, and
	// Fullest the most that a host has, both as means over time.
	Imbalance float64 `json:"imbalance"`
	Fullest   float64 `json:"fullest"`
	// Tail has at k the share of hosts with at least k connections.
	Tail []float64 `json:"tail"`
	// Reports counts the datagrams sent, ReportBytes their bytes with IPv4 and UDP
	// headers, ReportRate the bytes per host and lifetime. Where all hosts hear all
	// a datagram is broadcast, else each hearer gets its own. All of the run counts.
	Reports     uint64  `json:"reports"`
	ReportBytes uint64  `json:"report_bytes"`
	ReportRate  float64 `json:"report_rate"`
	// Series is how it went, the beginning included.
	Series []Point `json:"series"`
}

// A Point is the state of the cluster at a time.
type Point struct {
	At float64 `json:"at"`
	// Mean, Deviation and Max are of connections per speed over hosts that are
	// there.
	Mean      float64 `json:"mean"`
	Deviation float64 `json:"deviation"`
	Max       float64 `json:"max"`
}

// tally counts what happens.
type tally struct {
	warm                                         time.Duration
	arrived, redirected, refused, lost, finished uint64
	sum                                          float64
	times                                        histogram
	tail                                         []uint64
	reports, bytes                               uint64
	series                                       []Point

	// The integral of the connections at hosts over time.
	conns   int64
	area    float64
	changed time.Duration
}

// count adds to a counter once the time counts.
func (s *simulation) count(counter *uint64, n uint64) {
	if s.now >= s.tally.warm {
		*counter += n
	}
}

// done counts a connection that ended.
func (t *tally) done(now, took time.Duration) {
	if now < t.warm {
		return
	}
	t.finished++
	t.sum += took.Seconds()
	t.times.add(took.Seconds())
}

// inSystem notes that connections came to hosts or left.
func (s *simulation) inSystem(change int32) {
	t := &s.tally
	if from := max(t.changed, t.warm); s.now > from {
		t.area += float64(t.conns) * (s.now - from).Seconds()
	}
	t.conns, t.changed = t.conns+int64(change), s.now
}

// sample takes a point of the series.
func (s *simulation) sample() {
	sum, squares, most, n := 0.0, 0.0, 0.0, 0.0
	for i := range s.hosts {
		h := &s.hosts[i]
		if h.state == gone {
			continue
		}
		conns := h.conns.Load()
		x := float64(conns) / h.speed
		sum, squares, most, n = sum+x, squares+x*x, max(most, x), n+1
		if s.now >= s.tally.warm {
			s.tally.host(int(conns))
		}
	}
	mean := sum / max(n, 1)
	s.tally.series = append(s.tally.series, Point{
		At: s.now.Seconds(), Mean: mean, Max: most,
		Deviation: math.Sqrt(max(squares/max(n, 1)-mean*mean, 0)),
	})
}

// longTail is where the tail of the distribution of connections is cut.
const longTail = 1000

// host counts a host with so many connections.
func (t *tally) host(conns int) {
	conns = min(conns, longTail)
	for len(t.tail) <= conns {
		t.tail = append(t.tail, 0)
	}
	t.tail[conns]++
}

// result sums up.
func (s *simulation) result() Result {
	s.inSystem(0)
	t := &s.tally
	counted := (s.now - t.warm).Seconds()
	r := Result{
		Scenario: s.sc, Arrived: t.arrived, Finished: t.finished, Redirected: t.redirected,
		Refused: t.refused, Lost: t.lost, Share: float64(t.redirected) / float64(max(t.arrived, 1)),
		Mean: t.sum / float64(max(t.finished, 1)), P50: t.times.quantile(0.5),
		P99: t.times.quantile(0.99), P999: t.times.quantile(0.999), InSystem: t.area / counted,
		Tail: t.shares(), Reports: t.reports, ReportBytes: t.bytes,
		ReportRate: float64(t.bytes) / float64(s.sc.Hosts) / s.now.Seconds(), Series: t.series,
	}
	n := 0.0
	for _, p := range t.series {
		if p.At >= t.warm.Seconds() {
			r.Imbalance, r.Fullest, n = r.Imbalance+p.Deviation, r.Fullest+p.Max, n+1
		}
	}
	r.Imbalance, r.Fullest = r.Imbalance/max(n, 1), r.Fullest/max(n, 1)
	return r
}

// shares turns counts of hosts by connections into shares of those with as many or
// more.
func (t *tally) shares() []float64 {
	shares, sum := make([]float64, len(t.tail)), 0.0
	for k := len(t.tail) - 1; k >= 0; k-- {
		sum += float64(t.tail[k])
		shares[k] = sum
	}
	for k := range shares {
		shares[k] /= sum
	}
	return shares
}

// histogram counts times in buckets that are as wide as a 256th of the power of two
// below them: quantiles are right to 0.4 %.
type histogram struct {
	buckets []uint64
	n       uint64
}

// The mantissa bits that a bucket does not tell apart, and the first bucket, of
// times from 2^-32 on.
const (
	unseenBits  = 52 - 8
	firstBucket = (1023 - 32) << 8
)

func (h *histogram) add(x float64) {
	i := max(int(math.Float64bits(x)>>unseenBits)-firstBucket, 0)
	for len(h.buckets) <= i {
		h.buckets = append(h.buckets, make([]uint64, 256)...)
	}
	h.buckets[i]++
	h.n++
}

// quantile returns the middle of the bucket in which the quantile is.
func (h *histogram) quantile(q float64) float64 {
	rank, seen := uint64(q*float64(h.n)), uint64(0)
	for i, n := range h.buckets {
		if seen += n; seen > rank {
			low := math.Float64frombits(uint64(i+firstBucket) << unseenBits)
			high := math.Float64frombits(uint64(i+firstBucket+1) << unseenBits)
			return (low + high) / 2
		}
	}
	return 0
}
