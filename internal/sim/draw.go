package sim

import (
	"bufio"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// A spec is what a name with parameters, such as "pareto:alpha=1.5", asks for.
type spec struct {
	name   string
	params map[string]float64
}

// parseSpec reads a name with parameters. known has for each name the parameters
// it takes and their defaults.
func parseSpec(field, text string, known map[string]map[string]float64) (spec, error) {
	name, list, _ := strings.Cut(text, ":")
	params, ok := known[name]
	if !ok {
		return spec{}, fmt.Errorf("sim: %s: there is no %q: use %s", field, name, strings.Join(names(known), ", "))
	}
	s := spec{name, params}
	for pair := range strings.SplitSeq(list, ",") {
		if pair == "" {
			continue
		}
		key, value, _ := strings.Cut(pair, "=")
		x, err := strconv.ParseFloat(value, 64)
		if _, takes := params[key]; !takes || err != nil {
			return spec{}, fmt.Errorf("sim: %s: %s does not take %q: use %s=NUMBER",
				field, name, pair, strings.Join(names(params), "=NUMBER, "))
		}
		s.params[key] = x
	}
	return s, nil
}

func names[V any](m map[string]V) (list []string) {
	for name := range m {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

// A service draws service times, of mean 1.
type service func(r *rand.Rand) float64

func parseService(text string) (service, error) {
	if file, ok := strings.CutPrefix(text, "trace:"); ok {
		return readTrace(file)
	}
	s, err := parseSpec("service", text, map[string]map[string]float64{
		"exp": {}, "fixed": {}, "pareto": {"alpha": 1.5}, "bimodal": {"share": 0.1, "ratio": 10},
	})
	switch s.name {
	case "exp":
		return (*rand.Rand).ExpFloat64, nil
	case "fixed":
		return func(*rand.Rand) float64 { return 1 }, nil
	case "pareto":
		return pareto(s.params["alpha"])
	case "bimodal":
		return bimodal(s.params["share"], s.params["ratio"])
	}
	return nil, err
}

func pareto(alpha float64) (service, error) {
	if !(alpha > 1 && alpha <= 1e6) {
		return nil, fmt.Errorf("sim: service: pareto: alpha %g is not above 1, where there is a mean, and at most 1e6", alpha)
	}
	least := (alpha - 1) / alpha
	return func(r *rand.Rand) float64 { return least * math.Exp(r.ExpFloat64()/alpha) }, nil
}

func bimodal(share, ratio float64) (service, error) {
	if !(share >= 0 && share <= 1 && ratio > 0 && ratio <= 1e6) {
		return nil, fmt.Errorf("sim: service: bimodal: share %g is not from 0 to 1, or ratio %g not above 0 and at most 1e6", share, ratio)
	}
	short := 1 / (1 - share + share*ratio)
	return func(r *rand.Rand) float64 {
		if r.Float64() < share {
			return short * ratio
		}
		return short
	}, nil
}

// readTrace reads service times, one on a line, and scales them to mean 1. Empty
// lines and those that begin with # are skipped.
func readTrace(file string) (service, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("sim: service: %w", err)
	}
	defer f.Close()
	var times []float64
	sum, lines := 0.0, bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		x, err := strconv.ParseFloat(line, 64)
		if err != nil || !(x > 0) || math.IsInf(x, 0) {
			return nil, fmt.Errorf("sim: service: %s:%d: %q is not a time above 0", file, n, line)
		}
		times, sum = append(times, x), sum+x
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("sim: service: %s: %w", file, err)
	}
	if len(times) == 0 {
		return nil, fmt.Errorf("sim: service: %s has no times", file)
	}
	return replay(times, sum/float64(len(times))), nil
}

// replay draws times in their order from a random place, in units of their mean.
func replay(times []float64, mean float64) service {
	at := -1
	return func(r *rand.Rand) float64 {
		if at < 0 {
			at = r.IntN(len(times))
		}
		at = (at + 1) % len(times)
		return times[at] / mean
	}
}

// An entry draws the host that a client dials.
type entry func(r *rand.Rand) int

func parseEntry(text string, hosts int) (entry, error) {
	s, err := parseSpec("entry", text, map[string]map[string]float64{
		"uniform": {}, "zipf": {"s": 1}, "one": {},
	})
	switch s.name {
	case "uniform":
		return func(r *rand.Rand) int { return r.IntN(hosts) }, nil
	case "zipf":
		if x := s.params["s"]; !(x >= 0 && x <= 100) {
			return nil, fmt.Errorf("sim: entry: zipf: s %g is not from 0 to 100", x)
		}
		return zipf(s.params["s"], hosts), nil
	case "one":
		return func(*rand.Rand) int { return 0 }, nil
	}
	return nil, err
}

func zipf(s float64, hosts int) entry {
	upTo, sum := make([]float64, hosts), 0.0
	for i := range upTo {
		sum += math.Pow(float64(i+1), -s)
		upTo[i] = sum
	}
	return func(r *rand.Rand) int {
		x := r.Float64() * sum
		return min(sort.SearchFloat64s(upTo, x), hosts-1)
	}
}
