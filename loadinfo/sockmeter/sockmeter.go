// Package sockmeter counts the established connections that this host serves,
// service by service, from the sockets of its own kernel.
//
// A host reports how many connections it serves so that its peers can choose the
// least loaded one. Nobody knows that number better than the kernel that holds
// the sockets: no lost FIN falsifies it, and it counts the connections of any
// server, whether or not that server knows of this package.
//
// On Linux a BPF program at the root of the cgroup hierarchy is called for each
// connection that is accepted into ESTABLISHED and for each that leaves it, and
// keeps one counter for each service in memory that this process maps. So
// reading a count is one atomic load, and the count is never old. A netlink dump
// of the sockets (sock_diag(7)) audits it from time to time. Where BPF is not to
// be had, the dump alone gives the counts, as old as the last one.
//
// Connections are told apart from those of other services by their local port
// alone. A connection that this host itself opened and whose local port happens
// to be a service's port is not counted when it opens, but is when it was there
// before the meter; services use ports outside the ephemeral range, so there are
// none in practice.
//
// Elsewhere than on Linux, [Open] returns an error that matches
// [errors.ErrUnsupported].
package sockmeter

import (
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// A Service is a name and the TCP ports on which its servers listen.
type Service struct {
	// Name identifies the service. It is not empty and unique.
	Name string
	// Port is the first port, in host byte order.
	Port uint16
	// PortEnd is the last port of a range. 0 stands for Port: a single one.
	PortEnd uint16
}

// last returns the last port of the service.
func (s Service) last() uint16 { return max(s.Port, s.PortEnd) }

// A Mode is a way to count.
type Mode uint8

const (
	// Auto is Exact if the host allows it and Poll otherwise; the reason for
	// falling back is logged.
	Auto Mode = iota
	// Exact has the kernel count as connections come and go. It needs CAP_BPF and
	// CAP_NET_ADMIN, a mounted cgroup v2 hierarchy and Linux 5.15.
	Exact
	// Poll counts sockets once per Period. It needs no privileges. A dump costs
	// the kernel about 1 ms for each thousand sockets of the host, and counts that
	// are old make for worse choices.
	Poll
)

// String returns the mode's name in lower case.
func (m Mode) String() string {
	if m > Poll {
		return fmt.Sprintf("mode %d", uint8(m))
	}
	return [...]string{"auto", "exact", "poll"}[m]
}

// The default periods.
const (
	// defaultAudit is rare, since an audit of an exact counter has nothing to find
	// unless the kernel ran out of memory for a mark.
	defaultAudit = 10 * time.Second
	// defaultPoll is the period at which hosts report their counts.
	defaultPoll = 500 * time.Millisecond
)

// maxServices is the number of names that a meter can tell apart in its life: one
// less than MAX_SLOTS of the BPF program, where 0 means no service.
const maxServices = 255

// Config is the configuration of a [Meter]. Only Services has no default.
type Config struct {
	// Services are the services to count; their ports do not overlap. It may be
	// empty, since [Meter.SetServices] changes it.
	Services []Service
	// Mode is the way to count. The default is Auto.
	Mode Mode
	// Cgroup is the directory of the cgroup v2 whose processes' sockets are
	// counted. The default is the root of the hierarchy as it is mounted here,
	// which is every process; a subtree counts less.
	Cgroup string
	// Period is the time between two audits, or between two dumps in mode Poll.
	// The defaults are 10 s and 500 ms.
	Period time.Duration
	// Logger receives the reason for falling back and what audits correct. The
	// default is slog.Default().
	Logger *slog.Logger
}

// withDefaults returns the configuration with its zero fields set, or an error
// that names the field that is wrong.
func (c Config) withDefaults() (Config, error) {
	if c.Mode > Poll {
		return c, fmt.Errorf("sockmeter: Config.Mode %d is none of Auto, Exact, Poll", c.Mode)
	}
	if c.Period < 0 {
		return c, fmt.Errorf("sockmeter: Config.Period %v is negative", c.Period)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, checkServices(c.Services)
}

// checkServices returns an error that names the first service that cannot be
// counted beside the others.
func checkServices(services []Service) error {
	names := make(map[string]bool, len(services))
	for i, s := range services {
		switch {
		case s.Name == "":
			return fmt.Errorf("sockmeter: service %d has no Name", i)
		case names[s.Name]:
			return fmt.Errorf("sockmeter: two services are named %q", s.Name)
		case s.Port == 0:
			return fmt.Errorf("sockmeter: service %q has no Port", s.Name)
		case s.PortEnd != 0 && s.PortEnd < s.Port:
			return fmt.Errorf("sockmeter: service %q: PortEnd %d is below Port %d", s.Name, s.PortEnd, s.Port)
		}
		names[s.Name] = true
		for _, o := range services[:i] {
			if s.Port <= o.last() && o.Port <= s.last() {
				return fmt.Errorf("sockmeter: services %q and %q share a port, which counts for one only", o.Name, s.Name)
			}
		}
	}
	return nil
}

// errTooMany: a name keeps its counter for life, so that pointers to it stay right.
var errTooMany = errors.New("sockmeter: a meter tells at most 255 service names apart in its life; open a new one")
