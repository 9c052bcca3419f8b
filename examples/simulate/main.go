// Command simulate plays clusters in the simulator of internal/sim, which runs the
// policies and boards of this module on simulated hosts, and shows what comes of it.
//
//	simulate -hosts 100 -period 5 -policy least
//	simulate -hosts 10 -sweep "period=0.5 1 2 5 10" -sweep "policy=least home-or-other" -x period -plot out.svg
//	simulate scenarios/changes.json
//	simulate -check
//	simulate -check -only "figure 1[0-2]"
//	simulate -scaling scaling.svg
//
// Each field of a scenario is a flag; see internal/sim's Scenario for what they
// mean. Times are in mean service times of a connection. A scenario file holds a
// scenario, what to sweep and what to plot; flags override what it says.
//
// Exit status: 0 if all went well, 1 if not, or if a figure of -check came out
// wrong, 2 for wrong arguments.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime/debug"
	"time"

	"github.com/carom-dpr/carom/internal/sim"
	"github.com/carom-dpr/carom/internal/sim/figures"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	// Simulations of few hosts have little memory and much garbage, which at the
	// default would be collected every few milliseconds. Those of ten thousand that
	// keep tables have gigabytes, of which five times as much would be too much.
	if os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetGCPercent(400)
		debug.SetMemoryLimit(memory)
	}
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// memory is what may be used before garbage is collected more often, in bytes.
const memory = 6 << 30

func run(ctx context.Context, args []string, out, log io.Writer) int {
	o, err := parseOptions(args, log)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(log, "simulate:", err)
		return 2
	}
	stop, err := o.profile()
	if err == nil {
		err = o.run(ctx, out, log)
		stop()
	}
	if err != nil {
		fmt.Fprintln(log, "simulate:", err)
		return 1
	}
	return 0
}

func (o *options) run(ctx context.Context, out, log io.Writer) error {
	switch {
	case o.check:
		return check(ctx, o.seeds, o.only, out, log)
	case o.scaling != "":
		return scaling(ctx, o.scaling, out, log)
	}
	for _, s := range o.studies {
		if err := s.play(ctx, out, log); err != nil {
			return err
		}
	}
	return nil
}

// check compares the simulator with figures that are known.
func check(ctx context.Context, seeds int, only *regexp.Regexp, out, log io.Writer) error {
	began := time.Now()
	p := newProgress(log)
	lines, wrong, err := figures.Check(ctx, out, seeds, only, p.set)
	p.end()
	if err != nil {
		return err
	}
	if lines == 0 {
		return fmt.Errorf("no figure is called %v", only)
	}
	fmt.Fprintf(out, "\n%d of %d figures within tolerance, %d seeds, %v\n",
		lines-wrong, lines, seeds, time.Since(began).Round(time.Second))
	if only == nil {
		if err := shipped(ctx, out, log); err != nil {
			return err
		}
	}
	if wrong > 0 {
		return fmt.Errorf("%d figures are outside their tolerance", wrong)
	}
	return nil
}

// shipped shows what the estimate of package lb is better at than the figures' own.
func shipped(ctx context.Context, out, log io.Writer) error {
	fmt.Fprint(out, "\nMean response if choosers count what they sent, as in the figures, and with the estimate as shipped:\n")
	p := newProgress(log)
	rows, err := figures.Shipped(ctx, 1, p.set)
	p.end()
	if err != nil {
		return err
	}
	for _, d := range rows {
		fmt.Fprintln(out, d)
	}
	return nil
}

// play runs what a study has and writes what was asked for.
func (s *study) play(ctx context.Context, out, log io.Writer) error {
	scenarios, err := s.scenarios()
	if err != nil {
		return err
	}
	p := newProgress(log)
	results, err := sim.Sweep(ctx, scenarios, p.set)
	p.end()
	if err != nil {
		return err
	}
	if s.Title != "" {
		fmt.Fprintln(out, s.Title)
	}
	if err := s.writeTable(out, results); err != nil {
		return err
	}
	return s.writeFiles(results)
}
