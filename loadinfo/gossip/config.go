package gossip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/carom-dpr/carom/loadinfo"
)

// DefaultPort is the UDP and TCP port of gossip, next to that of broadcast.
const DefaultPort = loadinfo.DefaultPort + 1

// Config configures a Gossip. Zero fields take the defaults that they state.
type Config struct {
	// Board is where own reports come from and others' go. Its SetSelf has been
	// called. Required.
	Board *loadinfo.Board
	// Conn is the socket for datagrams; see Listen. Required. Run closes it.
	Conn loadinfo.PacketConn
	// Listener is the socket for streams, on the same port. Required. Run closes it.
	Listener net.Listener
	// Dial opens a stream to a peer; nil means by TCP.
	Dial func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)
	// Advertise is the address at which peers reach this host; the zero AddrPort
	// means that of Listener, which then is not the unspecified one.
	Advertise netip.AddrPort
	// Seeds are addresses of some hosts of the cluster, as host:port with an IP
	// address or a name for host; this host may be among them. They are tried for
	// ever. A cluster's first host needs none, but without this host does not find
	// the others again when it has been cut off from its start.
	Seeds []string
	// Cluster keeps clusters apart that share a network. It is no secret.
	Cluster string
	// Keys encrypts everything; nil means nothing.
	Keys *loadinfo.Keyring
	// Period is the shortest regular time between two reports of this host, give or
	// take a tenth; 0 means loadinfo.DefaultPeriod.
	Period time.Duration
	// MinInterval is the shortest time between two reports, when much changes; 0
	// means loadinfo.DefaultMinInterval.
	MinInterval time.Duration
	// MaxRate bounds what this host sends, in bytes per second with headers; 0 means
	// loadinfo.DefaultMaxRate. Reports yield to it, and the protocol of members,
	// which sends some 200 bytes per second, does not.
	MaxRate int
	// MaxDatagram is the largest payload, in bytes, from 1300 on; 0 means 1400, which
	// fits an Ethernet frame with room for a tunnel.
	MaxDatagram int
	// Interval is the time between two rounds of gossip; 0 means 100 ms, or longer
	// where that would take more than MaxRate.
	Interval time.Duration
	// Fanout is the number of hosts that are told in a round; 0 means 3.
	Fanout int
	// ProbeInterval is the time between two probes of a peer, one after another; 0
	// means 1 s. Of it depends how soon a dead host is found: see package
	// memberlist. ProbeTimeout is the time for an answer; 0 means half the interval.
	ProbeInterval, ProbeTimeout time.Duration
	// SeedInterval is the time between two tries to reach seeds and lost hosts; 0
	// means 15 s.
	SeedInterval time.Duration
	// Logger hears of what an operator can remove, once a minute each at most; nil
	// means slog.Default.
	Logger *slog.Logger
}

const (
	defaultInterval      = 100 * time.Millisecond
	defaultFanout        = 3
	defaultMaxDatagram   = 1400
	defaultProbeInterval = time.Second
	defaultSeedInterval  = 15 * time.Second
	// leastDatagram holds the largest report, with room for what is around it.
	leastDatagram = loadinfo.MaxReport + 100
)

// withDefaults returns the configuration with its zero fields set, or an error that
// names the field that is wrong.
func (c Config) withDefaults() (Config, error) {
	orElse(&c.Period, loadinfo.DefaultPeriod)
	orElse(&c.MinInterval, loadinfo.DefaultMinInterval)
	orElse(&c.MaxRate, loadinfo.DefaultMaxRate)
	orElse(&c.MaxDatagram, defaultMaxDatagram)
	orElse(&c.Fanout, defaultFanout)
	orElse(&c.Interval, defaultInterval)
	orElse(&c.ProbeInterval, defaultProbeInterval)
	orElse(&c.ProbeTimeout, c.ProbeInterval/2)
	orElse(&c.SeedInterval, defaultSeedInterval)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Dial == nil {
		c.Dial = dialTCP
	}
	if err := c.validate(); err != nil {
		return c, err
	}
	round := time.Duration(c.Fanout*(c.MaxDatagram+udpOverhead)) * time.Second / time.Duration(c.MaxRate)
	c.Interval = max(c.Interval, round)
	return c, c.advertise()
}

func orElse[T ~int | ~int64](field *T, def T) {
	if *field <= 0 {
		*field = def
	}
}

func (c *Config) validate() error {
	switch {
	case c.Board == nil:
		return errors.New("gossip: Config.Board is nil: make one with loadinfo.NewBoard")
	case c.Conn == nil || c.Listener == nil:
		return errors.New("gossip: Config.Conn or Listener is nil: open both with Listen")
	case c.MaxDatagram < leastDatagram || c.MaxDatagram > 65000:
		return fmt.Errorf("gossip: Config.MaxDatagram %d: want %d to 65000, so that every report fits", c.MaxDatagram, leastDatagram)
	case c.MinInterval > c.Period:
		return fmt.Errorf("gossip: Config.MinInterval %v is above Period %v", c.MinInterval, c.Period)
	case c.ProbeTimeout > c.ProbeInterval:
		return fmt.Errorf("gossip: Config.ProbeTimeout %v is above ProbeInterval %v", c.ProbeTimeout, c.ProbeInterval)
	case len(c.Cluster) > 255:
		return fmt.Errorf("gossip: Config.Cluster %.20q... has %d bytes, at most 255 are sent", c.Cluster, len(c.Cluster))
	}
	return validSeeds(c.Seeds)
}

func validSeeds(seeds []string) error {
	for _, s := range seeds {
		if err := ValidateSeed(s); err != nil {
			return fmt.Errorf("gossip: Config.Seeds: %q: %w", s, err)
		}
	}
	return nil
}

// ValidateSeed says why a text cannot be one of Config.Seeds; it looks up no name.
func ValidateSeed(seed string) error {
	host, port, err := net.SplitHostPort(seed)
	n, numeric := strconv.Atoi(port)
	switch {
	case err != nil || host == "" || port == "" || strings.ContainsFunc(seed, unicode.IsSpace):
		return errors.New("give host:port, with an address or a name and the port of its gossip")
	case numeric == nil && (n < 1 || n > math.MaxUint16):
		return fmt.Errorf("port %d: give one from 1 to %d", n, math.MaxUint16)
	}
	if a, err := netip.ParseAddr(host); err == nil && !oneHost(a) {
		return errors.New("that is no host's address: give those of some hosts, or a name")
	}
	return nil
}

// oneHost reports whether other hosts can reach one by its address. A zone means nothing
// to them, and memberlist has none.
func oneHost(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && a.Zone() == "" &&
		a.Unmap() != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// advertise completes the address at which peers reach this host.
func (c *Config) advertise() error {
	if !c.Advertise.IsValid() {
		if tcp, ok := c.Listener.Addr().(*net.TCPAddr); ok {
			c.Advertise = tcp.AddrPort()
		}
	}
	c.Advertise = netip.AddrPortFrom(c.Advertise.Addr().Unmap(), c.Advertise.Port())
	if !oneHost(c.Advertise.Addr()) || c.Advertise.Port() == 0 {
		return fmt.Errorf("gossip: Config.Advertise %v: peers cannot reach that: give this host's address and port", c.Advertise)
	}
	return nil
}

func dialTCP(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "tcp", addr.String())
}

// Listen opens the two sockets of a Gossip on one address. Port 0 means one that is
// free.
func Listen(local netip.AddrPort) (*net.UDPConn, *net.TCPListener, error) {
	listener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(local))
	if err != nil {
		return nil, nil, fmt.Errorf("gossip: listen for streams on %v: %w", local, err)
	}
	port := listener.Addr().(*net.TCPAddr).AddrPort().Port()
	conn, err := loadinfo.Listen(netip.AddrPortFrom(local.Addr(), port))
	if err != nil {
		return nil, nil, errors.Join(err, listener.Close())
	}
	return conn, listener, nil
}
