package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"encoding/xml"
	"image/png"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/plot/plotter"

	"github.com/carom-dpr/carom/internal/sim"
)

// simulate runs the command and returns its exit status and what it writes.
func simulate(args ...string) (status int, out, log string) {
	var o, l bytes.Buffer
	status = run(context.Background(), args, &o, &l)
	return status, o.String(), l.String()
}

func TestSweepOfFlags(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	status, out, log := simulate("-hosts", "4", "-length", "50", "-speeds", "[1, 2]",
		"-sweep", "period=1 2 4", "-sweep", "policy=least home-or-other:theta=2",
		"-csv", file("a.csv"), "-json", file("a.json"), "-x", "period", "-plot", file("a.png"))
	require.Zero(t, status, log)
	require.Equal(t, 7, strings.Count(out, "\n"), out)

	text, err := os.ReadFile(file("a.csv"))
	require.NoError(t, err)
	rows, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 7)
	require.Equal(t, []string{"4", "home-or-other:theta=2", "4"}, rows[6][1:4])

	text, err = os.ReadFile(file("a.json"))
	require.NoError(t, err)
	var results []sim.Result
	require.NoError(t, json.Unmarshal(text, &results))
	require.Len(t, results, 6)
	require.Len(t, results[0].Series, 200)
	require.Equal(t, []float64{1, 2}, results[0].Scenario.Speeds)

	f, err := os.Open(file("a.png"))
	require.NoError(t, err)
	defer f.Close()
	_, err = png.Decode(f)
	require.NoError(t, err)
}

func TestStudyOfFile(t *testing.T) {
	dir := t.TempDir()
	study, plot := filepath.Join(dir, "s.json"), filepath.Join(dir, "s.svg")
	require.NoError(t, os.WriteFile(study, []byte(`{
		"title": "T", "conns": 500, "periods": 10,
		"scenario": {"hosts": 3, "policy": "least"},
		"sweep": [{"field": "period", "values": ["0.5", "100"]}],
		"plots": [{"file": `+quote(plot)+`, "x": "period", "y": "redirected", "best": true, "log_x": true}]
	}`), 0o600))
	status, out, log := simulate("-policy", "random", study)
	require.Zero(t, status, log)
	require.Equal(t, "T", strings.Split(out, "\n")[0])
	text, err := os.ReadFile(plot)
	require.NoError(t, err)
	require.NoError(t, xml.Unmarshal(text, new(struct{})))
}

func TestCheck(t *testing.T) {
	status, out, log := simulate("-check", "-seeds", "1", "-only", "figure 12 uniform d=2")
	require.Zero(t, status, log)
	require.Contains(t, out, "want 101.2 ± 0.500")
	require.Contains(t, out, "1 of 1 figures within tolerance")
}

// TestScenarioFiles checks that every study in the tree can be played.
func TestScenarioFiles(t *testing.T) {
	files, err := filepath.Glob("scenarios/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		var s study
		require.NoError(t, s.read(file))
		list, err := s.scenarios()
		require.NoError(t, err, file)
		require.NotEmpty(t, list)
		for _, p := range s.Plots {
			_, err := p.panels(&s, make([]sim.Result, 1))
			if p.X == "at" {
				require.NoError(t, err, file)
			} else if _, err := columnOf(p.y()); err != nil {
				require.NoError(t, err, file)
			}
		}
	}
}

func TestTimePlot(t *testing.T) {
	plot := filepath.Join(t.TempDir(), "t.svg")
	status, _, log := simulate("-hosts", "3", "-length", "20", "-period", "1", "-plot", plot, "-y", "max")
	require.Zero(t, status, log)
	require.FileExists(t, plot)
}

func TestWrongArguments(t *testing.T) {
	tests := []struct {
		name string
		args []string
		says string
	}{
		{"no such flag", []string{"-speed", "1"}, "not defined: -speed"},
		{"no number", []string{"-hosts", "many"}, "hosts"},
		{"no such policy", []string{"-policy", "best"}, `no policy "best"`},
		{"no such policy in a sweep", []string{"-sweep", "policy=least best"}, `no policy "best"`},
		{"no such field", []string{"-sweep", "speed=1 2"}, `unknown field "speed"`},
		{"no values", []string{"-sweep", "period"}, "FIELD=VALUE"},
		{"no regular expression", []string{"-check", "-only", "("}, "missing closing )"},
		{"no such file", []string{"nowhere.json"}, "nowhere.json"},
		{"no hosts", []string{"-hosts", "0"}, "hosts=0: it cannot be zero; leave it out for the default, 10"},
		{"no length", []string{"-length", "0"}, "length=0"},
		{"no load", []string{"-load", "0.0"}, "load=0.0"},
		{"no warm-up is -1", []string{"-warm", "0"}, "warm=0"},
		{"no hosts in a sweep", []string{"-sweep", "hosts=10 0"}, "hosts=0"},
		{"no connections", []string{"-conns", "0"}, "-conns=0: it must be above 0"},
		{"no seeds", []string{"-check", "-seeds", "0"}, "-seeds=0"},
		{"no folder for CSV", []string{"-csv", "nowhere/a.csv"}, "nowhere/a.csv"},
		{"no folder for JSON", []string{"-json", "nowhere/a.json"}, "nowhere/a.json"},
		{"no folder for a plot", []string{"-plot", "nowhere/a.svg"}, "nowhere/a.svg"},
		{"no folder for scaling", []string{"-scaling", "nowhere/a.svg"}, "nowhere/a.svg"},
		{"no folder for a profile", []string{"-cpuprofile", "nowhere/cpu"}, "nowhere/cpu"},
		{"no picture", []string{"-plot", "x.gif"}, "must end in .svg or .png"},
		{"no picture of scaling", []string{"-scaling", "x.gif"}, "must end in .svg or .png"},
		{"no such field along", []string{"-plot", "x.svg", "-x", "perio"}, `no field "perio"`},
		{"no number along", []string{"-plot", "x.svg", "-x", "policy"}, "policy is not a number"},
		{"no such column", []string{"-plot", "x.svg", "-x", "period", "-y", "speed"}, `no column "speed"`},
		{"no such line along time", []string{"-plot", "x.svg", "-y", "p99"}, "along time"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			status, out, log := simulate(tt.args...)
			require.Equal(t, 2, status, log)
			require.Empty(t, out)
			require.Contains(t, log, tt.says)
		})
	}
	status, _, log := simulate("-check", "-only", "figure 0")
	require.Equal(t, 1, status)
	require.Contains(t, log, "no figure is called figure 0")
}

// TestUsage checks that each field of a scenario has a flag that is explained, and
// that nothing else is.
func TestUsage(t *testing.T) {
	status, _, log := simulate("-help")
	require.Zero(t, status)
	for name, text := range usage {
		require.Contains(t, log, "-"+name)
		require.NotEmpty(t, text)
	}
	require.Len(t, usage, reflect.TypeFor[sim.Scenario]().NumField())
}

func TestLogTicks(t *testing.T) {
	labels := func(low, high float64) (list []string) {
		for _, tick := range (logTicks{}).Ticks(low, high) {
			list = append(list, tick.Label)
		}
		return list
	}
	require.Equal(t, []string{"0.5", "1", "2", "5", "10", "20"}, labels(0.3, 20))
	require.Equal(t, []string{"1000", "1e+04", "1e+05", "1e+06"}, labels(256, 1<<20))
}

func TestBelow(t *testing.T) {
	got := below(plotter.XYs{{X: 1, Y: 1}, {X: 4, Y: 100}, {X: 8, Y: 2}}, 10)
	require.Len(t, got, 2)
	require.InDelta(t, 2, got[1].X, 1e-9, "half way on logarithmic axes")
	require.InDelta(t, 10, got[1].Y, 1e-9)
}
