package resource

import (
	"math"
	"time"
)

// A Model says what samples of a use mean for the moments after them. Its methods are
// not called by two goroutines at once.
type Model interface {
	// Observe takes a sample; samples come in the order of time.
	Observe(x float64, at time.Time)
	// Forecast returns the expected use at a time after the last sample, and its
	// standard deviation, NaN if the model knows none. Before a sample came, both are
	// NaN.
	Forecast(at time.Time) (mean, deviation float64)
}

// LastValue takes the last sample for the truth: right for what does not flicker,
// such as memory.
type LastValue struct {
	x    float64
	some bool
}

// Observe implements Model.
func (m *LastValue) Observe(x float64, _ time.Time) { m.x, m.some = x, true }

// Forecast implements Model.
func (m *LastValue) Forecast(time.Time) (mean, deviation float64) {
	if !m.some {
		return math.NaN(), math.NaN()
	}
	return m.x, math.NaN()
}

// EWMA averages the samples, each weighted by exp(-age/Memory): right for what
// flickers around a level that moves slowly, such as the use of CPUs. It lags by
// about Memory.
type EWMA struct {
	// Memory is the time after which a sample counts 1/e; 0 means 5 s.
	Memory time.Duration

	mean, square float64 // of x and of (x-mean)
	last         time.Time
	some         bool
}

// ewmaMemory smooths the scheduler's noise and follows a crowd within seconds.
const ewmaMemory = 5 * time.Second

// Observe implements Model.
func (m *EWMA) Observe(x float64, at time.Time) {
	if !m.some {
		m.mean, m.last, m.some = x, at, true
		return
	}
	keep := fade(at.Sub(m.last), m.Memory, ewmaMemory)
	d := x - m.mean
	m.mean += (1 - keep) * d
	m.square = keep * (m.square + (1-keep)*d*d)
	m.last = at
}

// fade is the weight that is left of a sample after d.
func fade(d, memory, def time.Duration) float64 {
	if memory <= 0 {
		memory = def
	}
	return math.Exp(-float64(max(d, 0)) / float64(memory))
}

// Forecast implements Model.
func (m *EWMA) Forecast(time.Time) (mean, deviation float64) {
	if !m.some {
		return math.NaN(), math.NaN()
	}
	return m.mean, math.Sqrt(m.square)
}

// AR1 fits an autoregressive process of order 1, x' - mean = r (x - mean) + noise, to
// evenly spaced samples: right for what returns to its level after each excursion,
// such as a queue. The forecast n periods after the last sample is mean + r^n (x -
// mean), with the deviation s sqrt(1 - r^2n) of an Ornstein-Uhlenbeck process. What it
// gains on LastValue is sqrt((1+r)/2) of the error: much where r is small, nothing
// near 1.
type AR1 struct {
	// Memory is the number of samples after which one counts 1/e; 0 means 200. A
	// correlation takes some hundred samples to be known.
	Memory float64

	n              float64 // samples, faded
	mean, variance float64
	covariance     float64 // of successive samples
	x              float64
	last           time.Time
	period         float64 // between samples, faded mean, in seconds
	samples        int
}

const arMemory = 200

// Observe implements Model.
func (m *AR1) Observe(x float64, at time.Time) {
	memory := m.Memory
	if !(memory > 0) {
		memory = arMemory
	}
	m.n = m.n*math.Exp(-1/memory) + 1
	share := 1 / m.n // like a plain mean at first, like an EWMA later
	before, d := m.x-m.mean, x-m.mean
	m.mean += share * d
	m.variance += share * (d*(x-m.mean) - m.variance)
	if m.samples > 0 {
		m.covariance += share * (before*(x-m.mean) - m.covariance)
		m.period += (at.Sub(m.last).Seconds() - m.period) / float64(min(m.samples, int(memory)))
	}
	m.x, m.last = x, at
	m.samples++
}

// correlation is that of successive samples.
func (m *AR1) correlation() float64 {
	if !(m.variance > 0) {
		return 0
	}
	return min(max(m.covariance/m.variance, 0), 1)
}

// leastSamples is how many it takes before the fit is better than none.
const leastSamples = 10

// Forecast implements Model.
func (m *AR1) Forecast(at time.Time) (mean, deviation float64) {
	switch {
	case m.samples == 0:
		return math.NaN(), math.NaN()
	case m.samples < leastSamples || !(m.period > 0):
		return m.x, math.NaN()
	}
	ahead := max(at.Sub(m.last).Seconds(), 0) / m.period
	r := math.Pow(m.correlation(), ahead)
	return m.mean + r*(m.x-m.mean), math.Sqrt(max(m.variance, 0) * (1 - r*r))
}
