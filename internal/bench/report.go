package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// A report is what a command measured. It is written as Markdown, for people and
// docs/PERFORMANCE.md, and as JSON.
type report struct {
	Name    string   `json:"name"`
	Command string   `json:"command"`
	Time    string   `json:"time"`
	Machine machine  `json:"machine"`
	Notes   []string `json:"notes,omitempty"`
	Tables  []*table `json:"tables"`
	Targets []target `json:"targets,omitempty"`
	// Failures are the measurements that could not be made.
	Failures []string `json:"failures,omitempty"`
}

func newReport(name string) *report {
	return &report{
		Name:    name,
		Command: "go run ./internal/bench " + strings.Join(os.Args[1:], " "),
		Time:    time.Now().UTC().Format(time.RFC3339),
		Machine: thisMachine(),
	}
}

// A table has a value for some pairs of a row and a column, each the median of
// samples.
type table struct {
	Title   string      `json:"title"`
	Rows    []string    `json:"rows"`
	Columns []string    `json:"columns"`
	Samples [][]samples `json:"samples"` // by row and column
}

type samples []float64

func newTable(title string, rows, columns []string) *table {
	t := &table{Title: title, Rows: rows, Columns: columns}
	for range rows {
		t.Samples = append(t.Samples, make([]samples, len(columns)))
	}
	return t
}

// add adds a sample. Unknown rows and columns are mistakes of this program.
func (t *table) add(row, column string, value float64) {
	r, c := slices.Index(t.Rows, row), slices.Index(t.Columns, column)
	t.Samples[r][c] = append(t.Samples[r][c], value)
}

// samples returns those of a row and a column, none if there is no such.
func (t *table) samples(row, column string) samples {
	r, c := slices.Index(t.Rows, row), slices.Index(t.Columns, column)
	if r < 0 || c < 0 {
		return nil
	}
	return t.Samples[r][c]
}

// median returns the median of the samples there, or NaN if there are none.
func (t *table) median(row, column string) float64 { return t.samples(row, column).median() }

// ratio returns the median of one column over another in each round, since a machine
// that is slower for a while is so for both; NaN if either lacks a round.
func (t *table) ratio(row, column, over string) float64 {
	is, base := t.samples(row, column), t.samples(row, over)
	if len(is) != len(base) {
		return math.NaN()
	}
	ratios := make(samples, len(is))
	for i := range is {
		ratios[i] = is[i] / base[i]
	}
	return ratios.median()
}

func (s samples) median() float64 {
	if len(s) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(s))
	return (sorted[(len(s)-1)/2] + sorted[len(s)/2]) / 2
}

// A target is a figure that the project set itself, and what it is.
type target struct {
	What  string  `json:"what"`
	Want  string  `json:"want"`
	Value float64 `json:"-"`
	Known bool    `json:"known"`
	Got   string  `json:"got"`
	Met   string  `json:"met"`
}

// atLeast, atMost and reported judge a value; one that is not a number was not
// measured.
func atLeast(what string, value, limit float64) target {
	return judge(what, "≥ "+figure(limit), value, value >= limit)
}

func atMost(what string, value, limit float64) target {
	return judge(what, "≤ "+figure(limit), value, value <= limit)
}

func reported(what string, value float64) target {
	t := judge(what, "report", value, true)
	t.Met = ""
	return t
}

func judge(what, want string, value float64, met bool) target {
	t := target{What: what, Want: want, Value: value, Known: !math.IsNaN(value), Got: figure(value), Met: "not met"}
	switch {
	case !t.Known:
		t.Met = "not measured"
	case met:
		t.Met = "met"
	}
	return t
}

// figure writes a number with three digits that count.
func figure(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v):
		return "–"
	case v == 0:
		return "0"
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	case a >= 0.1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.2g", v)
}

// write writes the report as Markdown.
func (r *report) write(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "`%s`, %s\n\n%v\n\n", r.Command, r.Time, &r.Machine)
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "- %s\n", n)
	}
	if len(r.Notes) > 0 {
		b.WriteByte('\n')
	}
	for _, t := range r.Tables {
		t.write(&b)
	}
	if len(r.Targets) > 0 {
		lines := [][]string{{"target", "wanted", "measured", ""}}
		for _, t := range r.Targets {
			lines = append(lines, []string{t.What, t.Want, t.Got, t.Met})
		}
		writeLines(&b, lines)
	}
	for _, f := range r.Failures {
		fmt.Fprintf(&b, "- Failed: %s\n", f)
	}
	_, err := w.Write(append(bytes.TrimRight(b.Bytes(), "\n"), '\n'))
	return err
}

func (t *table) write(b *bytes.Buffer) {
	lines := [][]string{append([]string{t.Title}, t.Columns...)}
	for i, row := range t.Rows {
		line := []string{row}
		for _, s := range t.Samples[i] {
			line = append(line, figure(s.median()))
		}
		lines = append(lines, line)
	}
	writeLines(b, lines)
}

// writeLines writes a table, its columns aligned; the first line is the heading.
func writeLines(b *bytes.Buffer, lines [][]string) {
	widths := make([]int, len(lines[0]))
	for _, line := range lines {
		for i, field := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(field), 3)
		}
	}
	rule := make([]string, len(widths))
	for i, w := range widths {
		rule[i] = strings.Repeat("-", w)
		if i > 0 {
			rule[i] = rule[i][1:] + ":"
		}
	}
	for _, line := range slices.Insert(slices.Clone(lines), 1, rule) {
		for i, field := range line {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(field))
			if i == 0 {
				fmt.Fprintf(b, "| %s%s |", field, pad)
			} else {
				fmt.Fprintf(b, " %s%s |", pad, field)
			}
		}
		b.WriteByte('\n')
	}
	b.WriteByte('\n')
}

// save writes the report where the options say: to standard output, as JSON to a
// file, and into its section of a document.
func (r *report) save(o *options) error {
	if err := r.write(os.Stdout); err != nil {
		return err
	}
	if o.json != "" {
		b, err := json.MarshalIndent(r, "", "\t")
		if err != nil {
			return err
		}
		if err := os.WriteFile(o.json, append(b, '\n'), 0o644); err != nil {
			return err
		}
	}
	if o.doc == "" {
		return nil
	}
	doc, err := os.ReadFile(o.doc)
	if err != nil {
		return err
	}
	if doc, err = r.into(doc); err != nil {
		return fmt.Errorf("%s: %w", o.doc, err)
	}
	return os.WriteFile(o.doc, doc, 0o644)
}

// into puts the report between the marks of its section.
func (r *report) into(doc []byte) ([]byte, error) {
	begin, end := fmt.Sprintf("<!-- %s: begin -->\n", r.Name), fmt.Sprintf("<!-- %s: end -->\n", r.Name)
	head, rest, ok := bytes.Cut(doc, []byte(begin))
	if !ok {
		return nil, fmt.Errorf("there is no line %q", strings.TrimSpace(begin))
	}
	_, tail, ok := bytes.Cut(rest, []byte(end))
	if !ok {
		return nil, fmt.Errorf("there is no line %q", strings.TrimSpace(end))
	}
	var b bytes.Buffer
	if err := r.write(&b); err != nil {
		return nil, err
	}
	return slices.Concat(head, []byte(begin+"\n"), b.Bytes(), []byte("\n"+end), tail), nil
}
