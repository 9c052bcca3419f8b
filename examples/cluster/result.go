package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// result is the summary of a run; its JSON form is part of the command's contract.
type result struct {
	Net         string       `json:"net"`
	Hosts       []hostResult `json:"hosts"`
	Requests    int          `json:"requests"`
	Failed      int          `json:"failed"`
	WrongSource int          `json:"wrong_source"`
	LatencyMS   latencies    `json:"latency_ms"`
	Imbalance   float64      `json:"imbalance"`
	// firstError says why the first request failed.
	firstError string
}

// hostResult counts connections of one host.
type hostResult struct {
	Name string `json:"name"`
	Addr string `json:"addr"`
	// Dialled is counted by the clients, Served by the host's web server, the
	// redirects by its engine.
	Dialled       int `json:"dialled"`
	Served        int `json:"served"`
	RedirectedOut int `json:"redirected_out"`
	RedirectedIn  int `json:"redirected_in"`
	// established is the host's own count of open connections, for the live table.
	established int
}

type latencies struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// summarize sorts all and returns its percentiles in milliseconds.
func summarize(all []time.Duration) latencies {
	if len(all) == 0 {
		return latencies{}
	}
	slices.Sort(all)
	at := func(p float64) float64 {
		return float64(all[int(p*float64(len(all)-1))].Microseconds()) / 1000
	}
	return latencies{P50: at(0.50), P99: at(0.99), Max: at(1)}
}

// imbalance is the largest share of work over the mean.
func imbalance(hosts []hostResult) float64 {
	most, sum := 0, 0
	for _, h := range hosts {
		most, sum = max(most, h.Served), sum+h.Served
	}
	if sum == 0 {
		return 0
	}
	return float64(most) * float64(len(hosts)) / float64(sum)
}

// add adds what the i-th client counted; it began with the i-th host.
func (r *result) add(m *clientDone, i int) {
	r.Requests += m.Done
	r.Failed += m.Failed
	r.WrongSource += m.WrongSource
	for k, n := range m.Dialled {
		r.Hosts[(k+i)%len(m.Dialled)].Dialled += n
	}
	if m.FirstError != "" && r.firstError == "" {
		r.firstError = m.FirstError
	}
}

// print writes the table and the figures below it.
func (r *result) print(w io.Writer) {
	fmt.Fprintln(w, titles)
	for _, h := range r.Hosts {
		fmt.Fprintln(w, h.row())
	}
	total := max(1, r.Requests)
	redirected := 0
	for _, h := range r.Hosts {
		redirected += h.RedirectedOut
	}
	fmt.Fprintf(w, "\nrequests %d, failed %d, answers from a wrong source %d\n", r.Requests, r.Failed, r.WrongSource)
	if r.firstError != "" {
		fmt.Fprintf(w, "first failure: %s\n", r.firstError)
	}
	fmt.Fprintf(w, "redirected %.0f %%, imbalance (max/mean served) %.2f\n", 100*float64(redirected)/float64(total), r.Imbalance)
	fmt.Fprintf(w, "latency p50 %.1f ms, p99 %.1f ms, max %.1f ms\n", r.LatencyMS.P50, r.LatencyMS.P99, r.LatencyMS.Max)
}

var titles = fmt.Sprintf("%-8s %-16s %8s %8s %8s %8s %12s", "host", "address", "dialled", "served", "out", "in", "established")

func (h *hostResult) row() string {
	return fmt.Sprintf("%-8s %-16s %8d %8d %8d %8d %12d",
		h.Name, h.Addr, h.Dialled, h.Served, h.RedirectedOut, h.RedirectedIn, h.established)
}

// openJSON opens where the summary goes, nil for nowhere.
func (o *options) openJSON() (*os.File, error) {
	switch o.JSON {
	case "":
		return nil, nil
	case "-":
		return os.Stdout, nil
	}
	f, err := os.Create(o.JSON)
	if err != nil {
		return nil, fmt.Errorf("-json: %w: give a file that can be written", err)
	}
	return f, nil
}

// writeJSON writes the summary and closes the file.
func (r *result) writeJSON(to *os.File) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = to.Write(append(b, '\n'))
	return errors.Join(err, to.Close())
}

// A screen redraws the live table in place on a terminal, and prints a line of
// progress now and then elsewhere.
type screen struct {
	w        io.Writer
	terminal bool
	lines    int
	last     time.Time
}

func newScreen(f *os.File) *screen {
	info, err := f.Stat()
	return &screen{w: f, terminal: err == nil && info.Mode()&os.ModeCharDevice != 0}
}

// progressEvery keeps logs short where there is no terminal.
const progressEvery = 2 * time.Second

func (s *screen) draw(hosts []hostResult, done, total int, now time.Time) {
	if !s.terminal {
		if now.Sub(s.last) >= progressEvery {
			s.last = now
			fmt.Fprintf(s.w, "%d of %d requests\n", done, total)
		}
		return
	}
	var b strings.Builder
	if s.lines > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", s.lines)
	}
	fmt.Fprintf(&b, "%s\x1b[K\n", titles)
	for i := range hosts {
		fmt.Fprintf(&b, "%s\x1b[K\n", hosts[i].row())
	}
	fmt.Fprintf(&b, "%d of %d requests\x1b[K\n", done, total)
	s.lines = len(hosts) + 2
	io.WriteString(s.w, b.String())
}

// clear removes the live table, so that the summary takes its place.
func (s *screen) clear() {
	if s.terminal && s.lines > 0 {
		fmt.Fprintf(s.w, "\x1b[%dA\x1b[J", s.lines)
		s.lines = 0
	}
}
