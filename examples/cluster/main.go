// Command cluster builds a whole carom cluster on one machine, drives HTTP
// requests at it, one connection each, and shows who was dialled and who served.
//
// With -net kernel every host is a network namespace with the kernel's own TCP
// stack, a TUN, a router and a web server; that needs the right to make network
// namespaces. With -net memory the same engines run over links in memory, with
// gVisor's TCP stacks, on any system and without privileges. Without -net it takes
// the kernel where it may and says which.
//
// Exit status: 0 if every request was answered from the address it was sent to, 1
// if not or if the cluster could not be built, 2 for wrong arguments.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	os.Exit(run(ctx))
}

func run(ctx context.Context) int {
	if role := os.Getenv(roleVariable); role != "" {
		return play(ctx, role)
	}
	o, err := parseOptions(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		return 2
	}
	summary, err := o.openJSON() // before the work, which a mistyped path would waste
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		return 2
	}
	r, err := drive(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		return 1
	}
	if summary != nil {
		if err := r.writeJSON(summary); err != nil {
			fmt.Fprintln(os.Stderr, "cluster:", err)
			return 1
		}
	}
	if r.Failed > 0 || r.WrongSource > 0 {
		return 1
	}
	return 0
}

// A cluster is what runs the load: kernel or memory.
type cluster interface {
	// start sets the load going; progress tells how far it is, and done is closed
	// at its end.
	start(ctx context.Context) (done <-chan error)
	// result returns the counts so far.
	result() result
	// progress returns how many requests have ended.
	progress() int
	// enter says how to look around, for -keep.
	enter() string
	close() error
}

// drive builds the cluster, runs the load and takes the cluster down.
func drive(ctx context.Context, o options) (r result, err error) {
	out := io.Writer(os.Stdout)
	screen := newScreen(os.Stdout)
	if o.JSON == "-" {
		out = os.Stderr
		screen = newScreen(os.Stderr)
	}
	c, err := build(ctx, o, out)
	if err != nil {
		return result{}, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	if err := watch(ctx, c, o, screen); err != nil {
		return result{}, err
	}
	r = c.result()
	r.Imbalance = imbalance(r.Hosts)
	screen.clear()
	r.print(out)
	if o.Keep {
		fmt.Fprintf(out, "\nThe cluster stays up until you interrupt this command (Ctrl-C).\n%s\n", c.enter())
		<-ctx.Done()
	}
	return r, nil
}

// watch runs the load and shows its progress.
func watch(ctx context.Context, c cluster, o options, s *screen) error {
	done := c.start(ctx)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return err
		case now := <-tick.C:
			s.draw(c.result().Hosts, c.progress(), o.Requests, now)
		case <-ctx.Done():
			return errInterrupted
		}
	}
}

var errInterrupted = errors.New("interrupted")

// build takes the network that the options ask for, and says which and why.
func build(ctx context.Context, o options, out io.Writer) (cluster, error) {
	if o.Net != "memory" {
		err := kernelAvailable()
		if err == nil {
			fmt.Fprintf(out, "network: the kernel's, one namespace per host; %v\n", &o)
			return newKernelCluster(ctx, o)
		}
		if o.Net == "kernel" || o.Server == "nginx" {
			return nil, fmt.Errorf("-net kernel: %w; -net memory needs no privileges", err)
		}
		fmt.Fprintf(out, "network: in memory, since the kernel's is not to be had (%v); %v\n", err, &o)
	} else {
		fmt.Fprintf(out, "network: in memory; %v\n", &o)
	}
	return newMemoryCluster(ctx, o)
}
