// Package figures checks the simulator, and with it the policies, against figures
// that come from elsewhere: from the literature, from formulas, and from an
// independent program. What is expected stands in tables of its own and is
// compared with what is measured; nothing else reads it.
//
// Where the figures are of choosers that count what they have sent since a report,
// so do the simulated ones. How much better the estimate is that package lb ships
// with, the change of a live count, is shown beside them by [Shipped].
package figures

import (
	"context"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/carom-dpr/carom/internal/sim"
)

// A Line is one expectation, what was measured for each seed, and the verdict.
type Line struct {
	// Source is where the figure is from, What what it is of.
	Source, What string
	// Want is the figure, within Tolerance.
	Want, Tolerance string
	// Got has a value for each seed.
	Got []string
	// OK is whether all of them are within the tolerance.
	OK bool
}

// String returns the line as a row of a table.
func (l Line) String() string {
	verdict := "ok"
	if !l.OK {
		verdict = "WRONG"
	}
	return fmt.Sprintf("%-9s %-44s want %s ± %s, got %s: %s",
		l.Source, l.What, l.Want, l.Tolerance, strings.Join(l.Got, " | "), verdict)
}

// A check is an experiment and what is expected of it.
type check interface {
	// label says what it is about.
	label() string
	// run makes the experiment for one seed, or takes what it gave another check.
	run(ctx context.Context, of *runs, seed uint64) (measured, error)
	// judge compares. There is a measured for each seed.
	judge(all []measured) []Line
}

// measured is what an experiment gave.
type measured struct {
	result   sim.Result
	values   []float64
	maxLoads []int
}

// Check makes all experiments whose label only matches, or all if it is nil, for
// each of so many seeds, writes a line for each
// expectation to w, in order, as soon as it is judged, and returns how many lines
// there were and how many were wrong. It reports its progress as sim.Sweep does.
func Check(ctx context.Context, w io.Writer, seeds int, only *regexp.Regexp, progress func(done float64)) (lines, wrong int, err error) {
	j := &judge{w: w, checks: checks(only), seeds: seeds, progress: progress}
	j.all = make([][]measured, len(j.checks))
	j.left = make([]int, len(j.checks))
	for i := range j.checks {
		j.all[i], j.left[i] = make([]measured, seeds), seeds
	}
	made := new(runs)
	err = sim.Each(ctx, len(j.checks)*seeds, func(ctx context.Context, n int) error {
		m, err := j.checks[n/seeds].run(ctx, made, uint64(n%seeds+1))
		if err == nil {
			err = j.done(n/seeds, n%seeds, m)
		}
		return err
	})
	return j.lines, j.wrong, err
}

// checks lists those whose label only matches.
func checks(only *regexp.Regexp) []check {
	return slices.DeleteFunc(all(), func(c check) bool { return only != nil && !only.MatchString(c.label()) })
}

func all() (list []check) {
	for _, j := range jobTables {
		list = append(list, j)
	}
	list = append(list, hashFigures()...)
	for _, t := range queueTables {
		list = append(list, t.checks()...)
	}
	return append(list, queueFigures()...)
}

// near is the verdict for numbers: all within a share of what is wanted, or within
// least of it where that is more.
func near(source, what string, want, share, least float64, got []float64) Line {
	tolerance := max(math.Abs(want)*share, least)
	l := Line{Source: source, What: what, Want: figure(want), Tolerance: figure(tolerance), OK: true}
	for _, x := range got {
		l.Got = append(l.Got, figure(x))
		l.OK = l.OK && math.Abs(x-want) <= tolerance
	}
	return l
}

// figure writes a number as people do.
func figure(x float64) string {
	switch {
	case math.Abs(x) >= 10:
		return fmt.Sprintf("%.1f", x)
	case math.Abs(x) >= 1:
		return fmt.Sprintf("%.2f", x)
	}
	return fmt.Sprintf("%.3f", x)
}
