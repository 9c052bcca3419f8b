package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/lb"
)

// options is what the command line says.
type options struct {
	Hosts       int
	Entry       string
	Policy      string
	Requests    int
	Concurrency int
	ServiceTime time.Duration
	Server      string
	Net         string
	IPv6        bool
	Gossip      string
	Reply       string
	DNS         bool
	JSON        string
	Keep        bool
	// link is each host's connection to the network in memory.
	link dprtest.Link
}

// policies are the flag's short names and what they stand for in package lb.
var policies = map[string]string{
	"home-or-other": "home-or-other",
	"least":         "least",
	"p2c":           "p2c",
	"rr":            "rr",
	"stay":          "stay",
}

// parseOptions reads the command line. Errors name the flag and the remedy.
func parseOptions(args []string, stderr io.Writer) (options, error) {
	o := options{link: perfectLink}
	f := flag.NewFlagSet("cluster", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.IntVar(&o.Hosts, "hosts", 4, "number of hosts, 1 to 64")
	f.StringVar(&o.Entry, "entry", "all", "which hosts the clients dial: all, or one (a DNS cache gone wrong)")
	f.StringVar(&o.Policy, "policy", "home-or-other", "how a host chooses who serves: home-or-other, least, p2c, rr or stay")
	f.IntVar(&o.Requests, "requests", 4000, "number of HTTP requests, one connection each")
	f.IntVar(&o.Concurrency, "concurrency", 64, "number of requests under way at once")
	f.DurationVar(&o.ServiceTime, "service-time", 20*time.Millisecond, "how long a server takes for an answer")
	f.StringVar(&o.Server, "server", "builtin", "web server on each host: builtin or nginx (kernel only)")
	f.StringVar(&o.Net, "net", "auto", "kernel (network namespaces), memory (no privileges needed), or auto")
	f.BoolVar(&o.IPv6, "6", false, "use IPv6")
	f.StringVar(&o.Gossip, "gossip", "broadcast", "how hosts tell each other of their load: broadcast, or memberlist")
	f.StringVar(&o.Reply, "reply", "direct", "how hosts answer for each other: direct, or tunnelled back through the host that was dialled")
	f.BoolVar(&o.DNS, "dns", false, "clients look the hosts up at name servers that the hosts run")
	f.StringVar(&o.JSON, "json", "", "write the summary as JSON to this file, - for standard output")
	f.BoolVar(&o.Keep, "keep", false, "leave the cluster up until interrupted")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: all settings are flags, see -help", f.Arg(0))
	}
	return o, o.validate()
}

const maxHosts = 64

func (o *options) validate() error {
	switch {
	case o.Hosts < 1 || o.Hosts > maxHosts:
		return fmt.Errorf("-hosts %d: give 1 to %d", o.Hosts, maxHosts)
	case !slices.Contains([]string{"all", "one"}, o.Entry):
		return fmt.Errorf("-entry %q: give all or one", o.Entry)
	case o.Requests < 1:
		return fmt.Errorf("-requests %d: give at least 1", o.Requests)
	case o.Concurrency < 1:
		return fmt.Errorf("-concurrency %d: give at least 1", o.Concurrency)
	case o.ServiceTime < 0:
		return fmt.Errorf("-service-time %v: give 0 or more", o.ServiceTime)
	case !slices.Contains([]string{"builtin", "nginx"}, o.Server):
		return fmt.Errorf("-server %q: give builtin or nginx", o.Server)
	case !slices.Contains([]string{"auto", "kernel", "memory"}, o.Net):
		return fmt.Errorf("-net %q: give auto, kernel or memory", o.Net)
	case !slices.Contains([]string{"broadcast", "memberlist"}, o.Gossip):
		return fmt.Errorf("-gossip %q: give broadcast or memberlist", o.Gossip)
	case !slices.Contains([]string{dpr.ReplyDirect.String(), dpr.ReplyTunnelled.String()}, o.Reply):
		return fmt.Errorf("-reply %q: give direct or tunnelled", o.Reply)
	case o.DNS && o.Entry == "one":
		return errors.New("-entry one is for clients that do not ask the DNS: give -entry all, or no -dns")
	case o.Server == "nginx" && o.Net == "memory":
		return errors.New("-server nginx needs the kernel's network: give -net kernel, or -server builtin")
	}
	if _, err := o.policy(); err != nil {
		return err
	}
	return nil
}

func (o *options) policy() (lb.Policy, error) {
	spec, known := policies[o.Policy]
	if !known {
		return nil, fmt.Errorf("-policy %q: give one of home-or-other, least, p2c, rr, stay", o.Policy)
	}
	p, err := lb.Parse(spec)
	if err != nil {
		return nil, fmt.Errorf("-policy %s: %w", o.Policy, err)
	}
	return p, nil
}

// reply returns how hosts answer for each other.
func (o *options) reply() dpr.ReplyMode {
	mode, _ := dpr.ParseReplyMode(o.Reply) // validate knows it
	return mode
}

// entries returns how many of the hosts the clients dial.
func (o *options) entries() int {
	if o.Entry == "one" {
		return 1
	}
	return o.Hosts
}

func (o *options) String() string {
	family := "IPv4"
	if o.IPv6 {
		family = "IPv6"
	}
	found := "clients dial " + o.Entry
	if o.DNS {
		found += ", found by " + strings.TrimSuffix(clusterName, ".")
	}
	return strings.Join([]string{
		fmt.Sprintf("%d hosts", o.Hosts), found, "policy " + o.Policy,
		o.Server + " server", o.Reply + " replies", "reports by " + o.Gossip, family,
	}, ", ")
}
