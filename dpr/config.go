package dpr

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/carom-dpr/carom/internal/flowtable"
)

// Proto is a transport protocol, by its IANA number.
type Proto uint8

// The protocols that a service can have.
const (
	TCP Proto = 6
	UDP Proto = 17
)

// String returns "tcp" or "udp".
func (p Proto) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	}
	return fmt.Sprintf("protocol %d", uint8(p))
}

// A ReplyMode is how the host that serves a redirected flow answers its client,
// who expects the answer from the address that it dialled.
type ReplyMode uint8

// The ways to answer.
const (
	// ReplyDirect: the server sees the dialled address and answers from it. It
	// costs nothing, and suits TCP servers on the wildcard address.
	ReplyDirect ReplyMode = iota
	// ReplyRewritten: the server sees its host's own address, and the host's
	// kernel gives the answers the dialled one. It suits all servers, bound to one
	// address or not, and UDP servers that answer from whatever address.
	ReplyRewritten
	// ReplyTunnelled: as with ReplyDirect, but the answer goes back through the tunnel
	// to the host that was dialled, which transmits it. It suits networks that let no
	// host send from an address of another, and costs a hop each way.
	ReplyTunnelled
)

// String returns the mode's name in lower case.
func (m ReplyMode) String() string {
	if int(m) < len(replyModes) {
		return replyModes[m]
	}
	return fmt.Sprintf("reply mode %d", uint8(m))
}

var replyModes = [...]string{"direct", "rewritten", "tunnelled"}

// ParseReplyMode returns the mode of that name.
func ParseReplyMode(name string) (ReplyMode, error) {
	for m, s := range replyModes {
		if s == name {
			return ReplyMode(m), nil
		}
	}
	last := len(replyModes) - 1
	return 0, fmt.Errorf("reply mode %q: give %s or %s", name, strings.Join(replyModes[:last], ", "), replyModes[last])
}

// A Service is something that clients dial: a protocol, a port or a range of
// ports, and the addresses at which all hosts of the cluster are dialled.
type Service struct {
	// Name identifies the service on all hosts. Only Former endpoints may share it.
	Name string
	// Proto is TCP or UDP.
	Proto Proto
	// Port is the first port, PortEnd the last one; 0 means that Port is the only
	// one.
	Port, PortEnd uint16
	// Addrs are the addresses that clients dial, of this host and of its peers.
	// From the network, packets for this host's own arrive; from peers, packets
	// for theirs.
	Addrs []netip.Addr
	// Former marks endpoints that the service had and no longer has: flows that
	// peers serve go on, and new ones are served here, whatever the policy says.
	Former bool
	// Reply is how this host answers the flows that peers hand to it. The host's
	// wiring sees to it: with ReplyTunnelled it brings the answers to the engine, which
	// lowers the segment sizes that clients announce.
	Reply ReplyMode
}

// last returns the last port of the range.
func (s *Service) last() uint16 { return max(s.Port, s.PortEnd) }

// Config configures an Engine. Zero fields take the defaults stated.
type Config struct {
	// Services are those to begin with; SetServices changes them.
	Services []Service
	// Seed keys the flow hashes that policies see. All hosts of a cluster must
	// have the same, so that consistent policies agree; nobody else should know it.
	Seed [16]byte
	// MaxFlows bounds the flow table and with it the engine's memory, at 72 bytes
	// a flow. Default 1,048,576, at most about 2^31. Where there is not as much memory,
	// New says so.
	MaxFlows int
	// TrackLocal keeps an entry for TCP flows served here for as long as they live.
	// Leave it off where the kernel's socket table decides which packets come up
	// (dpr/hostnet's capture program): it knows local flows better. Turn it on with
	// any other device, or a retransmitted SYN is chosen for again and may go
	// elsewhere.
	TrackLocal bool
	// Timeouts are the idle times after which flows are forgotten.
	Timeouts Timeouts
	// Confirm has the engine keep Questions for peers, about redirected flows that
	// have been silent; the answers come by Answer. Leave it off where nobody takes
	// them.
	Confirm bool
	// NAT is for peers that run no engine; see Peer.Servers.
	NAT NAT
	// ErrorsPerSecond bounds the ICMP errors and resets that the engine makes of
	// its own, so that it cannot be used to flood a third party. Default 1000.
	ErrorsPerSecond int
}

// Timeouts are idle times by state. Zero fields take the defaults, whose reasons
// stand with them.
type Timeouts struct {
	// Embryonic is for a SYN without any later packet. Default 60 s: Linux clients
	// repeat a SYN after 1, 1, 1, 1, 1, 2, 4, 8, 16 and 33 s.
	Embryonic time.Duration
	// Unconfirmed is for connections that their client calls open, at the entry host,
	// until their serving host says so, too; see Config.Confirm. Default 60 s: such a
	// connection may be a forger's.
	Unconfirmed time.Duration
	// Established is for open connections. Default 2 h 5 min: RFC 5382 REQ-5, and
	// keepalives come at 2 h. With Config.Confirm it starts again each time that the
	// serving host says that the connection is still there.
	Established time.Duration
	// Closing follows the client's FIN. Default 4 min: RFC 5382's transitory
	// timeout; half-closed transfers refresh it by their ACKs.
	Closing time.Duration
	// Closed follows the client's RST. Default 10 s, for late packets.
	Closed time.Duration
	// UDPNew is for the first datagram of a flow, default 30 s; UDP for flows with
	// more than one, default 5 min: RFC 4787 REQ-5.
	UDPNew, UDP time.Duration
	// Fragment is for a fragmented datagram, from the last fragment seen. Default
	// 15 s, the time stacks keep them for reassembly.
	Fragment time.Duration
}

const (
	defaultMaxFlows = 1 << 20
	defaultErrors   = 1000 // a second; the Linux default for ICMP of all kinds
)

func (c *Config) setDefaults() {
	if c.MaxFlows == 0 {
		c.MaxFlows = defaultMaxFlows
	}
	if c.ErrorsPerSecond == 0 {
		c.ErrorsPerSecond = defaultErrors
	}
	c.Timeouts.setDefaults()
}

func (t *Timeouts) setDefaults() {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&t.Embryonic, time.Minute},
		{&t.Unconfirmed, time.Minute},
		{&t.Established, 2*time.Hour + 5*time.Minute},
		{&t.Closing, 4 * time.Minute},
		{&t.Closed, 10 * time.Second},
		{&t.UDPNew, 30 * time.Second},
		{&t.UDP, 5 * time.Minute},
		{&t.Fragment, 15 * time.Second},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
}

func (c *Config) validate() error {
	if c.MaxFlows < 0 || int64(c.MaxFlows) > flowtable.MaxFlows {
		return fmt.Errorf("dpr: MaxFlows is %d: give 1 to %d, or 0 for the default", c.MaxFlows, int64(flowtable.MaxFlows))
	}
	if c.ErrorsPerSecond < 0 {
		return fmt.Errorf("dpr: ErrorsPerSecond is %d: give a positive number, or 0 for the default", c.ErrorsPerSecond)
	}
	if err := c.NAT.validate(); err != nil {
		return err
	}
	return c.Timeouts.validate()
}

// Validate reports what New would find wrong with the configuration, without
// reserving memory.
func (c Config) Validate() error {
	c.setDefaults()
	if err := c.validate(); err != nil {
		return err
	}
	return validateServices(c.Services)
}

// handoverTime is how long a flow that is served here is remembered until its SYN
// has made a socket. The network may double a SYN, and a host that is starved of
// processor time may not have looked at the first when the client repeats it, once a
// second (see Timeouts.Embryonic): all must meet the same answer. A longer time
// would only fill the table.
const handoverTime = 10 * time.Second

// maxTimeout keeps idle times far from half the range of the table's clock.
const maxTimeout = 7 * 24 * time.Hour

func (t *Timeouts) validate() error {
	for class, d := range t.byClass() {
		if d < 0 || d > maxTimeout {
			return fmt.Errorf("dpr: Timeouts.%v is %v: must be between 0 and %v", State(class), d, maxTimeout)
		}
	}
	return nil
}

func (t *Timeouts) byClass() [numStates]time.Duration {
	return [numStates]time.Duration{
		Embryonic:   t.Embryonic,
		Established: t.Established,
		Unconfirmed: t.Unconfirmed,
		Closing:     t.Closing,
		Closed:      t.Closed,
		UDPNew:      t.UDPNew,
		UDPFlow:     t.UDP,
		Fragment:    t.Fragment,
		Handover:    handoverTime,
	}
}

// validateServices refuses what the engine could not tell apart.
func validateServices(services []Service) error {
	names := make(map[string]bool)
	protos := make(map[string]Proto)
	for i := range services {
		s := &services[i]
		if err := s.validate(); err != nil {
			return fmt.Errorf("dpr: service %q: %w", s.Name, err)
		}
		if names[s.Name] && !s.Former {
			return fmt.Errorf("dpr: service %q is there twice: names must differ", s.Name)
		}
		names[s.Name] = names[s.Name] || !s.Former
		if p, known := protos[s.Name]; known && p != s.Proto {
			return fmt.Errorf("dpr: service %q is both %v and %v: give each protocol a name of its own", s.Name, p, s.Proto)
		}
		protos[s.Name] = s.Proto
		for j := range services[:i] {
			if o := &services[j]; o.overlaps(s) {
				return fmt.Errorf("dpr: services %q and %q both claim %v port %d: give them other ports or addresses",
					o.Name, s.Name, s.Proto, max(s.Port, o.Port))
			}
		}
	}
	return nil
}

func (s *Service) validate() error {
	switch {
	case s.Name == "":
		return errors.New("Name is empty: give each service a name")
	case s.Proto != TCP && s.Proto != UDP:
		return fmt.Errorf("Proto is %d: must be TCP (6) or UDP (17)", s.Proto)
	case s.Port == 0:
		return errors.New("Port is 0: give the port that clients dial")
	case s.PortEnd != 0 && s.PortEnd < s.Port:
		return fmt.Errorf("PortEnd %d lies before Port %d", s.PortEnd, s.Port)
	case int(s.Reply) >= len(replyModes):
		return fmt.Errorf("Reply is %d: give ReplyDirect, ReplyRewritten or ReplyTunnelled", uint8(s.Reply))
	case len(s.Addrs) == 0:
		return errors.New("Addrs is empty: give the addresses that clients dial")
	}
	for _, a := range s.Addrs {
		if !isHost(a) {
			return fmt.Errorf("address %v: must be a unicast address without a zone", a)
		}
	}
	return nil
}

func (s *Service) overlaps(o *Service) bool {
	if s.Proto != o.Proto || s.last() < o.Port || o.last() < s.Port {
		return false
	}
	for _, a := range s.Addrs {
		for _, b := range o.Addrs {
			if a.Unmap() == b.Unmap() {
				return true
			}
		}
	}
	return false
}

// evictionOrder lists the states whose flows may make room for new ones: the dead
// first, then those that may never live, at last those that are about to end. An
// established flow is never among them.
var evictionOrder = []flowtable.Class{
	flowtable.Class(Closed), flowtable.Class(Handover), flowtable.Class(Fragment), flowtable.Class(Embryonic), flowtable.Class(UDPNew),
	flowtable.Class(Unconfirmed), flowtable.Class(Closing),
}
