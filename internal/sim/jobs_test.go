package sim

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/lb"
)

func TestMaxLoad(t *testing.T) {
	j := Jobs{Policy: func() lb.Policy { return new(lb.RoundRobin) }, Hosts: 10, Conns: 95}
	require.Equal(t, []int{10, 10, 10}, MaxLoad(j, 3, 1))
	j = Jobs{Policy: func() lb.Policy { return lb.Random{} }, Hosts: 2, Conns: 1000}
	for _, most := range MaxLoad(j, 100, 1) {
		require.InDelta(t, 500, most, 5*math.Sqrt(250))
	}
	require.Equal(t, MaxLoad(j, 5, 1), MaxLoad(j, 5, 1))
	require.NotEqual(t, MaxLoad(j, 5, 1), MaxLoad(j, 5, 2))
}

// TestMoving checks that hosts have other places in each trial.
func TestMoving(t *testing.T) {
	j := Jobs{Policy: func() lb.Policy { return &lb.Ring{Points: 1} }, Hosts: 20, Conns: 20_000}
	fixed := MaxLoad(j, 10, 1)
	require.Less(t, float64(slices.Max(fixed)), 1.1*float64(slices.Min(fixed)), "the same arc each time")
	j.Moving = true
	moving := MaxLoad(j, 10, 1)
	require.Greater(t, float64(slices.Max(moving)), 1.1*float64(slices.Min(moving)))
}

func TestGoLeft(t *testing.T) {
	with := func(p lb.Policy) (sum int) {
		for _, most := range MaxLoad(Jobs{Policy: func() lb.Policy { return p }, Hosts: 256, Conns: 256}, 200, 1) {
			sum += most
		}
		return sum
	}
	require.Less(t, with(GoLeft{D: 2}), with(lb.PowerOfD{D: 2}))
}

func TestDisruption(t *testing.T) {
	moved, needless := Disruption(lb.Rendezvous{}, 20, 2, 20_000, 1)
	require.InDelta(t, 0.1, moved, 0.01)
	require.Zero(t, needless, "exactly the keys of those that went")
	_, needless = Disruption(new(lb.Maglev), 20, 2, 20_000, 1)
	require.Positive(t, needless)
}

func TestLargestShare(t *testing.T) {
	require.InDelta(t, 0.1, LargestShare(new(lb.Maglev), 10, 100_000, 1), 0.005)
}

func TestSweep(t *testing.T) {
	list := []Scenario{{Hosts: 2, Length: 200}, {Hosts: 4, Length: 200}, {Hosts: 8, Length: 200}}
	seen := 0.0
	results, err := Sweep(context.Background(), list, func(done float64) {
		require.GreaterOrEqual(t, done, seen-1e-9)
		seen = done
	})
	require.NoError(t, err)
	require.InDelta(t, 1, seen, 1e-9)
	for i, r := range results {
		require.Equal(t, run(t, list[i]), r, "as if it had run alone")
	}
	_, err = Sweep(context.Background(), []Scenario{{Hosts: 2}, {Policy: "?"}}, nil)
	require.ErrorContains(t, err, "no policy")
}

func TestEachStops(t *testing.T) {
	broken, calls := errors.New("broken"), atomic.Int64{}
	err := Each(context.Background(), 1000, func(_ context.Context, i int) error {
		calls.Add(1)
		if i == 3 {
			return broken
		}
		return nil
	})
	require.ErrorIs(t, err, broken)
	require.NoError(t, Each(context.Background(), 0, nil))
}
