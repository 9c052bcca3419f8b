package lb

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// FIGURES 7.4 and 33: Envoy's ramp for a window of 60 s.
func TestSlowStartRamp(t *testing.T) {
	for aggression, want := range map[float64][4]float64{
		0:   {0.10, 0.25, 0.50, 0.75},
		1:   {0.10, 0.25, 0.50, 0.75},
		2:   {0.316, 0.50, 0.707, 0.866},
		0.5: {0.10, 0.10, 0.25, 0.5625},
	} {
		p := &SlowStart{Aggression: aggression}
		for k, since := range []time.Duration{6, 15, 30, 45} {
			require.InDelta(t, want[k], p.ramp(since*time.Second), 0.001, "aggression %g after %d s", aggression, since)
		}
		require.InDelta(t, 0.1, p.ramp(1), 0, "floor")
		require.InDelta(t, 1, p.ramp(time.Minute), 0)
		require.InDelta(t, 1, p.ramp(0), 0, "not known counts as long")
	}
}

// FIGURES 33: Envoy's weight of a host of weight 2 with 4 requests is 2/(4+1), and
// the order of such weights is the one in which hosts are lighter here.
func TestEnvoyWeightIsTheSameOrder(t *testing.T) {
	envoy := func(h *Host) float64 { return float64(h.Weight) / float64(h.Estimate()+1) }
	require.InDelta(t, 0.4, envoy(&Host{Weight: 2, Conns: 4}), 1e-12)
	rnd := seeded(100)
	for range 1000 {
		a := &Host{Weight: uint16(1 + rnd.IntN(9)), Conns: uint32(rnd.IntN(9))}
		b := &Host{Weight: uint16(1 + rnd.IntN(9)), Conns: uint32(rnd.IntN(9))}
		var d draws
		best := lightest{host: -1}
		best.offer(0, a, &d)
		order := best.order(b.Estimate()+1, int64(b.Weight))
		require.Equal(t, envoy(b) > envoy(a)*(1+1e-12), order < 0)
		require.Equal(t, envoy(b) < envoy(a)*(1-1e-12), order > 0)
	}
}

// cluster plays A57's hosts: connections last for ever, a snapshot is taken twice
// a second.
type cluster struct {
	hosts []Host
	came  []time.Duration
	now   time.Duration
	flow  uint64
}

func (c *cluster) join(conns uint32, came time.Duration) {
	id := fmt.Sprintf("H%d", 1+len(c.hosts))
	c.hosts = append(c.hosts, Host{ID: id, Weight: 100, Conns: conns, Live: new(atomic.Int32)})
	c.came = append(c.came, came)
}

// second lets 100 connections come and returns what each host got.
func (c *cluster) second(p Policy) []int {
	got := make([]int, len(c.hosts))
	for range 2 {
		s := &Snapshot{Self: -1, Hosts: slices.Clone(c.hosts), Taken: c.now}
		for i := range s.Hosts {
			s.Hosts[i].Since = c.now - c.came[i]
		}
		picker := p.Build(s)
		for range 50 {
			c.flow++
			to := picker.Pick(Flow{Conn: scramble(c.flow), Client: scramble(c.flow)}, c.now).Host
			c.hosts[to].Live.Add(1)
			got[to]++
		}
		c.now += 500 * time.Millisecond
	}
	return got
}

// Four hosts with 1,000 long connections each, 100 new ones a second; H5 joins
// with none, H6 ten seconds later. In no second does a new host get more than
// twice its fair part and the four of chance, neither in the ramp nor when it
// ends, and what H5 gets does not jump when H6 comes.
func TestA57NewHostIsNotFlooded(t *testing.T) {
	for name, inner := range map[string]Policy{"least": LeastConnections{}, "p2c": PowerOfD{}, "d=8": PowerOfD{D: 8}} {
		t.Run(name, func(t *testing.T) {
			c, p := &cluster{now: time.Hour}, &SlowStart{Policy: inner}
			for range 4 {
				c.join(1000, 0)
			}
			c.second(p)
			c.join(0, c.now-1)
			var h5 []int
			for second := range 300 {
				if second == 10 {
					c.join(0, c.now-1)
				}
				got := c.second(p)
				h5 = append(h5, got[4])
				for _, n := range got[4:] {
					require.LessOrEqual(t, n, 2*100/len(c.hosts)+4, "second %d: %v", second, got)
				}
				if second < 10 {
					require.LessOrEqual(t, float64(got[4]), 40*max(0.1, float64(second+1)/60)+4, "in the ramp: %v", got)
				}
			}
			require.NotZero(t, h5[0], "it gets some at once")
			before, after := sum(h5[5:10]), sum(h5[10:15])
			require.LessOrEqual(t, after, before*2, "no surge when H6 comes: %v", h5[:20])
			for i := range c.hosts {
				require.InDelta(t, float64(4000+30100)/6, c.hosts[i].Estimate(), 300, "in the end all are level")
			}
			require.Empty(t, p.young, "and settled")
		})
	}
	t.Run("without it, it is", func(t *testing.T) {
		c := &cluster{now: time.Hour}
		for range 4 {
			c.join(1000, 0)
		}
		c.join(0, c.now-1)
		require.Equal(t, 100, c.second(LeastConnections{})[4])
	})
}

func sum(of []int) (total int) {
	for _, n := range of {
		total += n
	}
	return total
}

// At high rates of picking in several goroutines the bound holds as well.
func TestSlowStartBoundHoldsConcurrently(t *testing.T) {
	s := table(-1, 1000, 1000, 1000, 1000, 0)
	s.Hosts[4].Since = 30 * time.Second // factor 0.5, relative to an average of 0.9
	picker := (&SlowStart{Policy: LeastConnections{}}).Build(s)
	var got atomic.Int32
	done := make(chan struct{})
	for g := range uint64(4) {
		go func() {
			defer func() { done <- struct{}{} }()
			for k := range uint64(5000) {
				if picker.Pick(Flow{Conn: scramble(g<<32 + k)}, 0).Host == 4 {
					got.Add(1)
				}
			}
		}()
	}
	for range 4 {
		<-done
	}
	bound := 20_000 * 2 * 0.2 * 0.5 / 0.9
	require.LessOrEqual(t, float64(got.Load()), bound+4)
	require.Greater(t, float64(got.Load()), bound*0.7)
}

// A cluster that starts as a whole has nobody to warm up slowly behind, a host
// alone neither, and the own host serves what is dialled at it.
func TestSlowStartIsRelative(t *testing.T) {
	inner := PowerOfD{}.Build(table(0, 0, 0))
	for name, s := range map[string]*Snapshot{"all young": table(-1, 1, 2, 3), "alone": table(-1, 5), "own": table(0, 0, 0)} {
		for i := range s.Hosts {
			s.Hosts[i].Since = 10*time.Second + time.Duration(i)*100*time.Millisecond
		}
		if name == "own" {
			s.Hosts[1].Since = 0
		}
		require.IsType(t, inner, (&SlowStart{Policy: PowerOfD{}}).Build(s), name)
	}
}

// Policies that hash: a young host's keys come to it as its factor grows, each but
// once, from where they would be without it, and all choosers agree.
func TestSlowStartOfKeys(t *testing.T) {
	for name := range hashing() {
		t.Run(name, func(t *testing.T) {
			const keys = 20_000
			p := &SlowStart{Policy: hashing()[name], Settled: hashing()[name]}
			s := crowd(10)
			alone := owners(hashing()[name], away(s, 3, Stale), keys)
			whole := owners(hashing()[name], s, keys)
			there := map[int]bool{}
			for _, since := range []time.Duration{1, 20 * time.Second, 40 * time.Second, time.Minute} {
				s.Hosts[3].Since = since
				now, moved := owners(p, s, keys), 0
				require.Equal(t, now, owners(&SlowStart{Policy: hashing()[name]}, s, keys), "choosers agree")
				for k := range now {
					switch {
					case now[k] == s.Hosts[3].ID:
						require.Equal(t, now[k], whole[k])
						moved, there[k] = moved+1, true
					case whole[k] == s.Hosts[3].ID:
						require.Equal(t, alone[k], now[k])
						require.False(t, there[k], "went there and back")
					default:
						require.Equal(t, whole[k], now[k], "the others' keys do not move")
					}
				}
				factor := min(1, p.ramp(since)/((9+p.ramp(since))/10))
				all := 0
				for _, id := range whole {
					if id == s.Hosts[3].ID {
						all++
					}
				}
				require.InDelta(t, factor, float64(moved)/float64(all), 0.05, since)
			}
		})
	}
}

// A flow's host is among the candidates while keys move, too.
func TestSlowStartKeepsCandidates(t *testing.T) {
	s, rnd := crowd(6), seeded(101)
	s.Hosts[2].Since = 20 * time.Second
	picker := (&SlowStart{Policy: &Affinity{}, Settled: &Affinity{}}).Build(s).(Finder)
	for range 2000 {
		f := flow(rnd)
		require.Contains(t, picker.Candidates(nil, f), picker.Pick(f, 0).Host)
	}
}

// What a young host does not get is spread over the others as by the policy itself.
func TestSlowStartSpreadsTheRest(t *testing.T) {
	for name, inner := range spreading() {
		t.Run(name, func(t *testing.T) {
			s := crowd(5)
			s.Hosts[2].Since = time.Second
			got := shares(t, &SlowStart{Policy: inner, Settled: spreading()[name]}, s, 10_000, 102)
			require.InDelta(t, 10_000*2*0.2*0.1/0.82, got[2], 10)
			rest := slices.Delete(got, 2, 3)
			require.Less(t, chiSquare(rest, uniform(4)), limit(3), "%v", rest)
		})
	}
}

func TestSlowStartForgets(t *testing.T) {
	p := &SlowStart{Policy: PowerOfD{}}
	s := table(-1, 9, 9, 0)
	s.Hosts[2].Since = 1
	p.Build(s)
	require.Len(t, p.young, 1)
	s.Hosts[2].Since = time.Hour
	p.Build(s)
	require.Len(t, p.young, 1, "behind")
	s.Hosts[2].Conns = 9
	p.Build(s)
	require.Empty(t, p.young, "caught up")
	s.Hosts[2].Conns = 0
	p.Build(s)
	require.Empty(t, p.young, "once settled, always")
}
