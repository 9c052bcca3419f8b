package figures

import (
	"bytes"
	"context"
	"math"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/internal/sim"
	"github.com/carom-dpr/carom/lb"
)

// TestTables checks that every cell of every table can be read and simulated.
func TestTables(t *testing.T) {
	list := checks(nil)
	require.Greater(t, len(list), 200)
	for _, c := range list {
		switch c := c.(type) {
		case *queueCheck:
			require.NoError(t, c.scenario.Validate(), c.what)
			require.False(t, math.IsNaN(c.mean), c.what)
		case jobTable:
			require.True(t, (c.shares == "") != (c.mean == 0), c.what)
			sum := 0.0
			for _, percent := range parseShares(c.shares) {
				sum += percent
			}
			if c.shares != "" {
				require.InDelta(t, 100, sum, 0.6, c.what)
			}
		}
	}
}

func TestParseCell(t *testing.T) {
	mean, p99, share := parseCell("2.97[9.9]")
	require.Equal(t, []float64{2.97, 9.9}, []float64{mean, p99})
	require.True(t, math.IsNaN(share))
	mean, p99, share = parseCell("3.44/0.84")
	require.Equal(t, []float64{3.44, 0.84}, []float64{mean, share})
	require.True(t, math.IsNaN(p99))
	require.Panics(t, func() { parseCell("fast") })
}

func TestNear(t *testing.T) {
	require.True(t, near("", "", 2, 0.1, 0, []float64{1.81, 2.19}).OK)
	require.False(t, near("", "", 2, 0.1, 0, []float64{2, 2.21}).OK, "one seed is enough")
	require.True(t, near("", "", 0.1, 0.1, 0.05, []float64{0.14}).OK)
	require.False(t, near("", "", 2, 0.1, 0, []float64{math.NaN()}).OK)
	require.Contains(t, near("", "", 2, 0.1, 0, []float64{3}).String(), "WRONG")
}

// TestSmallChecks makes the quick experiments, with what is expected of them and
// with what is not.
func TestSmallChecks(t *testing.T) {
	judge := func(c check) Line {
		m, err := c.run(context.Background(), new(runs), 1)
		require.NoError(t, err)
		return c.judge([]measured{m})[0]
	}
	p2 := methods["p2"].scenario(10, 0.9, 5, 0)
	p2.Length = 5000
	require.True(t, judge(&queueCheck{scenario: p2, mean: 3.54, p99: math.NaN(), share: math.NaN(), tolerance: 0.1}).OK)
	require.False(t, judge(&queueCheck{scenario: p2, mean: 4.41, p99: math.NaN(), share: math.NaN(), tolerance: 0.1}).OK)
	row := uniformJobs(1<<8, 300, 1000, "", "2:8.2 3:91.8")[0]
	require.True(t, judge(row).OK)
	row.shares = "2:25 3:75"
	require.False(t, judge(row).OK)
	mean := meanJob("", "uniform d=2", 10, 1000, 200, uniform(2), 101.2, 0.5)
	require.True(t, judge(mean).OK)
	mean.mean = 102
	require.False(t, judge(mean).OK)
}

func TestOnly(t *testing.T) {
	list := checks(regexp.MustCompile("^figure 1[26]"))
	require.Len(t, list, 4)
	require.Equal(t, "figure 16 random λ=0.9", list[3].label())
}

// TestOrder checks that lines come in the order of the checks, whichever experiment
// ends first.
func TestOrder(t *testing.T) {
	var out bytes.Buffer
	value := func(name string) check { return &valueCheck{"", []value{{name, 1, 0.1, 0}}, nil} }
	j := &judge{w: &out, checks: []check{value("first"), value("second")}, seeds: 1}
	j.all, j.left = [][]measured{make([]measured, 1), make([]measured, 1)}, []int{1, 1}
	require.NoError(t, j.done(1, 0, measured{values: []float64{2}}))
	require.Zero(t, out.Len())
	require.NoError(t, j.done(0, 0, measured{values: []float64{1}}))
	require.Less(t, strings.Index(out.String(), "first"), strings.Index(out.String(), "second"))
	require.Equal(t, []int{2, 1}, []int{j.lines, j.wrong})
}

func TestContinuous(t *testing.T) {
	sc := sim.Scenario{Period: 5}
	continuous(&sc)
	require.InDelta(t, 5, sc.Delay+sc.Period/2, 1e-9, "the mean age of what is seen")
}

// TestRuns checks that figures of one experiment share it, and others do not.
func TestRuns(t *testing.T) {
	r, made := new(runs), 0
	get := func(name string) float64 {
		m, err := r.of(name, func() (measured, error) {
			made++
			return measured{values: []float64{float64(made)}}, nil
		})
		require.NoError(t, err)
		return m.values[0]
	}
	require.Equal(t, []float64{1, 2, 1}, []float64{get("a"), get("b"), get("a")})
	require.Equal(t, 2, made)

	short := jobTable{policy: uniform(2), hosts: 10, conns: 10, trials: 3}
	other := short
	other.policy = uniform(3)
	for _, c := range []check{short, short, other, jobTable{policy: ring(2, 1, lb.ToAny), hosts: 10, conns: 10, trials: 3}} {
		_, err := c.run(context.Background(), r, 1)
		require.NoError(t, err)
	}
	require.Len(t, r.made, 2+3)
	for _, seed := range []uint64{1, 2, 1} {
		_, err := r.queues(context.Background(), sim.Scenario{Hosts: 2, Length: 1, Seed: seed})
		require.NoError(t, err)
	}
	require.Len(t, r.made, 2+3+2)
}
