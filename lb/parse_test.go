package lb

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	for spec, want := range map[string]Policy{
		"home-or-other":              HomeOrOther{Theta: DefaultTheta},
		"home-or-other:theta=3":      HomeOrOther{Theta: 3},
		"home-or-other:theta=0":      HomeOrOther{Theta: AnyGain},
		"least":                      LeastConnections{},
		"least:threshold=2":          LeastConnections{Threshold: 2},
		"p2c":                        PowerOfD{D: 2},
		"power-of-d":                 PowerOfD{D: 2},
		"power-of-d:d=3":             PowerOfD{D: 3},
		"power-of-d:threshold=1,d=8": PowerOfD{D: 8, Threshold: 1},
		"rr":                         &RoundRobin{},
		"home-or-others:d=3,theta=0": HomeOrOthers{D: 3, Theta: AnyGain},
		"random":                     Random{},
		"smooth-rr":                  &SmoothRoundRobin{},
		"rendezvous:by=client":       Rendezvous{By: ByClient},
		"maglev:size=655373":         &Maglev{Size: 655373},
		"ring:points=7,by=conn":      &Ring{Points: 7},
		"jump":                       Jump{},
		"bounded-load:factor=1.5":    &BoundedLoad{Factor: 1.5, Points: 100},
		"geometric":                  &Geometric{D: 2, Points: 1},
		"geometric:space=torus,ties=any,d=4,points=9,by=client": &Geometric{
			Space: OnTorus, Ties: ToAny, D: 4, Points: 9, By: ByClient,
		},
		"geometric:ties=left":              &Geometric{D: 2, Points: 1, Ties: ToLeft},
		"affinity:d=3,threshold=2":         &Affinity{D: 3, Threshold: 2, Points: 32},
		"stale-load":                       StaleLoad{Service: time.Second, Load: 1, Period: 500 * time.Millisecond},
		"stale-load:rule=aged,k=3,load=.9": StaleLoad{Rule: AgedLI, K: 3, Service: time.Second, Load: .9, Period: 500 * time.Millisecond},
		"stale-load:rule=aggressive,service=20ms,period=1s": StaleLoad{
			Rule: AggressiveLI, Service: 20 * time.Millisecond, Load: 1, Period: time.Second,
		},
		"resource": ResourceLoad{D: 2},
		"resource:cpu=.5,memory=.25,disk=.125,network=1,headroom=.5,at=100,d=0,full=refuse": ResourceLoad{
			Demand: Resources{.5, .25, .125, 1}, DemandAt: 100, Headroom: .5, D: EveryHost, WhenFull: Refuse,
		},
		"prequal:q=0.6,d=8": Prequal{Q: 0.6, D: 8},
		"peak-ewma:tau=2s":  &PeakEWMA{Tau: 2 * time.Second, D: 2},
		"least:slow-start=30s": &SlowStart{
			Policy: LeastConnections{}, Settled: LeastConnections{}, Window: 30 * time.Second,
		},
		"stay":  Stay{},
		"stay:": Stay{},
	} {
		got, err := Parse(spec)
		require.NoError(t, err, spec)
		require.Equal(t, want, got, spec)
	}
}

func TestParseErrors(t *testing.T) {
	const names = "home-or-other, home-or-others, least, p2c, power-of-d, random, rr, smooth-rr, " +
		"rendezvous, maglev, ring, jump, bounded-load, geometric, affinity, " +
		"stale-load, resource, prequal, peak-ewma, stay"
	const slow = "slow-start (0s to 24h0m0s, default 0s)"
	const threshold = "threshold (0 to 2147483647, default 0), " + slow
	for spec, want := range map[string]string{
		"":                              `lb: no policy "": there are ` + names,
		"lest":                          `lb: no policy "lest": there are ` + names,
		"Least":                         `lb: no policy "Least": there are ` + names,
		"stay:x=1":                      `lb: policy stay: no parameter "x": it takes ` + slow,
		"power-of-d:d=9":                "lb: policy power-of-d: d=9 is not a number from 1 to 8: it takes d (1 to 8, default 2), " + threshold,
		"power-of-d:d=two":              "lb: policy power-of-d: d=two is not a number from 1 to 8: it takes d (1 to 8, default 2), " + threshold,
		"home-or-other:theta=-1":        "lb: policy home-or-other: theta=-1 is not a number from 0 to 2147483647: it takes theta (0 to 2147483647, default 1), " + slow,
		"home-or-other:theta":           `lb: policy home-or-other: "theta" is not of the form name=value: it takes theta (0 to 2147483647, default 1), ` + slow,
		"least:threshold=1,":            `lb: policy least: "" is not of the form name=value: it takes ` + threshold,
		"least:threshold=1,b=,a=":       `lb: policy least: no parameter "a": it takes ` + threshold,
		"ring:by=ip":                    "lb: policy ring: by=ip is not conn or client: it takes points (1 to 10000, default 100), by (conn or client, default conn), " + slow,
		"prequal:q=NaN":                 "lb: policy prequal: q=NaN is not a number from 0.01 to 1: it takes q (0.01 to 1, default 0.84), d (1 to 8, default 3), " + slow,
		"peak-ewma:tau=10":              "lb: policy peak-ewma: tau=10 is not a time from 1ms to 1h0m0s, such as 1.5s: it takes tau (1ms to 1h0m0s, default 10s), d (1 to 8, default 2), " + slow,
		"stay:slow-start=-1s":           "lb: policy stay: slow-start=-1s is not a time from 0s to 24h0m0s, such as 1.5s: it takes " + slow,
		"least:threshold=1,threshold=2": "lb: policy least: threshold is given twice: it takes " + threshold,
	} {
		p, err := Parse(spec)
		require.EqualError(t, err, want, spec)
		require.Nil(t, p, spec)
	}
}

func TestParseKnowsEveryName(t *testing.T) {
	for _, name := range Names() {
		p, err := Parse(name)
		require.NoError(t, err)
		require.NotNil(t, p.Build(&Snapshot{Self: -1}))
	}
}

func TestParseSharesNoState(t *testing.T) {
	a, _ := Parse("rr")
	b, _ := Parse("rr")
	require.NotSame(t, a, b)
	slow, _ := Parse("maglev:slow-start=1m")
	require.NotSame(t, slow.(*SlowStart).Policy, slow.(*SlowStart).Settled)
}

func FuzzParse(f *testing.F) {
	for _, name := range Names() {
		f.Add(name + ":d=3,theta=1")
	}
	f.Fuzz(func(t *testing.T, spec string) {
		p, err := Parse(spec)
		require.Equal(t, err == nil, p != nil)
	})
}
