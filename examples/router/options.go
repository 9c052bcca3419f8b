package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
)

// options are what the command line says.
type options struct {
	config string
	check  bool
	flows  bool
	listen netip.AddrPort
	format string
	level  slog.Level
}

// defaultListen is out of reach for other hosts, since what it tells is nobody
// else's business, and anybody on this host may drain it.
const defaultListen = "127.0.0.1:6090"

func parseOptions(args []string, errs io.Writer) (o options, err error) {
	fs := flag.NewFlagSet(program, flag.ContinueOnError)
	fs.SetOutput(errs)
	fs.StringVar(&o.config, "config", "/etc/carom/router.yaml", "read the configuration from this `file`")
	fs.BoolVar(&o.check, "check", false, "say what is wrong with the configuration, and end")
	fs.BoolVar(&o.flows, "flows", false, "list the connections of the running router, and end")
	listen := fs.String("listen", defaultListen, "answer HTTP at this `address:port`")
	fs.StringVar(&o.format, "log", "text", "log in this `form`: text or json")
	level := fs.String("level", "info", "log what is at least this `grave`: debug, info, warn or error")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("argument %q: there are only flags, see -help", fs.Arg(0))
	}
	if o.check && o.flows {
		return o, errors.New("-check and -flows are two things: give one of them")
	}
	if o.listen, err = netip.ParseAddrPort(*listen); err != nil {
		return o, fmt.Errorf("-listen %q: give an address and a port, such as %s", *listen, defaultListen)
	}
	if formats := []string{"text", "json"}; !slices.Contains(formats, o.format) {
		return o, fmt.Errorf("-log %q: give one of %s", o.format, strings.Join(formats, ", "))
	}
	if err := o.level.UnmarshalText([]byte(*level)); err != nil {
		return o, fmt.Errorf("-level %q: give one of debug, info, warn, error", *level)
	}
	return o, nil
}

// logger returns the logger that the options ask for.
func (o *options) logger(to io.Writer) *slog.Logger {
	how := &slog.HandlerOptions{Level: o.level}
	if o.format == "json" {
		return slog.New(slog.NewJSONHandler(to, how))
	}
	return slog.New(slog.NewTextHandler(to, how))
}
