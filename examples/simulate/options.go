package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"

	"github.com/carom-dpr/carom/internal/sim"
)

type options struct {
	check   bool
	seeds   int
	only    *regexp.Regexp
	scaling string
	cpu     string
	studies []study
}

// lists collects a flag that may be given several times.
type lists []string

func (l *lists) String() string { return strings.Join(*l, "; ") }
func (l *lists) Set(s string) error {
	*l = append(*l, s)
	return nil
}

func parseOptions(args []string, log io.Writer) (*options, error) {
	o := new(options)
	fs := flag.NewFlagSet("simulate", flag.ContinueOnError)
	fs.SetOutput(log)
	fs.BoolVar(&o.check, "check", false, "compare the simulator with the figures of the literature")
	fs.IntVar(&o.seeds, "seeds", 3, "for -check: `NUMBER` of seeds that each figure must come out with")
	fs.Func("only", "for -check: only the figures whose names match this `REGEXP`, such as \"§6.4 n=10 \"", func(text string) (err error) {
		o.only, err = regexp.Compile(text)
		return err
	})
	fs.StringVar(&o.scaling, "scaling", "", "measure how the maximum load of ring and torus grows, and plot it to this `FILE`")
	fs.StringVar(&o.cpu, "cpuprofile", "", "write a profile of the processor's time to this `FILE`")
	var extra study
	var sweeps lists
	fs.Var(&sweeps, "sweep", "play each of a field's values, as in `\"FIELD=VALUE VALUE ...\"`; may be repeated")
	fs.Float64Var(&extra.Conns, "conns", 0, "as long as it takes for this `NUMBER` of connections, instead of -length")
	fs.StringVar(&extra.CSV, "csv", "", "write results to this `FILE`; - is the standard output")
	fs.StringVar(&extra.JSON, "json", "", "write results with their series to this `FILE`; - is the standard output")
	p := plotFlags(fs)
	given := scenarioFlags(fs)
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if err := positive(fs, "seeds", "conns"); err != nil {
		return nil, err
	}
	for _, text := range sweeps {
		a, err := parseAxis(text)
		if err != nil {
			return nil, err
		}
		extra.Sweep = append(extra.Sweep, a)
	}
	if p.File != "" {
		extra.Plots = []figure{*p}
	}
	if err := o.read(fs.Args(), extra, *given); err != nil {
		return nil, err
	}
	return o, o.writable()
}

// positive returns an error if one of the flags is given and not above 0, which
// elsewhere stands for its absence.
func positive(fs *flag.FlagSet, names ...string) (err error) {
	fs.Visit(func(f *flag.Flag) {
		if x, _ := strconv.ParseFloat(f.Value.String(), 64); slices.Contains(names, f.Name) && !(x > 0) {
			err = fmt.Errorf("-%s=%s: it must be above 0", f.Name, f.Value)
		}
	})
	return err
}

// writable checks that what is asked for can be written, so that no run is in vain.
func (o *options) writable() error {
	files := []string{o.cpu, o.scaling}
	if o.scaling != "" {
		if err := drawable(o.scaling); err != nil {
			return err
		}
	}
	for i := range o.studies {
		s := &o.studies[i]
		files = append(files, s.CSV, s.JSON)
		for k := range s.Plots {
			if err := s.Plots[k].check(s); err != nil {
				return err
			}
			files = append(files, s.Plots[k].File)
		}
	}
	for _, name := range files {
		if err := writable(name); err != nil {
			return err
		}
	}
	return nil
}

// writable returns an error if a file cannot be written. It leaves the file as it is.
func writable(name string) error {
	if name == "" || name == "-" {
		return nil
	}
	_, missing := os.Stat(name)
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	f.Close()
	if missing != nil {
		return os.Remove(name)
	}
	return nil
}

// plotFlags makes the flags of a plot.
func plotFlags(fs *flag.FlagSet) *figure {
	p := new(figure)
	fs.StringVar(&p.File, "plot", "", "plot to this `FILE`, .svg or .png")
	fs.StringVar(&p.X, "x", "at", "what to plot along: a `FIELD`, or \"at\" for the time that passes")
	fs.StringVar(&p.Y, "y", "", "what to plot, a `COLUMN` of the CSV file; along time mean, deviation or max of connections; default mean")
	fs.BoolVar(&p.Log, "log", false, "plot with logarithmic axes")
	return p
}

// read makes studies of files, or one of the flags alone. Flags go before what files
// say.
func (o *options) read(files []string, extra study, given []assignment) error {
	if len(files) == 0 {
		files = []string{""}
	}
	for _, file := range files {
		var s study
		if file != "" {
			if err := s.read(file); err != nil {
				return err
			}
		}
		for _, a := range given {
			if err := a.to(&s.Scenario); err != nil {
				return err
			}
		}
		if _, err := s.override(extra).scenarios(); err != nil {
			return err
		}
		o.studies = append(o.studies, *s.override(extra))
	}
	return nil
}

// scenarioFlags makes a flag of each field of a scenario.
func scenarioFlags(fs *flag.FlagSet) *[]assignment {
	given := new([]assignment)
	of := reflect.TypeFor[sim.Scenario]()
	for i := range of.NumField() {
		name := fieldName(of.Field(i))
		set := func(value string) error {
			a := assignment{name, value}
			*given = append(*given, a)
			return a.to(new(sim.Scenario))
		}
		if of.Field(i).Type.Kind() == reflect.Bool {
			fs.BoolFunc(name, usage[name], set)
		} else {
			fs.Func(name, usage[name], set)
		}
	}
	return given
}

func fieldName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// profile begins to write a profile if one is asked for.
func (o *options) profile() (stop func(), err error) {
	if o.cpu == "" {
		return func() {}, nil
	}
	f, err := os.Create(o.cpu)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, err
	}
	return func() { pprof.StopCPUProfile(); f.Close() }, nil
}
