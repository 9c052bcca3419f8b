package resource

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/lb"
	"github.com/carom-dpr/carom/loadinfo"
)

// gauge is a meter that a test sets.
type gauge struct {
	Use
	err error
}

func (g *gauge) Measure(time.Time) (Use, error) { return g.Use, g.err }

// flag is a meter that fails when it is told to, by another goroutine.
type flag struct{ failing atomic.Bool }

func (f *flag) Measure(time.Time) (Use, error) {
	if f.failing.Load() {
		return Use{}, errors.New("no such file")
	}
	return Use{3, 4}, nil
}

func registry(t *testing.T, gauges map[string]*gauge) *Registry {
	t.Helper()
	r := NewRegistry()
	for name, g := range gauges {
		require.NoError(t, r.Add(Resource{Name: name, Unit: "x", Meter: g}))
	}
	return r
}

func TestReadings(t *testing.T) {
	queue, cpu := &gauge{Use: Use{3, 12}}, &gauge{Use: Use{1, 4}}
	r := registry(t, map[string]*gauge{"queue": queue, CPU: cpu})
	for _, x := range r.Readings(at(0)) {
		require.Error(t, x.Err, "not sampled")
		require.InDelta(t, -1, x.Share(), 0)
	}
	r.Sample(at(0))
	list := r.Readings(at(2))
	require.Equal(t, []string{CPU, "queue"}, []string{list[0].Name, list[1].Name})
	require.Equal(t, 2*time.Second, list[1].Age)
	require.InDelta(t, 0.25, list[1].Share(), 0)

	for name, g := range map[string]gauge{
		"a meter that fails":     {err: errors.New("no such file")},
		"a capacity of 0":        {Use: Use{0, 0}},
		"a negative use":         {Use: Use{-1, 1}},
		"a use that is NaN":      {Use: Use{math.NaN(), 1}},
		"a capacity that is NaN": {Use: Use{1, math.NaN()}},
	} {
		*queue = g
		r.Sample(at(3))
		x := r.Readings(at(3))[1]
		require.Error(t, x.Err, name)
		require.InDelta(t, -1, x.Share(), 0, "unknown, never 0: %s", name)
	}
	*queue = gauge{Use: Use{6, 12}}
	r.Sample(at(4))
	require.InDelta(t, 0.5, r.Readings(at(4))[1].Share(), 0, "known again")
	r.Remove("queue")
	require.Len(t, r.Readings(at(4)), 1)
}

func TestLoadFactor(t *testing.T) {
	cpu, net := &gauge{Use: Use{0.5, 1}}, &gauge{Use: Use{0.8, 1}}
	r := registry(t, map[string]*gauge{CPU: cpu, Network: net})
	set := func(demand map[string]float64) {
		require.NoError(t, r.SetService(Service{Name: "www", Demand: demand, Healthy: true}))
	}
	factor := func() float64 {
		r.Sample(at(0))
		f, ok := r.LoadFactor("www", at(0))
		require.True(t, ok)
		return f
	}
	set(map[string]float64{CPU: 0.1, Network: 0.1})
	require.InDelta(t, 0.5, factor(), 1e-12, "max(0.1/0.5, 0.1/0.2)")
	*net = gauge{Use: Use{1, 1}}
	require.True(t, math.IsInf(factor(), 1), "nothing is left")
	set(map[string]float64{CPU: 0.1, Network: 0})
	require.InDelta(t, 0.2, factor(), 1e-12, "which it does not need")
	set(nil)
	require.Zero(t, factor())
	set(map[string]float64{CPU: 1})
	for free, want := range map[float64]float64{3: 1. / 3, 8: 0.125} {
		*cpu = gauge{Use: Use{10 - free, 10}}
		require.InDelta(t, want, factor(), 1e-12)
	}
	*cpu = gauge{err: errors.New("gone")}
	r.Sample(at(0))
	_, ok := r.LoadFactor("www", at(0))
	require.False(t, ok, "unknown")
	set(map[string]float64{"nothing": 1})
	_, ok = r.LoadFactor("www", at(0))
	require.False(t, ok)
	_, ok = r.LoadFactor("mail", at(0))
	require.False(t, ok)
	require.Len(t, r.Services(), 1)
	r.RemoveService("www")
	require.Empty(t, r.Services())
}

func TestErrors(t *testing.T) {
	r := NewRegistry()
	g := &gauge{Use: Use{1, 2}}
	for want, x := range map[string]Resource{
		`Name ""`:                 {Meter: g},
		`Name "seventeen bytes..`: {Name: "seventeen bytes..", Meter: g},
		`Meter of "queue" is nil`: {Name: "queue"},
	} {
		require.ErrorContains(t, r.Add(x), want)
	}
	for i := range loadinfo.MaxNamed {
		require.NoError(t, r.Add(Resource{Name: strings.Repeat("x", i+1), Meter: g}))
	}
	require.ErrorContains(t, r.Add(Resource{Name: "one more", Meter: g}), "room for 8")
	require.NoError(t, r.Add(Resource{Name: "xxx", Meter: g}), "in its place")
	require.NoError(t, r.Add(Resource{Name: Disk, Meter: g}), "which has its own")
	for want, s := range map[string]Service{
		"Name is empty":            {},
		`of "a" on "cpu": -1`:      {Name: "a", Demand: map[string]float64{CPU: -1}},
		`of "a" on "cpu": NaN`:     {Name: "a", Demand: map[string]float64{CPU: math.NaN()}},
		`of "a" on "cpu": +Inf is`: {Name: "a", Demand: map[string]float64{CPU: math.Inf(1)}},
	} {
		require.ErrorContains(t, r.SetService(s), want)
	}
}

func TestPublish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		board := loadinfo.NewBoard(loadinfo.BoardConfig{})
		require.NoError(t, board.SetSelf(loadinfo.Self{ID: "self", Services: []loadinfo.OwnService{{Name: "www"}}}))
		r := registry(t, map[string]*gauge{CPU: {Use: Use{1, 4}}, "queue": {Use: Use{8, 16}}})
		meter := new(flag)
		require.NoError(t, r.Add(Resource{Name: Memory, Meter: meter}))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Run(ctx, board, time.Second) }()
		synctest.Wait()
		said, _ := board.Report(time.Now())
		require.Equal(t, lb.Resources{CPU: 0.25, Memory: 0.75, Disk: -1, Network: -1}, said.Resources)
		require.Equal(t, []loadinfo.NamedResource{{Name: "queue", Used: 0.5, Capacity: 16}}, said.Named)
		later, _ := board.Report(time.Now().Add(time.Second))
		require.Equal(t, time.Second, later.Named[0].Age, "ages go on")
		meter.failing.Store(true)
		<-time.After(1200 * time.Millisecond)
		synctest.Wait()
		require.InDelta(t, -1, board.Snapshot("www", time.Now()).Hosts[0].Load.Memory, 0, "unknown, never 0")
		cancel()
		require.NoError(t, <-done)
	})
}
