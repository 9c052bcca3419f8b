package hostnet

import (
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/carom-dpr/carom/dpr"
)

// Config says what to wire. TUN and Services are required.
type Config struct {
	// TUN is the name of the interface that leads to the engine. It is best left
	// down: Open brings it up once its settings are in place, and Close takes it
	// down again. It must have no other purpose.
	TUN string
	// Interfaces are the network interfaces that clients' packets arrive on. The
	// default is those that carry the services' addresses.
	Interfaces []string
	// Services are the endpoints whose packets the engine gets; SetServices
	// replaces them.
	Services []Service
	// AliasPrefixes limits the addresses that SetAliases accepts. The default is no
	// limit, which trusts whoever reports the addresses of the peers.
	AliasPrefixes []netip.Prefix
	// Overhead is what the tunnel between hosts adds to a packet, in bytes; the
	// segment size that servers announce for redirected connections is smaller by
	// that. The default is 80: IPv6, UDP, and GUE with its private field.
	Overhead int
	// Table is the number of a routing table that nobody else uses, as are the three
	// after it. The first holds the aliases, the second the routes of answers from
	// them, the fourth that of answers that are tunnelled. The default is 6080.
	Table int
	// ByRouting captures by routing rules although BPF would do. Without it, that is
	// done where the kernel cannot attach the program, and said in the log. It captures
	// IPv4 alone; the engine gets the packets of this host's own connections, too, and
	// must track them (see [Net.ByRouting]); nothing fails open while a router hangs;
	// SYNRate has no effect. The rule for the table local moves from preference 0 to 1,
	// ip_early_demux is off, the interfaces' forwarding is on, with a rule that lets
	// them forward nothing else, accept_local on and rp_filter loose, since peers may be
	// clients, and the third table is used as well.
	ByRouting bool
	// RulePreference is the preference of the rule that leads from the TUN to the
	// first table, and of those that lead tunnelled answers to the fourth; rules that
	// lead from an alias to the second have the one after it. Both must come before the rules that decide about ordinary traffic. The
	// default is 608.
	RulePreference int
	// SYNRate is how many TCP connection requests a second the engine gets at most, on
	// average over 50 ms. Those above it stay with the kernel, whose listener answers
	// them, in a flood with SYN cookies, or which refuses them if it has none: they
	// share the TUN with the data of redirected connections, which a flood would
	// starve. The default is 20,000: a quarter of what one core takes from a TUN, and
	// more connections a second than a small server can serve. A negative rate sets
	// no limit.
	SYNRate int
	// Log is told of repairs. The default is slog.Default.
	Log *slog.Logger

	noTCX       bool  // for tests: attach as on a kernel before 6.6
	attachError error // for tests: as on a kernel that cannot
}

// Service is a set of endpoints of this host: all pairs of an address and a port.
type Service struct {
	// Protocol is 6 for TCP or 17 for UDP.
	Protocol uint8
	// Port is the first port, PortEnd the last one. A zero PortEnd means Port.
	Port, PortEnd uint16
	// Addrs are the addresses that clients dial on this host.
	Addrs []netip.Addr
	// Reply is how this host answers the connections that peers redirect to it.
	// ReplyRewritten gives redirected packets the first of Addrs in their family, so
	// that they reach servers that are bound to it, and its answers the dialled
	// address, by rules of nftables: it costs connection tracking of all that passes
	// the host. ReplyTunnelled leads the answers to the TUN, and
	// with them those of all services of its protocol that would leave directly.
	Reply dpr.ReplyMode
}

// Stats counts the packets that the capture program has seen since Open, by what
// became of them. A super-frame counts as one.
type Stats struct {
	// NotService packets were for no endpoint of a service.
	NotService uint64
	// LocalSocket packets belong to a TCP connection of this host's own.
	LocalSocket uint64
	// CapturedSYN are the TCP connection requests that went to the engine,
	// CapturedOther all else that did.
	CapturedSYN, CapturedOther uint64
	// FailOpen packets stayed with the kernel because the engine did not beat.
	FailOpen uint64
	// LimitedSYN are the TCP connection requests above Config.SYNRate, which stayed
	// with the kernel.
	LimitedSYN uint64
	// Tagged packets came in a frame of a VLAN, or with several tags, and stayed with
	// the kernel, which gives those of a VLAN to that one's interface.
	Tagged uint64
	// Missing names the interfaces that are gone since Open, on which nothing is
	// captured until they are there again.
	Missing []string
}

const (
	defaultOverhead   = 80
	defaultTable      = 6080
	defaultPreference = 608

	defaultSYNRate = 20_000
	maxSYNRate     = 1_000_000_000 // the bucket counts nanoseconds
	// synBurst is how long the limit may be exceeded by as much again: at the default
	// rate by a thousand SYNs, about what a TUN's queue holds twice.
	synBurst = 50 * time.Millisecond

	protocolTCP = 6
	protocolUDP = 17
	// protocolDestOpts is the IPv6 extension header that may follow a fragment header
	// (RFC 8200, section 4.1).
	protocolDestOpts = 60

	// maxEndpoints is the size of the capture program's map: all ports of two
	// addresses, or of one for two services, and as many fragments' endpoints.
	maxEndpoints = 1<<17 + 1<<10
)

// withDefaults returns the configuration with its zero fields filled in, or an
// error that names the field that is wrong.
func (c Config) withDefaults() (Config, error) {
	if c.Overhead == 0 {
		c.Overhead = defaultOverhead
	}
	if c.Table == 0 {
		c.Table = defaultTable
	}
	if c.RulePreference == 0 {
		c.RulePreference = defaultPreference
	}
	if c.SYNRate == 0 {
		c.SYNRate = defaultSYNRate
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	switch {
	case c.TUN == "":
		return c, fmt.Errorf("hostnet: TUN is missing: name the interface that leads to the engine")
	case c.Overhead < 0 || c.Overhead > 500:
		return c, fmt.Errorf("hostnet: Overhead %d is not within 0 to 500 bytes", c.Overhead)
	case c.Table < 1 || c.Table <= 255 && c.Table+3 >= 253: // the kernel's own: default, main, local
		return c, fmt.Errorf("hostnet: Table %d and the three after it must be free, and the kernel has 253 to 255", c.Table)
	case c.SYNRate > maxSYNRate:
		return c, fmt.Errorf("hostnet: SYNRate %d: give at most %d, or -1 for no limit", c.SYNRate, maxSYNRate)
	case c.RulePreference < 1 || c.RulePreference >= 32765: // the main table's rule is 32766
		return c, fmt.Errorf("hostnet: RulePreference %d is not within 1 to 32764", c.RulePreference)
	}
	for i, s := range c.Services {
		if err := s.validate(); err != nil {
			return c, fmt.Errorf("hostnet: Services[%d]: %w", i, err)
		}
	}
	if len(c.Services) == 0 {
		return c, fmt.Errorf("hostnet: Services is empty: nothing would reach the engine")
	}
	return c, nil
}

func (s Service) validate() error {
	if s.Protocol != protocolTCP && s.Protocol != protocolUDP {
		return fmt.Errorf("protocol %d is neither TCP (6) nor UDP (17)", s.Protocol)
	}
	if s.Port == 0 || s.lastPort() < s.Port {
		return fmt.Errorf("ports %d to %d are no range", s.Port, s.lastPort())
	}
	if len(s.Addrs) == 0 {
		return fmt.Errorf("port %d: Addrs is empty", s.Port)
	}
	for _, a := range s.Addrs {
		if !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || a.Zone() != "" {
			return fmt.Errorf("port %d: address %v is not one that a client could dial", s.Port, a)
		}
	}
	return nil
}

func (s Service) lastPort() uint16 {
	if s.PortEnd == 0 {
		return s.Port
	}
	return s.PortEnd
}

// endpoint is one key of the capture program's map.
type endpoint struct {
	addr     netip.Addr
	protocol uint8
	port     uint16
	fragment bool // of any port
}

// endpoints returns all endpoints of the services, and those that stand for their
// fragments.
func endpoints(services []Service) (map[endpoint]bool, error) {
	set := map[endpoint]bool{}
	for i, s := range services {
		if err := s.validate(); err != nil {
			return nil, fmt.Errorf("hostnet: Services[%d]: %w", i, err)
		}
		for _, a := range s.Addrs {
			a = a.Unmap()
			set[endpoint{a, s.Protocol, 0, true}] = true
			if a.Is6() { // the transport header may come after this one
				set[endpoint{a, protocolDestOpts, 0, true}] = true
			}
			for port := int(s.Port); port <= int(s.lastPort()); port++ {
				set[endpoint{a, s.Protocol, uint16(port), false}] = true
			}
		}
		if len(set) > maxEndpoints {
			return nil, fmt.Errorf("hostnet: Services[%d]: more than %d endpoints in all: use smaller port ranges", i, maxEndpoints)
		}
	}
	return set, nil
}
