package sim

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestQueue puts events in and takes them out at random, beside a sorted list.
func TestQueue(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var q queue
	var list []time.Duration
	for range 20_000 {
		if len(list) == 0 || r.IntN(5) < 3 {
			at := time.Duration(r.IntN(1000))
			q.push(event{at: at, arg: int32(at)})
			i, _ := slices.BinarySearch(list, at)
			list = slices.Insert(list, i, at)
			continue
		}
		e := q.pop()
		require.Equal(t, list[0], e.at)
		require.EqualValues(t, e.at, e.arg)
		list = list[1:]
	}
}

func TestSharingHeap(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var s sharing
	var list []int32
	for i := range int32(2000) {
		x := int32(r.IntN(1000))*10_000 + i
		s.push(end{float64(x), x})
		list = append(list, x)
		if r.IntN(3) == 0 {
			least := slices.Min(list)
			list = slices.DeleteFunc(list, func(y int32) bool { return y == least })
			require.Equal(t, least, s.pop())
		}
	}
}

func TestConns(t *testing.T) {
	c := conns{free: none}
	a, b := c.add(conn{server: 1}), c.add(conn{server: 2})
	c.drop(a)
	require.Equal(t, a, c.add(conn{server: 3}), "places are used again")
	require.EqualValues(t, 3, c.slab[a].server)
	require.EqualValues(t, 2, c.slab[b].server)
}

func TestHistogram(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	var h histogram
	var list []float64
	for range 100_000 {
		x := r.ExpFloat64() * r.ExpFloat64()
		h.add(x)
		list = append(list, x)
	}
	slices.Sort(list)
	for _, q := range []float64{0.01, 0.5, 0.9, 0.99, 0.999} {
		near(t, list[int(q*float64(len(list)))], h.quantile(q), 0.004, "quantile")
	}
	require.Zero(t, new(histogram).quantile(0.5))
}
