package sim

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func run(t testing.TB, sc Scenario) Result {
	t.Helper()
	r, err := Run(context.Background(), sc, nil)
	require.NoError(t, err)
	return r
}

// near requires two numbers to differ by no more than a share of the first.
func near(t *testing.T, want, got, share float64, what string) {
	t.Helper()
	require.LessOrEqual(t, math.Abs(got-want), share*math.Abs(want), "%s: want %.4g, got %.4g", what, want, got)
}

// erlangC is the probability that a connection waits in an M/M/n queue.
func erlangC(n int, load float64) float64 {
	a, term, sum := load*float64(n), 1.0, 0.0
	for k := range n {
		sum += term
		term *= a / float64(k+1)
	}
	last := term / (1 - load)
	return last / (sum + last)
}

// erlangB is the probability that an M/M/n/n queue is full.
func erlangB(n int, a float64) float64 {
	b := 1.0
	for k := 1; k <= n; k++ {
		b = a * b / (float64(k) + a*b)
	}
	return b
}

// TestClosedForms checks the simulator against queues that are solved.
func TestClosedForms(t *testing.T) {
	alone := Scenario{Hosts: 1, Policy: "stay", Length: 100_000, Warm: 2000, Seed: 3}
	tests := []struct {
		name string
		edit func(*Scenario)
		mean float64
		p99  float64 // 0: not checked
		tol  float64
	}{
		{"M/M/1 at 0.5", func(s *Scenario) { s.Load = 0.5 }, 2, 2 * math.Log(100), 0.02},
		{"M/M/1 at 0.8", func(s *Scenario) { s.Load = 0.8 }, 5, 5 * math.Log(100), 0.05},
		{"M/M/1 twice as fast", func(s *Scenario) { s.Load, s.Speeds = 0.5, []float64{2} }, 1, math.Log(100), 0.02},
		{"M/M/4", func(s *Scenario) { s.Load, s.Slots = 0.8, 4 }, 1 + erlangC(4, 0.8)/(4*0.2), 0, 0.03},
		{"M/M/100", func(s *Scenario) { s.Load, s.Slots, s.Length = 0.9, 100, 10_000 }, 1 + erlangC(100, 0.9)/(100*0.1), 0, 0.02},
		{"M/D/1", func(s *Scenario) { s.Load, s.Service = 0.8, "fixed" }, 1 + 0.8/(2*0.2), 0, 0.03},
		// Pollaczek and Khinchine, with E[S²] = (0.9 + 0.1·100)/1.9².
		{"M/G/1, bimodal", func(s *Scenario) { s.Load, s.Service = 0.6, "bimodal:share=0.1,ratio=10" }, 1 + 0.6*(10.9/(1.9*1.9))/(2*0.4), 0, 0.04},
		// Processor sharing does not mind the distribution.
		{"M/M/1-PS", func(s *Scenario) { s.Load, s.Sharing = 0.7, true }, 1 / 0.3, 0, 0.03},
		{"M/G/1-PS, bimodal", func(s *Scenario) { s.Load, s.Sharing, s.Service = 0.7, true, "bimodal" }, 1 / 0.3, 0, 0.05},
		{"M/G/1-PS, Pareto", func(s *Scenario) { s.Load, s.Sharing, s.Service = 0.5, true, "pareto:alpha=2.5" }, 2, 0, 0.05},
		{"M/G/infinity", func(s *Scenario) { s.Load, s.Slots = 0.05, 100 }, 1, math.Log(100), 0.02},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			sc := alone
			tt.edit(&sc)
			r := run(t, sc)
			near(t, tt.mean, r.Mean, tt.tol, "mean")
			if tt.p99 > 0 {
				near(t, tt.p99, r.P99, 2*tt.tol, "p99")
				near(t, tt.mean*math.Ln2, r.P50, 2*tt.tol, "p50")
			}
		})
	}
}

func TestErlangLoss(t *testing.T) {
	r := run(t, Scenario{Hosts: 1, Policy: "stay", Slots: 10, Limit: 10, Load: 0.8, Length: 50_000})
	near(t, erlangB(10, 8), float64(r.Refused)/float64(r.Arrived), 0.03, "share refused")
	near(t, 1, r.Mean, 0.01, "mean")
}

// TestLittle checks L = λW in all kinds of clusters. Connections that stand across
// the borders of the counted time make the small difference.
func TestLittle(t *testing.T) {
	for _, sc := range []Scenario{
		{Hosts: 10, Period: 1},
		{Hosts: 10, Period: 5, Policy: "least", Sync: true, View: "shared"},
		{Hosts: 20, Period: 1, Sharing: true, Speeds: []float64{1, 2}, Entry: "zipf"},
		{Hosts: 20, Period: 1, Slots: 4, Loss: 0.2, Delay: 0.1, Jitter: 0.1, Unseen: 0.5},
		{Hosts: 20, Period: 2, Known: 4, Service: "bimodal"},
	} {
		sc.Length, sc.Load = 1_000, 0.8
		r := run(t, sc)
		counted := r.Scenario.Length - r.Scenario.Warm
		near(t, float64(r.Finished)/counted*r.Mean, r.InSystem, 0.03, fmt.Sprintf("%+v", sc))
	}
}

func TestDeterminism(t *testing.T) {
	for _, sc := range []Scenario{
		{Hosts: 10, Period: 1, Policy: "stale-load:period={period}"},
		{Hosts: 30, Period: 1, View: "shared", Policy: "least", Crowd: Crowd{10, 5, 3}},
		{Hosts: 10, Policy: "power-of-d:d=3", Sharing: true},
		{Hosts: 40, Known: 5, Period: 2, Loss: 0.1, Jitter: 0.5, Policy: "prequal", Hop: 0.01, Events: []Event{
			{At: 20, Host: 1, What: "die"}, {At: 30, Host: 2, What: "drain"}, {At: 50, Host: 1, What: "return"}}},
	} {
		sc.Length, sc.Seed = 100, 7
		first := run(t, sc)
		require.Equal(t, first, run(t, sc))
		sc.Seed = 8
		require.NotEqual(t, first.Mean, run(t, sc).Mean, "another seed is another run")
	}
}

// TestSameConnections checks that the policy does not change what arrives.
func TestSameConnections(t *testing.T) {
	sc := Scenario{Hosts: 10, Period: 1, Length: 200}
	one := run(t, sc)
	sc.Policy = "random"
	require.Equal(t, one.Arrived, run(t, sc).Arrived)
}

// TestViewsAgree has the same cluster seen by boards of their own and by a shared
// one. With no report lost the two are one thing said twice, but for the first
// periods, in which a board does not trust its peers.
func TestViewsAgree(t *testing.T) {
	for _, policy := range []string{"home-or-other:theta=0", "least", "stale-load:period={period}"} {
		for _, sync := range []bool{true, false} {
			sc := Scenario{Hosts: 10, Policy: policy, Period: 3, Sync: sync, Length: 2_500, View: "boards"}
			boards := run(t, sc)
			sc.View = "shared"
			shared := run(t, sc)
			near(t, boards.Mean, shared.Mean, 0.08, policy)
			near(t, boards.Share, shared.Share, 0.02, policy)
			sc.View, sc.Known = "partial", 9
			partial := run(t, sc)
			near(t, boards.Mean, partial.Mean, 0.08, policy)
			near(t, boards.Share, partial.Share, 0.02, policy)
		}
	}
}

// TestCorrections checks what FIGURES and the design say of the two corrections:
// all clients on one of four hosts, load 0.9.
func TestCorrections(t *testing.T) {
	sc := Scenario{Hosts: 4, Entry: "one", Policy: "least", Length: 20_000, Period: 20}
	live := run(t, sc).Mean
	sc.Unseen = 0.03
	near(t, live, run(t, sc).Mean, 0.15, "ends that are not seen do not matter")
	sc.Unseen, sc.Correction = 0, "sent"
	require.Greater(t, run(t, sc).Mean, 1.4*live)
	sc.Correction = "none"
	require.Greater(t, run(t, sc).Mean, 3*live)
}

func TestEvents(t *testing.T) {
	sc := Scenario{Hosts: 10, Load: 0.5, Length: 400, Warm: -1, Period: 1, Hop: 0.01, Samples: 400}
	sc.Events = []Event{
		{At: 100, Host: 0, Count: 3, What: "die"},
		{At: 200, Host: 0, Count: 3, What: "return"},
		{At: 300, Host: 5, What: "drain"},
		{At: 350, Host: 9, What: "join"},
	}
	r := run(t, sc)
	require.Positive(t, r.Lost)
	require.Less(t, r.Lost, r.Arrived/50, "those of three hosts, and what goes there until their silence is noticed")
	require.Equal(t, r.Arrived, r.Finished+r.Lost+uint64(math.Round(last(r).Mean*10)))
	require.Less(t, last(r).Mean, 4.0)
}

func last(r Result) Point { return r.Series[len(r.Series)-1] }

// TestDrain checks that a draining host ends up empty, in every view.
func TestDrain(t *testing.T) {
	for _, view := range []string{"boards", "shared", "partial", ""} {
		s, err := newSimulation(Scenario{Hosts: 4, Load: 0.5, View: view, Period: periodOf(view), Events: []Event{{At: 50, Host: 2, What: "drain"}}})
		require.NoError(t, err)
		for s.now.Seconds() < 100 {
			e := s.events.pop()
			s.now = e.at
			s.handle(e)
		}
		require.Zero(t, s.hosts[2].conns.Load(), "view %q", view)
		require.Positive(t, s.hosts[1].conns.Load()+s.hosts[0].conns.Load()+s.hosts[3].conns.Load())
	}
}

func periodOf(view string) float64 {
	if view == "" {
		return 0
	}
	return 1
}

func TestCrowd(t *testing.T) {
	sc := Scenario{Hosts: 10, Load: 0.5, Policy: "stay", Length: 1000, Warm: -1, Crowd: Crowd{At: 500, For: 100, Times: 3}}
	r := run(t, sc)
	near(t, 0.5*10*(1000+2*100), float64(r.Arrived), 0.05, "arrived")
	require.Greater(t, r.Series[119].Max, 500.0, "they all dial one host")
}

func TestSkew(t *testing.T) {
	r := run(t, Scenario{Hosts: 10, Load: 0.03, Policy: "stay", Length: 5_000, Entry: "one", Slots: 20})
	require.Zero(t, r.Share)
	near(t, 6, r.InSystem, 0.03, "three per cent of 200 slots, at one host")
	r = run(t, Scenario{Hosts: 10, Load: 0.3, Policy: "random", Length: 5_000, Entry: "one"})
	near(t, 0.9, r.Share, 0.01, "redirected")
	near(t, 1/0.7, r.Mean, 0.03, "mean")
}

// TestReports counts what is sent: a report per host and period, to everybody by
// broadcast, or to those who listen.
func TestReports(t *testing.T) {
	sc := Scenario{Hosts: 20, Load: 0.5, Length: 100, Period: 2}
	r := run(t, sc)
	require.EqualValues(t, 20*50, r.Reports)
	near(t, float64(r.Reports)*100, float64(r.ReportBytes), 0.3, "bytes")
	sc.Known = 4
	require.EqualValues(t, 4*20*50, run(t, sc).Reports)
}

func TestValidate(t *testing.T) {
	tests := []struct {
		name string
		sc   Scenario
		says string
	}{
		{"policy", Scenario{Policy: "best"}, `no policy "best"`},
		{"entry", Scenario{Entry: "two"}, `entry: there is no "two": use one, uniform, zipf`},
		{"parameter", Scenario{Service: "pareto:beta=2"}, `pareto does not take "beta=2": use alpha=NUMBER`},
		{"no mean", Scenario{Service: "pareto:alpha=1"}, "alpha 1 is not above 1"},
		{"no trace", Scenario{Service: "trace:/nowhere"}, "/nowhere"},
		{"speed", Scenario{Speeds: []float64{0}}, "speeds: 0"},
		{"loss", Scenario{Loss: 2}, "loss: 2 is not from 0 to 1"},
		{"not a number", Scenario{Delay: math.NaN()}, "delay: NaN"},
		{"view", Scenario{View: "all"}, "use boards, shared, partial"},
		{"event", Scenario{Events: []Event{{What: "fly", Host: 10}}}, "use join, drain, die, return"},
		{"event's host", Scenario{Events: []Event{{What: "die", Host: 9, Count: 2}}}, "events: count: 2 is not from 0 to 1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Run(context.Background(), tt.sc, nil)
			require.ErrorContains(t, err, tt.says)
		})
	}
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := Run(ctx, Scenario{}, nil)
	require.ErrorIs(t, err, context.Canceled)
}
