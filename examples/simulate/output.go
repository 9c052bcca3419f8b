package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/carom-dpr/carom/internal/sim"
)

// A column is a number that a run gives.
type column struct {
	name string
	of   func(r *sim.Result) float64
}

// columns are all of them; those with a star are in the table for people, too.
var columns = []column{
	{"*mean", func(r *sim.Result) float64 { return r.Mean }},
	{"*p50", func(r *sim.Result) float64 { return r.P50 }},
	{"*p99", func(r *sim.Result) float64 { return r.P99 }},
	{"*p99.9", func(r *sim.Result) float64 { return r.P999 }},
	{"*redirected", func(r *sim.Result) float64 { return r.Share }},
	{"*imbalance", func(r *sim.Result) float64 { return r.Imbalance }},
	{"*fullest", func(r *sim.Result) float64 { return r.Fullest }},
	{"in_system", func(r *sim.Result) float64 { return r.InSystem }},
	{"arrived", func(r *sim.Result) float64 { return float64(r.Arrived) }},
	{"*finished", func(r *sim.Result) float64 { return float64(r.Finished) }},
	{"*refused", func(r *sim.Result) float64 { return float64(r.Refused) }},
	{"*lost", func(r *sim.Result) float64 { return float64(r.Lost) }},
	{"*reports", func(r *sim.Result) float64 { return float64(r.Reports) }},
	{"*bytes", func(r *sim.Result) float64 { return float64(r.ReportBytes) }},
	{"report_rate", func(r *sim.Result) float64 { return r.ReportRate }},
}

// columnOf returns the column of a name.
func columnOf(name string) (column, error) {
	var names []string
	for _, c := range columns {
		c.name = strings.TrimPrefix(c.name, "*")
		if c.name == name {
			return c, nil
		}
		names = append(names, c.name)
	}
	return column{}, fmt.Errorf("there is no column %q: use %s", name, strings.Join(names, ", "))
}

// labels are the values by which runs differ.
func (s *study) labels(sc sim.Scenario) (list []string) {
	for _, a := range s.Sweep {
		list = append(list, valueOf(sc, a.Field))
	}
	return list
}

// valueOf is a field of a scenario as text.
func valueOf(sc sim.Scenario, field string) string {
	text, _ := json.Marshal(sc) // a scenario always can be
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(text, &fields)
	value, ok := fields[field]
	if !ok {
		return "0"
	}
	if s, err := strconv.Unquote(string(value)); err == nil {
		return s
	}
	return string(value)
}

func (s *study) writeTable(w io.Writer, results []sim.Result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	var head []string
	for _, a := range s.Sweep {
		head = append(head, a.Field)
	}
	for _, c := range columns {
		if name, show := strings.CutPrefix(c.name, "*"); show {
			head = append(head, name)
		}
	}
	fmt.Fprintln(t, strings.Join(head, "\t")+"\t")
	for i := range results {
		row := s.labels(results[i].Scenario)
		for _, c := range columns {
			if strings.HasPrefix(c.name, "*") {
				row = append(row, short(c.of(&results[i])))
			}
		}
		fmt.Fprintln(t, strings.Join(row, "\t")+"\t")
	}
	return t.Flush()
}

// short writes a number with three digits or so, and counts whole.
func short(x float64) string {
	if x == float64(int64(x)) {
		return strconv.FormatInt(int64(x), 10)
	}
	return strconv.FormatFloat(x, 'f', 3, 64)
}

func (s *study) writeFiles(results []sim.Result) error {
	if err := writeTo(s.CSV, func(w io.Writer) error { return s.writeCSV(w, results) }); err != nil {
		return err
	}
	err := writeTo(s.JSON, func(w io.Writer) error {
		e := json.NewEncoder(w)
		e.SetIndent("", " ")
		return e.Encode(results)
	})
	if err != nil {
		return err
	}
	for _, p := range s.Plots {
		if err := p.draw(s, results); err != nil {
			return err
		}
	}
	return nil
}

// writeTo writes to a file, if there is a name, or to the standard output.
func writeTo(name string, write func(io.Writer) error) error {
	switch name {
	case "":
		return nil
	case "-":
		return write(os.Stdout)
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := write(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

func (s *study) writeCSV(w io.Writer, results []sim.Result) error {
	c := csv.NewWriter(w)
	fields := []string{"name", "hosts", "policy", "period", "load", "seed"}
	for _, a := range s.Sweep {
		if !contains(fields, a.Field) {
			fields = append(fields, a.Field)
		}
	}
	head := append([]string(nil), fields...)
	for _, col := range columns {
		head = append(head, strings.TrimPrefix(col.name, "*"))
	}
	if err := c.Write(head); err != nil {
		return err
	}
	for i := range results {
		var row []string
		for _, f := range fields {
			row = append(row, valueOf(results[i].Scenario, f))
		}
		for _, col := range columns {
			row = append(row, strconv.FormatFloat(col.of(&results[i]), 'g', -1, 64))
		}
		if err := c.Write(row); err != nil {
			return err
		}
	}
	c.Flush()
	return c.Error()
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}
