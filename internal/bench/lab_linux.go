package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/carom-dpr/carom/internal/lab"
)

// labRun is one run of the lab.
type labRun struct {
	ctx    context.Context
	o      *options
	report *report
	cells  []*cell
	main   *table             // rows by forwarder
	aside  *table             // rows of carom alone
	pairs  map[string]float64 // ratios of duels, by row
	worlds []*world
}

// asideColumn is the only column of the table of rows that carom alone has.
const asideColumn = "carom's"

func runLab(ctx context.Context, o *options) (r *report, err error) {
	if err := lab.Available(); err != nil {
		return nil, err
	}
	l := &labRun{ctx: ctx, o: o, report: newReport("lab"), pairs: map[string]float64{}}
	defer func() { err = errors.Join(err, l.close()) }()
	if err := l.build(); err != nil {
		return nil, err
	}
	l.choose()
	l.tables()
	for round := range o.rounds {
		l.round(round)
		l.flood(round)
	}
	l.duels()
	l.idle()
	if ctx.Err() != nil {
		return nil, errors.New("interrupted")
	}
	l.derive()
	l.report.Targets = labTargets(l.main, l.aside, l.pairs)
	if o.only != "" || len(o.forwarders) > 0 {
		l.report.Targets = slices.DeleteFunc(l.report.Targets, func(t target) bool { return !t.Known })
	}
	return l.report, nil
}

// build makes a world for each forwarder that is wanted and that this machine has.
func (l *labRun) build() error {
	for _, name := range l.o.forwarders {
		if !slices.ContainsFunc(forwarders, func(f forwarder) bool { return f.name == name }) {
			return fmt.Errorf("there is no forwarder %q", name)
		}
	}
	for i := range forwarders {
		f := &forwarders[i]
		if len(l.o.forwarders) > 0 && !slices.Contains(l.o.forwarders, f.name) || f.aside && !wants(l.o.only, "flood") {
			continue
		}
		if f.missing != nil {
			if why := f.missing(); why != "" {
				l.report.Notes = append(l.report.Notes, fmt.Sprintf("%s is missing: %s.", f.name, why))
				continue
			}
		}
		l.progress("building %s", f.name)
		w, err := newWorld(l.ctx, f)
		if err != nil {
			return err
		}
		w.aside = f.aside
		l.worlds = append(l.worlds, w)
	}
	return nil
}

// choose takes the cells that are wanted and can be had.
func (l *labRun) choose() {
	missing := lacks("wrk")()
	for i := range cells {
		c := &cells[i]
		switch {
		case !wants(l.o.only, c.name):
		case c.wrk && missing != "":
			l.report.Notes = append(l.report.Notes, fmt.Sprintf("%s is missing: %s.", c.rows[0], missing))
		default:
			l.cells = append(l.cells, c)
		}
	}
}

func (l *labRun) tables() {
	l.report.Notes = append(l.report.Notes,
		fmt.Sprintf("%d rounds of %v s each, every other one in the opposite order; medians, and ratios in targets are medians of the rounds' ratios. %d connections carry a transfer, %d are wrk's.",
			l.o.rounds, l.o.seconds, streams, wrkConnections),
		fmt.Sprintf("Where a target is so near to 1 that few rounds do not tell it from noise, its two columns were measured %d times more, in turn; the targets are medians of these pairs' ratios.",
			l.o.rounds*duelsPerRound),
		"CPU is what the whole machine did meanwhile by /proc/stat, interrupts, client and server included: nothing else runs.",
		"Client, entry host and server share the machine's cores. Every connection is redirected, but for “"+caromLocal+"”.")
	var rows, columns []string
	for _, c := range l.cells {
		rows = append(rows, c.rows...)
		if c.name == "latency" {
			rows = append(rows, rowP50Added, rowP99Added)
		}
	}
	for _, w := range l.worlds {
		if !w.aside {
			columns = append(columns, w.name)
		}
	}
	l.main = newTable("", rows, columns)
	rows = nil
	if wants(l.o.only, "idle") {
		rows = append(rows, rowIdle)
	}
	if wants(l.o.only, "flood") {
		rows = append(rows, floodRows...)
	}
	l.aside = newTable("carom", rows, []string{asideColumn})
	l.report.Tables = []*table{l.main}
	if len(rows) > 0 {
		l.report.Tables = append(l.report.Tables, l.aside)
	}
}

// The rows that are computed from others: what a forwarder adds to the direct way.
const (
	rowP50Added = "latency added, p50, µs"
	rowP99Added = "latency added, p99, µs"
)

func (l *labRun) derive() {
	if !slices.Contains(l.main.Rows, rowP50) {
		return
	}
	for _, d := range [][2]string{{rowP50, rowP50Added}, {rowP99, rowP99Added}} {
		for _, column := range l.main.Columns {
			added := l.main.median(d[0], column) - l.main.median(d[0], direct)
			if added == added {
				l.main.add(d[1], column, added)
			}
		}
	}
}

// round measures every cell in every world once.
func (l *labRun) round(round int) {
	worlds := slices.Clone(l.worlds)
	if round%2 == 1 {
		slices.Reverse(worlds)
	}
	for _, c := range l.cells {
		for _, w := range worlds {
			if w.aside || c.udp && w.noUDP || l.ctx.Err() != nil {
				continue
			}
			l.cell(l.main, round, c, w)
		}
	}
}

// duels are the forwarders whose ratio in a row has a target of nearly 1.
var duels = []struct{ cell, row, what, over string }{
	{"upload", rowUpload, caromLocal, direct},
	{"download", rowDownload, caromLocal, direct},
	{"http", rowHTTP, caromLocal, direct},
	{"download1g", rowDownloadCPU, carom, haproxy},
}

// duelsPerRound is how many pairs there are for each round of all.
const duelsPerRound = 4

// duels measures two forwarders in turn, the one that was last first each time.
func (l *labRun) duels() {
	for _, d := range duels {
		pair := []*world{l.world(d.what), l.world(d.over)}
		i := slices.IndexFunc(l.cells, func(c *cell) bool { return c.name == d.cell })
		if i < 0 || slices.Contains(pair, nil) {
			continue
		}
		t := newTable("", []string{d.row}, []string{d.what, d.over})
		for round := range l.o.rounds * duelsPerRound {
			for _, w := range pair {
				if l.ctx.Err() == nil {
					l.cell(t, round, l.cells[i], w)
				}
			}
			slices.Reverse(pair)
		}
		l.pairs[d.row] = t.ratio(d.row, d.what, d.over)
	}
}

// cell measures one, and adds to the table what it has rows for.
func (l *labRun) cell(t *table, round int, c *cell, w *world) {
	values, err := c.run(w, l.o.seconds)
	if err != nil {
		l.failed(c.name, w, err)
		return
	}
	for i, v := range values {
		if slices.Contains(t.Rows, c.rows[i]) {
			t.add(c.rows[i], w.name, v)
		}
	}
	l.progress("round %d: %s, %s: %.4g", round+1, c.name, w.name, values)
	l.settle()
}

// settle gives the kernel time to end what a measurement has left.
func (l *labRun) settle() {
	select {
	case <-time.After(settleTime):
	case <-l.ctx.Done():
	}
}

const settleTime = 200 * time.Millisecond

func (l *labRun) failed(what string, w *world, err error) {
	if l.ctx.Err() == nil {
		l.report.Failures = append(l.report.Failures, fmt.Sprintf("%s, %s: %v", what, w.name, err))
		l.progress("%s, %s failed: %v", what, w.name, err)
	}
}

func (l *labRun) progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}

func (l *labRun) close() error {
	var errs []error
	for _, w := range l.worlds {
		errs = append(errs, w.close())
	}
	return errors.Join(errs...)
}

func (l *labRun) world(name string) *world {
	for _, w := range l.worlds {
		if w.name == name {
			return w
		}
	}
	return nil
}
