package node

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/lb"
	"github.com/carom-dpr/carom/loadinfo"
	"github.com/carom-dpr/carom/loadinfo/resource"
)

// A Service is something that this host and its peers serve. Unless Reply says
// otherwise its server listens on the wildcard address, since connections that peers
// hand over keep the address that was dialled. A UDP server also has to answer from
// the address that it was asked at: with IP_PKTINFO (RFC 3542's IPV6_PKTINFO), and
// over IPv6 on a socket with IPV6_FREEBIND.
type Service struct {
	// Name is the service's name, the same on all hosts. Required.
	Name string
	// Proto is dpr.TCP or dpr.UDP; the default is TCP.
	Proto dpr.Proto
	// Port is the port that clients dial and that the server listens on, PortEnd
	// the last of a range; 0 means that Port is the only one.
	Port, PortEnd uint16
	// Addrs are the addresses at which this host is dialled for the service. The
	// default is Config.Addr.
	Addrs []netip.Addr
	// Reply is how this host answers connections that peers hand over; each host may
	// have its own. The default is dpr.ReplyDirect. Servers that are bound to one
	// address, and UDP servers that answer from whatever address, need
	// dpr.ReplyRewritten, for which the host must have nftables and tracks the
	// connections of all that passes it. Networks that let no host send from an address
	// of another need dpr.ReplyTunnelled, for all services of a protocol that would have
	// direct answers otherwise, for which the servers must be as for
	// dpr.ReplyDirect, and the host that was dialled must be able to send packets of its
	// own (CAP_NET_RAW).
	Reply dpr.ReplyMode
	// Policy chooses who serves a new connection. The default is lb.HomeOrOther.
	Policy lb.Policy
	// Weight is this host's capacity for the service; 0 means Config.Weight, a
	// negative one that it gets no new connections.
	Weight int
	// Requests measures the service's requests, for policies that go by them or by
	// latency: a server in this process calls its Begin. Nil means that nobody does.
	Requests *loadinfo.Requests
}

// Config configures a Node. Zero fields take the defaults stated.
type Config struct {
	// ID names this host among its peers and over its restarts. The default is
	// the host's name.
	ID string
	// Addr is this host's own address. Peers reach it here, and unless a service
	// says otherwise clients dial it here. Required.
	Addr netip.Addr
	// Services are what this host serves. At least one.
	Services []Service
	// Servers are hosts that run no node and serve, too.
	Servers []Server
	// NAT is how this host connects to Servers. The default sources are Addr and, for the
	// other family, the first address of Services in it, as they are when the node is
	// opened.
	NAT dpr.NAT
	// Report lists where reports of this host's load go: each peer's report
	// address, or a broadcast or multicast address that reaches all of them. Its
	// own address may be among them. Empty with Transport.
	Report []netip.AddrPort
	// Transport makes what carries reports between the hosts in the place of a
	// loadinfo.Broadcaster to Report: a gossip.Gossip, for clusters beyond one
	// network. It is called once, when all else is open, with the board, which knows
	// this host, and with the keyring, nil without Keys. What it returns closes its
	// sockets when it has Run; on an error it leaves none open.
	Transport func(*loadinfo.Board, *loadinfo.Keyring) (loadinfo.Transport, error)
	// Resources are sampled every two seconds, or once a longer period, and peers
	// told of them. Nil means that they are told of none.
	Resources *resource.Registry
	// Keys are the cluster's keys: reports and tunnel packets carry a tag made with
	// the first, and one made with any of them is accepted. Without keys anybody
	// who can send packets to this host can take part; see SECURITY.md.
	Keys []loadinfo.Key
	// Weight is this host's capacity relative to its peers. The default is 100; a
	// negative one means no new connections.
	Weight int
	// Period is the time between two reports, which must be the same on all hosts.
	// Default 500 ms. Shorter balances short connections better and costs a
	// datagram of about a hundred bytes each.
	Period time.Duration
	// TunnelPort and ReportPort are the UDP ports of the tunnel (GUE) and of the
	// reports. ReportPort is the same on all hosts, and so is TunnelPort where some
	// receive by IPIP: questions about connections reach those there. Default 6080,
	// the port IANA gave GUE, and 6082.
	TunnelPort, ReportPort uint16
	// Method is how this host receives what peers hand over. Peers learn it from its
	// reports, so hosts may differ. The default is GUE. IPIP cannot be authenticated,
	// so it needs a private network and goes without Keys; it needs CAP_NET_RAW here
	// and on all peers.
	Method Method
	// Interface is the network interface that clients and peers are on. The default
	// is the one that has Addr.
	Interface string
	// Interfaces are those that clients' packets arrive on. The default is Interface,
	// or else those that have the services' addresses.
	Interfaces []string
	// CaptureByRouting leads the services' packets here by routing rules although BPF
	// would do; where it would not, that is done in any case. See
	// hostnet.Config.ByRouting for what it costs.
	CaptureByRouting bool
	// AliasPrefixes bounds the addresses that this host answers from on behalf of
	// its peers; others are logged. The default is any address, which only suits a
	// network whose hosts are all trusted.
	AliasPrefixes []netip.Prefix
	// NoPathCheck has this host believe that each peer that says it is well answers
	// what it is handed. Otherwise, and with CAP_NET_RAW, that is probed once a
	// second: a SYN to each TCP service, through the tunnel, must bring a SYN-ACK from
	// the address that is dialled here. Its client is Addr, or where that is of the
	// other family the dialled address itself.
	NoPathCheck bool
	// Queues is the number of TUN queues, each with a reading goroutine. Default 1.
	Queues int
	// MaxFlows bounds the flow table; see dpr.Config.
	MaxFlows int
	// Timeouts are the flow table's; see dpr.Config.
	Timeouts dpr.Timeouts
	// SYNRate is how many TCP connection requests a second the engine gets at most;
	// the kernel serves those above it here. See hostnet.Config, also for the default.
	SYNRate int
	// Logger gets what operators should know. The default is slog.Default().
	Logger *slog.Logger
}

const (
	defaultTunnelPort = 6080
	defaultReportPort = loadinfo.DefaultPort
)

// withDefaults returns the configuration with its zero fields filled in, or an
// error that names the field and the remedy.
func (c Config) withDefaults() (Config, error) {
	if c.ID == "" {
		name, err := os.Hostname()
		if err != nil {
			return c, fmt.Errorf("node: ID is empty and the host has no name, give one: %w", err)
		}
		c.ID = name
	}
	if c.TunnelPort == 0 {
		c.TunnelPort = defaultTunnelPort
	}
	if c.ReportPort == 0 {
		c.ReportPort = defaultReportPort
	}
	if c.Period == 0 {
		c.Period = loadinfo.DefaultPeriod
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Queues == 0 {
		c.Queues = 1
	}
	if len(c.Interfaces) == 0 && c.Interface != "" {
		c.Interfaces = []string{c.Interface}
	}
	services := make([]Service, len(c.Services))
	for i, s := range c.Services {
		services[i] = s.withDefaults(c.Addr)
	}
	c.Services, c.Servers = services, cloneServers(c.Servers)
	if len(c.NAT.Sources) == 0 {
		c.NAT.Sources = c.natSources()
	}
	return c, c.validate()
}

func (s Service) withDefaults(addr netip.Addr) Service {
	if s.Proto == 0 {
		s.Proto = dpr.TCP
	}
	if len(s.Addrs) == 0 {
		s.Addrs = []netip.Addr{addr}
	}
	if s.Policy == nil {
		s.Policy = lb.HomeOrOther{}
	}
	return s
}

// targets returns where reports go: Report but for this host's own address, since to hear
// oneself is to wake for nothing.
func (c *Config) targets() []netip.AddrPort {
	own := netip.AddrPortFrom(c.Addr.Unmap(), c.ReportPort)
	others := slices.DeleteFunc(slices.Clone(c.Report), func(a netip.AddrPort) bool {
		return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) == own
	})
	if len(others) == 0 {
		return c.Report
	}
	return others
}

// dialled returns the addresses at which this host is dialled, each once.
func (c *Config) dialled() []netip.Addr {
	var list []netip.Addr
	for _, s := range c.Services {
		list = append(list, s.Addrs...)
	}
	return unique(list)
}
