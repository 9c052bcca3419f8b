package lb

import (
	"math"
	"slices"
	"time"
)

// Prequal compares D hosts by the hot-cold rule: of those that are not hot, the one
// that answers fastest; if all are hot, the one with the fewest requests in flight.
// A host is hot if it has more in flight than the quantile Q of all hosts has. The
// own host is one of the D, and a tie stays there.
//
// In flight is what the host reported, and what this chooser has handed to it
// since. A host that does not know its latency counts as average.
//
// Source: Wydrowski, Kleinberg, Rumble and Archer, "Load is not what you should
// balance: Introducing Prequal", NSDI 2024. There the hosts are probed; here they
// report, so there is no pool of answers to keep fresh.
//
// It wins where hosts are of different and changing speeds, as on machines shared
// with others: latency shows what no count does, and the tail of response times is
// half that of weighted round robin. Requests in flight warn first, before
// latency rises, so they decide who is out of the question.
//
// It loses where reports are older than latencies last, and is misled by a server
// that fails fast: what is unhealthy must be reported so. For hosts whose speed is
// known, [HomeOrOther] with weights is as good.
type Prequal struct {
	// Q is the quantile, from 0 to 1; useful from 0.6 to 0.9. 0, like NaN, means
	// 0.84, which is 2^-0.25; less than 0 means that nearly all are hot, so that requests in
	// flight decide alone.
	Q float64
	// D is the number of hosts compared, as in [PowerOfD]; 0 means 3.
	D int
}

const (
	prequalQ = 0.84
	prequalD = 3 // the paper's probes per query
)

// Build implements [Policy].
func (p Prequal) Build(s *Snapshot) Picker {
	s = reported(s)
	if p.Q == 0 || math.IsNaN(p.Q) {
		p.Q = prequalQ
	}
	if p.D <= 0 {
		p.D = prequalD
	}
	q := &prequal{candidates: candidatesOf(s), average: averageLatency(s)}
	q.draw = q.others(p.D)
	var flying []int64
	for _, i := range ready(s) {
		flying = append(flying, q.hosts[i].inFlight())
	}
	q.hot = quantile(flying, p.Q)
	return q
}

// quantile returns the value at rank q of n-1, rounded down; it sorts the values.
func quantile(values []int64, q float64) int64 {
	if len(values) == 0 || q < 0 {
		return -1
	}
	slices.Sort(values)
	return values[int(min(q, 1)*float64(len(values)-1))]
}

func averageLatency(s *Snapshot) float64 {
	sum, know := 0.0, 0.0
	for _, i := range ready(s) {
		if l := s.Hosts[i].Latency; l > 0 {
			sum, know = sum+float64(l), know+1
		}
	}
	return sum / max(know, 1)
}

// inFlight estimates the requests that the host works on.
func (h *Host) inFlight() int64 { return max(int64(h.InFlight)+h.since(), 0) }

type prequal struct {
	candidates
	draw    int
	hot     int64 // more in flight is hot
	average float64
}

func (p *prequal) Pick(f Flow, _ time.Duration) Choice {
	i := p.cheapest(f, p.draw, math.Inf(1), p)
	if i == p.home {
		return Choice{}
	}
	return Choice{Do: Send, Host: i}
}

// beyondLatency is above any latency, in nanoseconds; as a power of two its
// multiples are exact.
const beyondLatency = 1 << 63

// score orders cold hosts by latency and hot ones, behind them, by requests.
func (p *prequal) score(i int) float64 {
	h := &p.hosts[i]
	flying := h.inFlight()
	switch {
	case flying > p.hot:
		return beyondLatency * (1 + float64(flying))
	case h.Latency > 0:
		return float64(h.Latency)
	}
	return p.average
}

// ReuseBudget is how many times Prequal uses a probe's answer on average, for those
// who probe hosts instead of reading reports: with n hosts, a pool of so many
// answers, probes sent and answers removed per query, and an allowance delta above
// what keeps the pool from running dry (1 in the paper). It is at least 1, and
// +Inf where the pool fills faster than that.
func ReuseBudget(n, pool int, probes, removed, delta float64) float64 {
	rate := (1-float64(pool)/float64(n))*probes - removed
	if rate <= 0 {
		return math.Inf(1)
	}
	return max(1, (1+delta)/rate)
}
