package rrdns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/carom-dpr/carom/loadinfo"
)

// Config configures a Server. Zero fields take the defaults that they state.
type Config struct {
	// Board says who is there. Required.
	Board *loadinfo.Board
	// Name is the name that clients look up, such as www.example.org. Required.
	Name string
	// NameServers are the names of the servers of Name, which are not under it, since
	// nobody could say where they are; none means ns under Name, which this server
	// answers with this host's own addresses.
	NameServers []string
	// Hostmaster is the mailbox for SOA, in DNS form: hostmaster.example.org is
	// hostmaster@example.org. "" means hostmaster under Name.
	Hostmaster string
	// TTL is how long resolvers may keep an answer, to the second; 0 means 5 s.
	// Shorter brings clients sooner to other hosts, and more queries.
	TTL time.Duration
	// Max is the most addresses of one family in an answer; 0 means 8, with which
	// answers fit into 512 bytes. More let a client try more hosts on its own.
	Max int
	// Weighted names hosts in proportion to their weights, rather than all alike.
	Weighted bool
	// Rate is the number of answers per second over UDP for one client network, /24
	// or /56, with twice that in a burst; 0 means 200. Above, one query of two is
	// told to come by TCP, and the other gets no answer.
	Rate int
}

const (
	defaultTTL  = 5 * time.Second
	defaultMax  = 8
	defaultRate = 200
	// What this host and its mailbox are called by default, before the name.
	serverOf, hostmasterOf = "ns.", "hostmaster."
	// ednsSize is the largest UDP payload that is sent and asked for, in bytes: it
	// fits any path (DNS flag day 2020).
	ednsSize = 1232
)

// A Server answers queries for one name. It is a dns.Handler, for those who have a
// server of their own. All methods may be called by several goroutines.
type Server struct {
	cfg     Config
	zone    string // canonical
	ns      []dns.RR
	soa     *dns.SOA
	limiter *limiter
	view    atomic.Pointer[view]
	refresh sync.Mutex
	stats   counts
}

// Stats counts queries, each in exactly one field.
type Stats struct {
	// Answered counts those that got addresses or other data, Empty those for a name
	// or type that there is not, Refused those for other zones, Invalid those that
	// make no sense or ask for what a server does not do, and Failed those that found
	// no host.
	Answered, Empty, Refused, Invalid, Failed uint64
	// Limited counts those above the rate of their network.
	Limited uint64
}

type counts struct{ answered, empty, refused, invalid, failed, limited atomic.Uint64 }

// Stats returns the counts so far.
func (s *Server) Stats() Stats {
	c := &s.stats
	return Stats{
		Answered: c.answered.Load(), Empty: c.empty.Load(), Refused: c.refused.Load(),
		Invalid: c.invalid.Load(), Failed: c.failed.Load(), Limited: c.limited.Load(),
	}
}

// New returns a server. An error names the field of the configuration.
func New(cfg Config) (*Server, error) {
	if cfg.TTL == 0 {
		cfg.TTL = defaultTTL
	}
	if cfg.Max == 0 {
		cfg.Max = defaultMax
	}
	if cfg.Rate == 0 {
		cfg.Rate = defaultRate
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, zone: dns.CanonicalName(cfg.Name), limiter: newLimiter(cfg.Rate)}
	names := cfg.NameServers
	if len(names) == 0 {
		names = []string{s.ownServer()}
	}
	for _, name := range names {
		s.ns = append(s.ns, &dns.NS{Hdr: s.header(dns.TypeNS), Ns: dns.CanonicalName(name)})
	}
	hostmaster := cfg.Hostmaster
	if hostmaster == "" {
		hostmaster = hostmasterOf + s.zone
	}
	s.soa = &dns.SOA{
		Hdr: s.header(dns.TypeSOA), Ns: dns.CanonicalName(names[0]), Mbox: dns.CanonicalName(hostmaster),
		// Nobody transfers the zone; the numbers are those that RFC 1912 advises.
		Serial: 1, Refresh: 1200, Retry: 180, Expire: 1209600, Minttl: s.ttl(),
	}
	return s, nil
}

func (c *Config) validate() error {
	switch {
	case c.Board == nil:
		return errors.New("rrdns: Config.Board is nil: make one with loadinfo.NewBoard")
	case c.TTL < time.Second || c.TTL > 24*time.Hour:
		return fmt.Errorf("rrdns: Config.TTL %v: want 1 s to a day", c.TTL)
	case c.Max < 0:
		return fmt.Errorf("rrdns: Config.Max %d is negative", c.Max)
	case c.Rate < 0:
		return fmt.Errorf("rrdns: Config.Rate %d is negative", c.Rate)
	}
	return c.validNames()
}

func (s *Server) ttl() uint32       { return uint32(s.cfg.TTL / time.Second) }
func (s *Server) ownServer() string { return serverOf + s.zone }

func (s *Server) header(kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: s.zone, Rrtype: kind, Class: dns.ClassINET, Ttl: s.ttl()}
}

// Listen opens the two sockets of a server. Port 0 means one that is free.
func Listen(local netip.AddrPort) (net.PacketConn, net.Listener, error) {
	listener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(local))
	if err != nil {
		return nil, nil, fmt.Errorf("rrdns: listen on %v: %w", local, err)
	}
	port := listener.Addr().(*net.TCPAddr).AddrPort().Port()
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(local.Addr(), port)))
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("rrdns: listen on %v: %w", local, err), listener.Close())
	}
	return conn, listener, nil
}

const (
	// idleTime is how long a TCP connection may wait for a query.
	idleTime = 5 * time.Second
	// maxConns is the number of TCP connections at a time; more wait.
	maxConns = 256
	// closeTime bounds the wait for queries under way at the end.
	closeTime = time.Second
)

// Run answers queries until the context is done, and returns nil then, or an error
// when a socket is broken. It closes both sockets and leaves no goroutine behind.
func (s *Server) Run(ctx context.Context, conn net.PacketConn, listener net.Listener) error {
	servers := []*dns.Server{
		{PacketConn: conn, UDPSize: ednsSize},
		{
			Listener: limitConns(listener, maxConns), IdleTimeout: func() time.Duration { return idleTime }, ReadTimeout: idleTime,
			MaxTCPQueries: -1, // to hang up on what a client has sent already resets its connection, answers and all
		},
	}
	working, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var serving, started sync.WaitGroup
	for _, server := range servers {
		started.Add(1)
		once := sync.OnceFunc(started.Done)
		server.NotifyStartedFunc = once
		server.Handler, server.MsgAcceptFunc = s, accept
		server.MsgInvalidFunc = func([]byte, error) { s.stats.invalid.Add(1) }
		serving.Go(func() {
			defer once()
			if err := server.ActivateAndServe(); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("rrdns: %w: %w", errSocket, err))
			}
		})
	}
	<-working.Done()
	started.Wait()
	for _, server := range servers {
		closing, done := context.WithTimeout(context.Background(), closeTime)
		_ = server.ShutdownContext(closing) // it is stopped already, or it stops now
		done()
	}
	conn.Close()
	listener.Close()
	serving.Wait()
	if err := context.Cause(working); errors.Is(err, errSocket) {
		return err
	}
	return nil
}

var errSocket = errors.New("a socket is broken")
