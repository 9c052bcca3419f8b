package lb

import (
	"strings"
	"testing"

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
		"stay":                       Stay{},
		"stay:":                      Stay{},
	} {
		got, err := Parse(spec)
		require.NoError(t, err, spec)
		require.Equal(t, want, got, spec)
	}
}

func TestParseErrors(t *testing.T) {
	names := strings.Join(Names(), ", ")
	for spec, want := range map[string]string{
		"":                              `lb: no policy "": there are ` + names,
		"lest":                          `lb: no policy "lest": there are ` + names,
		"Least":                         `lb: no policy "Least": there are ` + names,
		"stay:x=1":                      `lb: policy stay: no parameter "x": it takes no parameters`,
		"power-of-d:d=9":                "lb: policy power-of-d: d=9 is not a number from 1 to 8: it takes d (1 to 8, default 2), threshold (0 to 2147483647, default 0)",
		"power-of-d:d=two":              "lb: policy power-of-d: d=two is not a number from 1 to 8: it takes d (1 to 8, default 2), threshold (0 to 2147483647, default 0)",
		"home-or-other:theta=-1":        "lb: policy home-or-other: theta=-1 is not a number from 0 to 2147483647: it takes theta (0 to 2147483647, default 1)",
		"home-or-other:theta":           `lb: policy home-or-other: "theta" is not of the form name=value: it takes theta (0 to 2147483647, default 1)`,
		"least:threshold=1,":            `lb: policy least: "" is not of the form name=value: it takes threshold (0 to 2147483647, default 0)`,
		"least:threshold=1,b=,a=":       `lb: policy least: no parameter "a": it takes threshold (0 to 2147483647, default 0)`,
		"least:threshold=1,threshold=2": "lb: policy least: threshold is given twice: it takes threshold (0 to 2147483647, default 0)",
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
