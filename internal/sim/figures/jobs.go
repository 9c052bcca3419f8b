package figures

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/gonum/stat"

	"github.com/carom-dpr/carom/internal/sim"
	"github.com/carom-dpr/carom/lb"
)

func concat(lists ...[]jobTable) []jobTable { return slices.Concat(lists...) }

func uniform(d int) func() lb.Policy {
	return func() lb.Policy { return lb.PowerOfD{D: d} }
}

func ring(d, points int, ties lb.Ties) func() lb.Policy {
	return func() lb.Policy { return &lb.Geometric{D: d, Points: points, Ties: ties} }
}

// uniformJobs is a row of a table: shares for 1, 2, ... choices.
func uniformJobs(n, trials, theirs int, shares ...string) []jobTable {
	return jobRow("uniform", n, trials, theirs, false, uniform, shares)
}

func ringJobs(n, trials, theirs int, ties lb.Ties, shares ...string) []jobTable {
	names := [...]string{"smaller", "larger", "left", "random"}
	policy := func(d int) func() lb.Policy { return ring(d, 1, ties) }
	return jobRow("ring, ties "+names[ties], n, trials, theirs, true, policy, shares)
}

func torusJobs(n, trials, theirs int, shares ...string) []jobTable {
	policy := func(d int) func() lb.Policy {
		return func() lb.Policy { return &lb.Geometric{Space: lb.OnTorus, D: d, Ties: lb.ToAny} }
	}
	return jobRow("torus", n, trials, theirs, true, policy, shares)
}

// leftJobs begins with two choices: with one there is no left.
func leftJobs(n, trials, theirs int, shares ...string) []jobTable {
	policy := func(d int) func() lb.Policy {
		return func() lb.Policy { return sim.GoLeft{D: d} }
	}
	return jobRow("uniform, ties left", n, trials, theirs, false, policy, append([]string{""}, shares...))
}

func jobRow(space string, n, trials, theirs int, moving bool, policy func(d int) func() lb.Policy, shares []string) (list []jobTable) {
	for i, s := range shares {
		if s == "" {
			continue
		}
		list = append(list, jobTable{
			source: "§2.2", what: fmt.Sprintf("%s n=2^%d d=%d", space, bits.Len(uint(n))-1, i+1),
			policy: policy(i + 1), hosts: n, conns: n, moving: moving, trials: trials, theirs: theirs, shares: s,
		})
	}
	return list
}

func meanJob(source, what string, hosts, conns, trials int, policy func() lb.Policy, mean, tolerance float64) jobTable {
	return jobTable{
		source: source, what: fmt.Sprintf("%s n=%d m=%d: mean max", what, hosts, conns),
		policy: policy, hosts: hosts, conns: conns, moving: strings.HasPrefix(what, "ring"),
		trials: trials, mean: mean, tolerance: tolerance,
	}
}

func (t jobTable) label() string { return t.source + " " + t.what }

func (t jobTable) run(ctx context.Context, of *runs, seed uint64) (measured, error) {
	j := sim.Jobs{Policy: t.policy, Hosts: t.hosts, Conns: t.conns, Moving: t.moving}
	return of.jobs(ctx, j, t.trials, seed)
}

func (t jobTable) judge(all []measured) []Line {
	if t.shares == "" {
		var got []float64
		for _, m := range all {
			got = append(got, stat.Mean(floats(m.maxLoads), nil))
		}
		return []Line{near(t.source, t.what, t.mean, 0, t.tolerance, got)}
	}
	want := parseShares(t.shares)
	l := Line{Source: t.source, What: t.what + ": % by max", Want: t.shares, Tolerance: "4 σ", OK: true}
	for _, m := range all {
		got := sharesOf(m.maxLoads, slices.Max(slices.Collect(maps.Keys(want))))
		l.Got = append(l.Got, writeShares(got))
		l.OK = l.OK && t.alike(want, got)
	}
	return []Line{l}
}

// alike compares shares of trials, in percent: they may differ by four standard
// errors, and by half a point, to which the figures are rounded or cut.
func (t jobTable) alike(want, got map[int]float64) bool {
	loads := maps.Clone(want)
	maps.Copy(loads, got)
	for load := range loads {
		ours, theirs := float64(t.trials), float64(t.theirs)
		p := (want[load]*theirs + got[load]*ours) / (ours + theirs) / 100
		sigma := 100 * math.Sqrt(p*(1-p)*(1/ours+1/theirs))
		if math.Abs(want[load]-got[load]) > 4*sigma+0.5 {
			return false
		}
	}
	return true
}

// parseShares reads "load:percent ...".
func parseShares(text string) map[int]float64 {
	shares := map[int]float64{}
	for pair := range strings.FieldsSeq(text) {
		load, percent, _ := strings.Cut(pair, ":")
		k, err := strconv.Atoi(load)
		if err != nil {
			panic("figures: " + text)
		}
		if shares[k], err = strconv.ParseFloat(percent, 64); err != nil {
			panic("figures: " + text)
		}
	}
	return shares
}

// sharesOf counts; what is above the last load of a table counts as that, since
// tables close with "or more".
func sharesOf(loads []int, last int) map[int]float64 {
	shares := map[int]float64{}
	for _, k := range loads {
		if len(loads) >= 100 {
			k = min(k, last)
		}
		shares[k] += 100 / float64(len(loads))
	}
	return shares
}

func writeShares(shares map[int]float64) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(shares)) {
		parts = append(parts, fmt.Sprintf("%d:%.1f", k, shares[k]))
	}
	return strings.Join(parts, " ")
}

func floats(list []int) []float64 {
	x := make([]float64, len(list))
	for i, n := range list {
		x[i] = float64(n)
	}
	return x
}
