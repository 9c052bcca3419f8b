package lb

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// policies is every policy that can be named in a configuration, in the order in
// which they are listed to people. build takes its parameters from p, stating
// for each the default and the range.
var policies = []struct {
	name  string
	build func(p *params) Policy
}{
	{"home-or-other", func(p *params) Policy { return HomeOrOther{Theta: theta(p)} }},
	{"least", func(p *params) Policy { return LeastConnections{Threshold: threshold(p)} }},
	{"p2c", func(p *params) Policy { return PowerOfD{D: 2, Threshold: threshold(p)} }},
	{"power-of-d", func(p *params) Policy {
		return PowerOfD{D: p.integer("d", 2, 1, MaxD), Threshold: threshold(p)}
	}},
	{"rr", func(*params) Policy { return new(RoundRobin) }},
	{"stay", func(*params) Policy { return Stay{} }},
}

func threshold(p *params) int { return p.integer("threshold", 0, 0, math.MaxInt32) }

func theta(p *params) int {
	if n := p.integer("theta", DefaultTheta, 0, math.MaxInt32); n > 0 {
		return n
	}
	return AnyGain
}

// Names returns the names that [Parse] knows.
func Names() []string {
	names := make([]string, len(policies))
	for i := range policies {
		names[i] = policies[i].name
	}
	return names
}

// Parse returns the policy that spec describes: a name, and after a colon its
// parameters, separated by commas, as in "least", "home-or-other:theta=0" or
// "power-of-d:d=3,threshold=1". An error says what there is instead.
//
// Each call returns a policy of its own: those that keep state, such as round
// robin, share none.
func Parse(spec string) (Policy, error) {
	name, list, _ := strings.Cut(spec, ":")
	for i := range policies {
		if policies[i].name == name {
			return build(name, list, policies[i].build)
		}
	}
	return nil, fmt.Errorf("lb: no policy %q: there are %s", name, strings.Join(Names(), ", "))
}

func build(name, list string, from func(*params) Policy) (Policy, error) {
	p := params{given: map[string]string{}}
	p.split(list)
	policy := from(&p)
	for _, key := range slices.Sorted(maps.Keys(p.given)) {
		if !slices.Contains(p.known, key) {
			p.fail("no parameter %q", key)
		}
	}
	if p.problem == "" {
		return policy, nil
	}
	takes := "no parameters"
	if len(p.usage) > 0 {
		takes = strings.Join(p.usage, ", ")
	}
	return nil, fmt.Errorf("lb: policy %s: %s: it takes %s", name, p.problem, takes)
}

// params hands a policy its parameters and collects what is wrong with them.
type params struct {
	given   map[string]string
	known   []string
	usage   []string
	problem string // the first
}

func (p *params) split(list string) {
	if list == "" {
		return
	}
	for pair := range strings.SplitSeq(list, ",") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			p.fail("%q is not of the form name=value", pair)
		} else if _, twice := p.given[key]; twice {
			p.fail("%s is given twice", key)
		} else {
			p.given[key] = value
		}
	}
}

// integer returns the parameter key, or def where it is not given.
func (p *params) integer(key string, def, lo, hi int) int {
	p.known = append(p.known, key)
	p.usage = append(p.usage, fmt.Sprintf("%s (%d to %d, default %d)", key, lo, hi, def))
	value, ok := p.given[key]
	if !ok {
		return def
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < lo || n > hi {
		p.fail("%s=%s is not a number from %d to %d", key, value, lo, hi)
		return def
	}
	return n
}

func (p *params) fail(format string, args ...any) {
	if p.problem == "" {
		p.problem = fmt.Sprintf(format, args...)
	}
}
