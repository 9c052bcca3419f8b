package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/lb"
)

// options is what the command line says.
type options struct {
	config dpr.Config
	self   lb.Host
	peers  []dpr.Peer
	hosts  []lb.Host // the peers as policies see them
	policy lb.Policy
	uplink string
	gso    int
	still  bool
	write  string
	file   string
}

// parseOptions reads the command line. Errors name the flag and the remedy.
func parseOptions(args []string, stderr io.Writer) (*options, error) {
	o := &options{self: lb.Host{ID: "self", Weight: 1, Flags: lb.Local}}
	f := flag.NewFlagSet("replay", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		fmt.Fprintln(stderr, "usage: replay [flags] capture")
		f.PrintDefaults()
	}
	f.Func("service", "`name=proto:port@address[,address]`, or port-port; once for each service", o.addService)
	f.Func("peer", "`id[,mtu=bytes][,conns=n][,weight=n]` of a host that flows may be handed to; once for each", o.addPeer)
	f.Func("server", "`id,service=address:port[,...]` of a host without an engine that flows may be translated for; once for each", o.addServer)
	f.Func("nat", "`address[,port-port]` of this host that translated flows leave from; once for each family", o.addSource)
	f.Func("self", "`id[,conns=n][,weight=n]` of the host that the engine runs on (default self)", o.setSelf)
	policy := f.String("policy", "home-or-other", "\"send-to id\", \"refuse\", or a policy of package lb with its parameters, such as stay, least or maglev:by=client")
	f.StringVar(&o.uplink, "uplink", "", "the packets come through the tunnel from the peer with this `id`")
	f.BoolVar(&o.config.TrackLocal, "track-local", false, "remember TCP flows that are served here, too")
	f.IntVar(&o.config.MaxFlows, "max-flows", 0, "size of the flow table (default 1,048,576)")
	f.IntVar(&o.gso, "gso", 0, "take TCP packets with more payload than this, in `bytes`, for super-frames of such segments")
	f.BoolVar(&o.still, "still", false, "let the clock stand still instead of following the capture's")
	f.StringVar(&o.write, "w", "", "write what would leave the engine to this pcapng `file`")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() != 1 {
		return nil, errors.New("give the name of one capture after the flags")
	}
	o.file = f.Arg(0)
	return o, o.check(*policy)
}

func (o *options) check(policy string) (err error) {
	switch {
	case len(o.config.Services) == 0:
		return errors.New("no -service: say what clients dial, for example -service web=tcp:80@198.51.100.1")
	case o.known(o.self.ID):
		return fmt.Errorf("%q is both this host and a peer or server: give it another ID with -self", o.self.ID)
	case o.uplink != "" && !o.known(o.uplink):
		return fmt.Errorf("-uplink %s: add -peer %s", o.uplink, o.uplink)
	case o.gso < 0 || o.gso > dpr.MaxPacket:
		return fmt.Errorf("-gso %d: must be between 0 and %d", o.gso, dpr.MaxPacket)
	}
	if err := o.checkServers(); err != nil {
		return err
	}
	o.policy, err = o.parsePolicy(policy)
	return err
}

func (o *options) known(id string) bool {
	for i := range o.peers {
		if o.peers[i].ID == id {
			return true
		}
	}
	return false
}

// addService parses name=proto:port@addresses.
func (o *options) addService(arg string) error {
	name, rest, ok1 := strings.Cut(arg, "=")
	proto, rest, ok2 := strings.Cut(rest, ":")
	ports, addrs, ok3 := strings.Cut(rest, "@")
	if !ok1 || !ok2 || !ok3 {
		return errors.New("must be like web=tcp:80@198.51.100.1,2001:db8::1")
	}
	s := dpr.Service{Name: name}
	switch proto {
	case "tcp":
		s.Proto = dpr.TCP
	case "udp":
		s.Proto = dpr.UDP
	default:
		return fmt.Errorf("protocol %q: must be tcp or udp", proto)
	}
	first, last, isRange := strings.Cut(ports, "-")
	var err error
	if s.Port, err = parsePort(first); err != nil {
		return err
	}
	if isRange {
		if s.PortEnd, err = parsePort(last); err != nil {
			return err
		}
	}
	for _, a := range strings.Split(addrs, ",") {
		addr, err := netip.ParseAddr(a)
		if err != nil {
			return err
		}
		s.Addrs = append(s.Addrs, addr)
	}
	o.config.Services = append(o.config.Services, s)
	return nil
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("port %q: must be a number up to 65535", s)
	}
	return uint16(n), nil
}

func (o *options) addPeer(arg string) error {
	h, mtu, err := parseHost(arg)
	if err != nil {
		return err
	}
	o.hosts = append(o.hosts, h)
	o.peers = append(o.peers, dpr.Peer{ID: h.ID, MTU: mtu})
	return nil
}

func (o *options) setSelf(arg string) error {
	h, mtu, err := parseHost(arg)
	if err != nil {
		return err
	}
	if mtu != 0 {
		return errors.New("mtu is that of the tunnel to a peer")
	}
	h.Flags |= lb.Local
	o.self = h
	return nil
}

// parseHost parses id,mtu=1400,conns=3,weight=2.
func parseHost(arg string) (h lb.Host, mtu int, err error) {
	id, rest, more := strings.Cut(arg, ",")
	h = lb.Host{ID: id, Weight: 1}
	if id == "" {
		return h, 0, errors.New("the ID is empty")
	}
	for more {
		var field string
		field, rest, more = strings.Cut(rest, ",")
		key, value, _ := strings.Cut(field, "=")
		n, err := strconv.ParseUint(value, 10, 16)
		if err != nil {
			return h, 0, fmt.Errorf("%q: must be like mtu=1400, a number up to 65535", field)
		}
		switch key {
		case "mtu":
			mtu = int(n)
		case "conns":
			h.Conns = uint32(n)
		case "weight":
			h.Weight = uint16(n)
		default:
			return h, 0, fmt.Errorf("%q: there are mtu, conns and weight", key)
		}
	}
	return h, mtu, nil
}

// parsePolicy adds two to the policies of package lb, whose answer is known
// beforehand.
func (o *options) parsePolicy(spec string) (lb.Policy, error) {
	if id, ok := strings.CutPrefix(spec, "send-to "); ok {
		if !o.known(id) {
			return nil, fmt.Errorf("-policy %q: add -peer %s", spec, id)
		}
		return always{do: lb.Send, id: id}, nil
	}
	if spec == "refuse" {
		return always{do: lb.Refuse}, nil
	}
	policy, err := lb.Parse(spec)
	if name, _, _ := strings.Cut(spec, ":"); !slices.Contains(lb.Names(), name) {
		return nil, fmt.Errorf("-policy: %w, and here \"send-to id\" and refuse", err)
	}
	if err != nil {
		return nil, fmt.Errorf("-policy: %w", err)
	}
	return policy, nil
}

// always is a policy whose answer is always the same.
type always struct {
	do     lb.Action
	id     string // of the host that Send goes to
	choice lb.Choice
}

func (a always) Build(s *lb.Snapshot) lb.Picker {
	a.choice.Do = a.do
	for i := range s.Hosts {
		if s.Hosts[i].ID == a.id {
			a.choice.Host = i
		}
	}
	return a
}

func (a always) Pick(lb.Flow, time.Duration) lb.Choice { return a.choice }
