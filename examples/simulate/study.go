package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/carom-dpr/carom/internal/sim"
)

// A study is what a scenario file holds.
type study struct {
	// Title is for people.
	Title string `json:"title,omitempty"`
	// Scenario is what all runs have in common.
	Scenario sim.Scenario `json:"scenario"`
	// Conns is how many connections each run has, instead of Scenario.Length, and
	// Periods the least number of report periods that it lasts.
	Conns   float64 `json:"conns,omitempty"`
	Periods float64 `json:"periods,omitempty"`
	// Sweep is what differs: every value of each field with every one of the others.
	Sweep []axis `json:"sweep,omitempty"`
	// CSV and JSON are files to write results to, Plots what to plot.
	CSV   string   `json:"csv,omitempty"`
	JSON  string   `json:"json,omitempty"`
	Plots []figure `json:"plots,omitempty"`
}

// An axis is a field of the scenario and the values it takes.
type axis struct {
	Field  string   `json:"field"`
	Values []string `json:"values"`
}

// An assignment gives a field of a scenario, by its name in JSON, a value.
type assignment struct{ field, value string }

// to assigns. What is not JSON is taken as text. A zero that would silently become
// a default is an error.
func (a assignment) to(sc *sim.Scenario) error {
	if err := a.parse(sc); err != nil {
		return fmt.Errorf("%s=%s: %w", a.field, a.value, err)
	}
	if has, def := valueOf(*sc, a.field), valueOf(sc.WithDefaults(), a.field); has == "0" && def != "0" {
		return fmt.Errorf("%s=%s: it cannot be zero; leave it out for the default, %s", a.field, a.value, def)
	}
	return nil
}

func (a assignment) parse(sc *sim.Scenario) error {
	var last error
	for _, value := range []string{a.value, quote(a.value)} {
		if !json.Valid([]byte(value)) {
			continue
		}
		text := fmt.Sprintf("{%s: %s}", quote(a.field), value)
		if last = strict([]byte(text), sc); last == nil {
			return nil
		}
	}
	return last
}

func quote(s string) string {
	b, _ := json.Marshal(s) // a string always can be
	return string(b)
}

func strict(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

func parseAxis(text string) (axis, error) {
	field, values, ok := strings.Cut(text, "=")
	a := axis{field, strings.Fields(values)}
	if !ok || len(a.Values) == 0 {
		return a, fmt.Errorf("-sweep %q: use FIELD=VALUE VALUE ...", text)
	}
	return a, nil
}

func (s *study) read(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := strict(text, s); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// override returns the study with what the command line says instead.
func (s study) override(o study) *study {
	if o.Conns > 0 {
		s.Conns, s.Periods = o.Conns, 0
	}
	if o.CSV != "" {
		s.CSV = o.CSV
	}
	if o.JSON != "" {
		s.JSON = o.JSON
	}
	if len(o.Plots) > 0 {
		s.Plots = o.Plots
	}
	s.Sweep = slices.Clone(s.Sweep)
	for _, a := range o.Sweep {
		if i := slices.IndexFunc(s.Sweep, func(b axis) bool { return a.Field == b.Field }); i >= 0 {
			s.Sweep[i] = a
		} else {
			s.Sweep = append(s.Sweep, a)
		}
	}
	return &s
}

// scenarios lists the runs, and says whether they can be simulated.
func (s *study) scenarios() ([]sim.Scenario, error) {
	list := []sim.Scenario{s.Scenario}
	for _, a := range s.Sweep {
		var next []sim.Scenario
		for _, sc := range list {
			for _, value := range a.Values {
				if err := (assignment{a.Field, value}).to(&sc); err != nil {
					return nil, err
				}
				next = append(next, sc)
			}
		}
		list = next
	}
	for i := range list {
		if s.Conns > 0 {
			list[i].Length = 1
			list[i].Length = max(s.Conns/list[i].Conns(), s.Periods*list[i].Period)
		}
		if err := list[i].Validate(); err != nil {
			return nil, err
		}
	}
	return list, nil
}
