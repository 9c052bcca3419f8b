package resource

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(i int) time.Time { return start.Add(time.Duration(i) * time.Second) }

func TestBeforeSamples(t *testing.T) {
	for _, m := range []Model{&LastValue{}, &EWMA{}, &AR1{}} {
		mean, dev := m.Forecast(at(0))
		require.True(t, math.IsNaN(mean) && math.IsNaN(dev), "%T", m)
		m.Observe(7, at(0))
		mean, _ = m.Forecast(at(9))
		require.InDelta(t, 7, mean, 0, "%T", m)
	}
}

func TestConstant(t *testing.T) {
	for _, m := range []Model{&LastValue{}, &EWMA{}, &AR1{}} {
		for i := range 100 {
			m.Observe(3, at(i))
		}
		mean, dev := m.Forecast(at(120))
		require.InDelta(t, 3, mean, 1e-9, "%T", m)
		if !math.IsNaN(dev) {
			require.InDelta(t, 0, dev, 1e-6, "%T", m)
		}
	}
}

func TestEWMA(t *testing.T) {
	m := &EWMA{Memory: 10 * time.Second}
	m.Observe(0, at(0))
	m.Observe(1, at(10))
	mean, _ := m.Forecast(at(10))
	require.InDelta(t, 1-1/math.E, mean, 1e-12)

	even, odd := &EWMA{}, &EWMA{} // how often it is sampled does not matter
	for i := range 100 {
		even.Observe(1, at(i))
		if i%10 == 0 {
			odd.Observe(1, at(i))
		}
	}
	even.Observe(5, at(110))
	odd.Observe(5, at(110))
	a, _ := even.Forecast(at(110))
	b, _ := odd.Forecast(at(110))
	require.Greater(t, a, 4.0)
	require.Greater(t, b, 4.0)

	rng := rand.New(rand.NewPCG(1, 1))
	noisy := &EWMA{Memory: 1000 * time.Second}
	for i := range 20_000 {
		noisy.Observe(10+2*rng.NormFloat64(), at(i))
	}
	mean, dev := noisy.Forecast(at(20_000))
	require.InDelta(t, 10, mean, 0.3)
	require.InDelta(t, 2, dev, 0.2)
	before := mean
	noisy.Observe(99, at(0)) // a clock that goes back gives a sample no weight
	mean, _ = noisy.Forecast(at(0))
	require.InDelta(t, before, mean, 1e-9)
}

// An Ornstein-Uhlenbeck process, sampled: the forecast is its best one, and its error
// beats the last value's by sqrt((1+r)/2), up to one part in 33.
func TestAR1OfOrnsteinUhlenbeck(t *testing.T) {
	const level, sigma, steps = 40.0, 5.0, 100_000
	for _, r := range []float64{0, 0.2, 0.5, 0.7, 0.9, 0.99} {
		rng := rand.New(rand.NewPCG(7, uint64(1000*r)))
		m := &AR1{Memory: 2000}
		x := level
		var squares, last, claimed float64
		for i := range steps {
			if i > steps/10 {
				forecast, dev := m.Forecast(at(i))
				previous := m.x
				x = level + r*(x-level) + sigma*math.Sqrt(1-r*r)*rng.NormFloat64()
				squares += (forecast - x) * (forecast - x)
				last += (previous - x) * (previous - x)
				claimed += dev * dev
			} else {
				x = level + r*(x-level) + sigma*math.Sqrt(1-r*r)*rng.NormFloat64()
			}
			m.Observe(x, at(i))
		}
		gain, want := math.Sqrt(squares/last), math.Sqrt((1+r)/2)
		t.Logf("r=%.2f: error %.3f of that of the last value, %.3f expected; fitted %.3f", r, gain, want, m.correlation())
		require.InEpsilon(t, want, gain, 0.03, "r=%v", r)
		require.InDelta(t, r, m.correlation(), 0.05)
		require.InEpsilon(t, sigma*math.Sqrt(1-r*r), math.Sqrt(claimed/(steps*9/10)), 0.05, "it knows how wrong it is")
		far, dev := m.Forecast(at(steps + 10_000))
		require.InDelta(t, level, far, 3, "in the end, the level")
		require.InEpsilon(t, sigma, dev, 0.2)
	}
}

func TestAR1NeedsSamples(t *testing.T) {
	m := &AR1{}
	for i := range leastSamples - 1 {
		m.Observe(float64(i), at(i))
	}
	mean, _ := m.Forecast(at(100))
	require.InDelta(t, leastSamples-2, mean, 0, "the last value until then")
	still := &AR1{}
	for range 20 {
		still.Observe(4, at(0)) // no time passes
	}
	mean, _ = still.Forecast(at(1))
	require.InDelta(t, 4, mean, 0)
}
