// Command replay runs a capture through an engine and says of each packet what carom
// would do with it, and why: the verdict, the reason of a drop, the state of the flow
// and what was rewritten.
//
//	replay -service web=tcp:80@198.51.100.1 -peer h2 -policy "send-to h2" web.pcap
//
// It reads pcap and pcapng files with Ethernet frames (and their VLAN tags), bare IP
// packets, loopback or PPP. Packets come from the network, or with -uplink through
// the tunnel from a peer. The engine's clock follows the capture's, so that idle
// flows are forgotten as they would have been. With -w what would leave the engine is
// written to a pcapng file, each packet with a comment that says the same as its
// line.
//
// A line holds the packet's number, the time since the first one in seconds, the
// verdict, the flow's state, the packet, and behind a bar what became of it. Packets
// without a number left later than they came, such as held fragments; a line of
// dashes says what happened between packets.
//
// Exit status: 0 if the whole capture was read, 1 if not, 2 for wrong arguments.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	o, err := parseOptions(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(stderr, "replay:", err)
		return 2
	}
	out := bufio.NewWriter(stdout)
	err = errors.Join(replayFile(o, out), out.Flush())
	if err != nil {
		fmt.Fprintln(stderr, "replay:", err)
		return 1
	}
	return 0
}

// replayFile opens what the options name and runs it.
func replayFile(o *options, out io.Writer) (err error) {
	in, err := os.Open(o.file)
	if err != nil {
		return err
	}
	defer in.Close()
	capture, err := openCapture(in)
	if err != nil {
		return fmt.Errorf("%s: %w", o.file, err)
	}
	r, err := newReplay(o, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.engine.Close()) }()
	if o.write != "" {
		if same(in, o.write) {
			return fmt.Errorf("-w %s is the capture itself: write to another file", o.write)
		}
		f, err := os.Create(o.write)
		if err != nil {
			return err
		}
		defer f.Close()
		if r.leaving, err = newNgWriter(f); err != nil {
			return err
		}
	}
	if err := r.run(capture); err != nil {
		return fmt.Errorf("%s: %w", o.file, err)
	}
	return r.finish()
}

// same reports whether the path leads to the open file.
func same(f *os.File, path string) bool {
	a, errA := f.Stat()
	b, errB := os.Stat(path)
	return errA == nil && errB == nil && os.SameFile(a, b)
}
