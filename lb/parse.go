package lb

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// policies is every policy that can be named in a configuration, in the order in
// which they are listed to people. build takes its parameters from p, stating
// for each the default and the range.
var policies = []struct {
	name  string
	build func(p *params) Policy
}{
	{"home-or-other", func(p *params) Policy { return HomeOrOther{Theta: theta(p)} }},
	{"home-or-others", func(p *params) Policy {
		return HomeOrOthers{D: p.integer("d", 2, 1, MaxD-1), Theta: theta(p)}
	}},
	{"least", func(p *params) Policy { return LeastConnections{Threshold: threshold(p)} }},
	{"p2c", func(p *params) Policy { return PowerOfD{D: 2, Threshold: threshold(p)} }},
	{"power-of-d", func(p *params) Policy {
		return PowerOfD{D: p.integer("d", 2, 1, MaxD), Threshold: threshold(p)}
	}},
	{"random", func(*params) Policy { return Random{} }},
	{"rr", func(*params) Policy { return new(RoundRobin) }},
	{"smooth-rr", func(*params) Policy { return new(SmoothRoundRobin) }},
	{"rendezvous", func(p *params) Policy { return Rendezvous{By: by(p)} }},
	{"maglev", func(p *params) Policy {
		return &Maglev{Size: p.integer("size", maglevSize, 3, maxMaglevSize), By: by(p)}
	}},
	{"ring", func(p *params) Policy { return &Ring{Points: points(p, ringPoints), By: by(p)} }},
	{"jump", func(p *params) Policy { return Jump{By: by(p)} }},
	{"bounded-load", func(p *params) Policy {
		factor := p.real("factor", boundedFactor, minBoundedFactor, 100)
		return &BoundedLoad{Factor: factor, Points: points(p, ringPoints), By: by(p)}
	}},
	{"geometric", func(p *params) Policy {
		return &Geometric{
			Space: Space(p.word("space", "ring", "torus")), D: p.integer("d", 2, 1, MaxD),
			Ties:   Ties(p.word("ties", "smaller", "larger", "left", "any")),
			Points: points(p, 1), By: by(p),
		}
	}},
	{"affinity", func(p *params) Policy {
		return &Affinity{
			D: p.integer("d", 2, 1, MaxD), Threshold: threshold(p),
			Points: points(p, affinityPoints), By: by(p),
		}
	}},
	{"stale-load", staleLoadOf},
	{"resource", resourceLoadOf},
	{"prequal", func(p *params) Policy {
		return Prequal{Q: p.real("q", prequalQ, 0.01, 1), D: p.integer("d", prequalD, 1, MaxD)}
	}},
	{"peak-ewma", func(p *params) Policy {
		return &PeakEWMA{
			Tau: p.duration("tau", peakTau, time.Millisecond, time.Hour), D: p.integer("d", 2, 1, MaxD),
		}
	}},
	{"stay", func(*params) Policy { return Stay{} }},
}

func staleLoadOf(p *params) Policy {
	return StaleLoad{
		Rule:    Interpretation(p.word("rule", "basic", "aggressive", "aged")),
		K:       p.integer("k", 0, 0, MaxD),
		Service: p.duration("service", staleService, time.Microsecond, 24*time.Hour),
		Load:    p.real("load", 1, 0.01, 100),
		Period:  p.duration("period", stalePeriod, time.Millisecond, time.Hour),
	}
}

func resourceLoadOf(p *params) Policy {
	share := func(key string) float32 { return float32(p.real(key, 0, 0, 1)) }
	r := ResourceLoad{
		Demand: Resources{
			CPU: share("cpu"), Memory: share("memory"), Disk: share("disk"), Network: share("network"),
		},
		DemandAt: uint16(p.integer("at", 0, 0, math.MaxUint16)),
		Headroom: share("headroom"),
		D:        p.integer("d", 2, 0, MaxD),
	}
	if r.D == 0 {
		r.D = EveryHost
	}
	if p.word("full", "serve", "refuse") == 1 {
		r.WhenFull = Refuse
	}
	return r
}

func threshold(p *params) int { return p.integer("threshold", 0, 0, math.MaxInt32) }

func theta(p *params) int {
	if n := p.integer("theta", DefaultTheta, 0, math.MaxInt32); n > 0 {
		return n
	}
	return AnyGain
}

func by(p *params) Key { return Key(p.word("by", "conn", "client")) }

func points(p *params, def int) int { return p.integer("points", def, 1, maxPoints) }

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
// "power-of-d:d=3,threshold=1". An error says what there is instead. Every policy
// takes slow-start, the Window of a [SlowStart] around it; 0, the default, is none.
//
// docs/POLICIES.md has a table of all names and parameters, with ranges and defaults.
// Most are fields of the policy's type. A theta of 0 is [AnyGain], not the field's
// default.
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
	if window := p.duration("slow-start", 0, 0, 24*time.Hour); window > 0 {
		policy = &SlowStart{Policy: policy, Settled: from(&p), Window: window}
	}
	for _, key := range slices.Sorted(maps.Keys(p.given)) {
		if !slices.Contains(p.known, key) {
			p.fail("no parameter %q", key)
		}
	}
	if p.problem == "" {
		return policy, nil
	}
	return nil, fmt.Errorf("lb: policy %s: %s: it takes %s", name, p.problem, strings.Join(p.usage, ", "))
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
	value, ok := p.take(key, fmt.Sprintf("%d to %d, default %d", lo, hi, def))
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

// real returns the parameter key, or def where it is not given.
func (p *params) real(key string, def, lo, hi float64) float64 {
	value, ok := p.take(key, fmt.Sprintf("%g to %g, default %g", lo, hi, def))
	if !ok {
		return def
	}
	x, err := strconv.ParseFloat(value, 64)
	if err != nil || !(x >= lo && x <= hi) {
		p.fail("%s=%s is not a number from %g to %g", key, value, lo, hi)
		return def
	}
	return x
}

// duration returns the parameter key, or def where it is not given.
func (p *params) duration(key string, def, lo, hi time.Duration) time.Duration {
	value, ok := p.take(key, fmt.Sprintf("%v to %v, default %v", lo, hi, def))
	if !ok {
		return def
	}
	d, err := time.ParseDuration(value)
	if err != nil || d < lo || d > hi {
		p.fail("%s=%s is not a time from %v to %v, such as 1.5s", key, value, lo, hi)
		return def
	}
	return d
}

// word returns the index in words of the parameter key, or 0 where it is not given.
func (p *params) word(key string, words ...string) int {
	list := strings.Join(words, " or ")
	value, ok := p.take(key, fmt.Sprintf("%s, default %s", list, words[0]))
	if !ok {
		return 0
	}
	i := slices.Index(words, value)
	if i < 0 {
		p.fail("%s=%s is not %s", key, value, list)
		return 0
	}
	return i
}

// take returns the parameter key as it was given and notes what it may be.
func (p *params) take(key, usage string) (value string, given bool) {
	p.known = append(p.known, key)
	p.usage = append(p.usage, key+" ("+usage+")")
	value, given = p.given[key]
	return value, given
}

func (p *params) fail(format string, args ...any) {
	if p.problem == "" {
		p.problem = fmt.Sprintf(format, args...)
	}
}
