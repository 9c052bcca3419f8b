// Command router makes the host that it runs on a member of a carom cluster, beside
// any server: nginx, a database, a game server. The server needs no change as long
// as it listens on the wildcard address.
//
//	go build -o carom-router ./examples/router
//
// makes the program, and
//
//	carom-router -config /etc/carom/router.yaml
//
// runs until SIGTERM or SIGINT, and then undoes all that it changed on the host.
// SIGHUP has it read the configuration again: it is validated first, applied without
// breaking a connection, and if there is anything wrong with it, the old one stays
// in force as a whole. router.yaml beside this file explains every setting.
//
//	carom-router -check -config FILE
//
// says what is wrong with a configuration, without touching anything.
//
//	carom-router -flows
//
// lists the connections that the running router remembers.
//
// While it runs it answers HTTP at the address of -listen: GET /metrics in the form
// of Prometheus; GET /healthz, 200 as long as it works, with its state in words; GET
// /status, all that it knows of its cluster, as JSON; GET /flows, the connection
// table, a JSON object in each line. POST /drain keeps new connections away from this
// host, POST /undrain ends that; both only from this host itself.
//
// Exit status: 0 if it ended because it was told to, or if -check or -flows had
// success; 1 if it could not start or a part of it failed; 2 for wrong arguments or a
// wrong configuration, in which case nothing was touched.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/carom-dpr/carom/dpr/node"
)

const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// program is the name that this one was called by.
var program = filepath.Base(os.Args[0])

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is the program.
func run(args []string, out, errs io.Writer) int {
	o, err := parseOptions(args, errs)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	if err != nil {
		fmt.Fprintf(errs, "%s: %v\n", program, err)
		return exitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	switch {
	case o.check:
		err = check(o.config, errs)
	case o.flows:
		err = listFlows(ctx, o.listen, out)
	default:
		reload := make(chan os.Signal, 1)
		signal.Notify(reload, syscall.SIGHUP)
		defer signal.Stop(reload)
		err = serve(ctx, o, node.Open, reload, errs)
	}
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(errs, "%s: %v\n", program, err)
	if errors.Is(err, errSettings) {
		return exitUsage
	}
	return exitFailed
}

// check reads a configuration and says what is wrong with it; what should not be, too.
func check(config string, errs io.Writer) error {
	s, err := readSettings(config)
	if err != nil {
		return err
	}
	for _, w := range s.doc.warns {
		fmt.Fprintf(errs, "%s: warning: %s\n", program, w)
	}
	return nil
}
