// Command bench measures carom beside what its users would take instead, side by
// side in one run, and prints ratios: machines differ, ratios less.
//
//	go run ./internal/bench -micro    the engine, beside yardsticks
//	go run ./internal/bench -lab      whole networks, beside the kernel and proxies
//	go run ./internal/bench -soak     millions of connections: nothing may be left
//
// The lab needs Linux and the right to make network namespaces; it says which of the
// other forwarders it misses. Results are printed as Markdown; -json writes every
// sample, -doc replaces a section of docs/PERFORMANCE.md.
//
// Exit status: 0, or 1 if something could not be measured, 2 for wrong arguments. A
// target that is not met is a result.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// options is what the command line says.
type options struct {
	micro, lab, soak bool
	rounds           int
	seconds          float64
	idle             time.Duration
	only             string
	forwarders       []string
	connections      int
	json, doc        string
}

func parseOptions() *options {
	o := &options{}
	flag.BoolVar(&o.micro, "micro", false, "measure the engine")
	flag.BoolVar(&o.lab, "lab", false, "measure whole networks")
	flag.BoolVar(&o.soak, "soak", false, "run many connections through the engine and see what is left")
	flag.IntVar(&o.rounds, "rounds", 5, "how often everything is measured; medians are shown")
	flag.Float64Var(&o.seconds, "seconds", 3, "how long each measurement of the lab takes")
	flag.DurationVar(&o.idle, "idle", time.Minute, "how long the lab watches an idle router")
	flag.StringVar(&o.only, "only", "", "measure only these, comma-separated: upload, download, upload1g, download1g, udp, http, conn, latency, memory, idle, flood")
	flag.Func("forwarder", "measure the lab with this one only, a column's name; may be repeated", func(name string) error {
		o.forwarders = append(o.forwarders, name)
		return nil
	})
	flag.IntVar(&o.connections, "connections", 10_000_000, "number of connections of the soak")
	flag.StringVar(&o.json, "json", "", "write the report as JSON to this file")
	flag.StringVar(&o.doc, "doc", "", "write the report into its section of this document")
	flag.Parse()
	return o
}

// wants reports whether a comma-separated list has the name; an empty one has all.
func wants(list, name string) bool {
	if list == "" {
		return true
	}
	for item := range strings.SplitSeq(list, ",") {
		if strings.EqualFold(strings.TrimSpace(item), name) {
			return true
		}
	}
	return false
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if spec := os.Getenv(roleVariable); spec != "" {
		os.Exit(play(ctx, spec))
	}
	o := parseOptions()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o *options) error {
	measure := runLab
	switch {
	case o.micro:
		measure = runMicro
	case o.lab:
	case o.soak:
		measure = runSoak
	default:
		flag.Usage()
		os.Exit(2)
	}
	r, err := measure(ctx, o)
	if err != nil {
		return err
	}
	if err := r.save(o); err != nil {
		return err
	}
	if n := len(r.Failures); n > 0 {
		return fmt.Errorf("%d measurements failed", n)
	}
	return nil
}
