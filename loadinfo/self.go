package loadinfo

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/carom-dpr/carom/lb"
)

// DefaultWeight is the weight of a host that states none. A hundred leaves room
// to say that another host is a little smaller.
const DefaultWeight = 100

// NoWeight, as a Weight, is the weight 0: no new connections. Every negative
// Weight means the same; 0 means that none was given.
const NoWeight = -1

// Self describes this host. The slices are copied.
type Self struct {
	// ID names the host among its peers and over its restarts. Required.
	ID string
	// Boot orders the lives of the host; it must rise with each restart. 0 means
	// the wall clock in nanoseconds at the first SetSelf with this ID.
	Boot uint64
	// Node is where peers reach this host's tunnel.
	Node netip.AddrPort
	// Dialled lists the addresses at which clients dial this host.
	Dialled []netip.Addr
	// Weight is the host's capacity relative to its peers, up to 65535; 0 means
	// DefaultWeight, a negative one NoWeight.
	Weight int
	// State is Up, Joining or Draining.
	State State
	// Services lists what this host serves; a router that serves nothing itself
	// has none.
	Services []OwnService
}

// An OwnService is a service that this host serves.
type OwnService struct {
	// Name is the service's name, the same on all hosts.
	Name string
	// Conns counts the established connections of the service that this host
	// serves; whoever counts them owns it. nil means one that the board makes: see
	// Board.Counter.
	Conns *atomic.Int32
	// Weight is the host's capacity for this service, up to 65535; 0 means the
	// host's Weight, a negative one NoWeight.
	Weight int
	// Requests measures the requests of the service, for policies that go by them
	// or by latency; nil means that nobody does.
	Requests *Requests
	// Unhealthy says that the server does not answer, for a start.
	Unhealthy bool
}

// own is this host on its own board.
type own struct {
	set       bool
	ID        string
	Boot      uint64
	Node      netip.AddrPort
	dialled   []netip.Addr
	weight    uint16
	state     State
	resources lb.Resources
	named     []NamedResource
	sampled   time.Time // when named was set
	services  []ownService
	seq       uint64
}

type ownService struct {
	name     string
	id       ServiceID
	conns    *atomic.Int32
	requests *Requests // may be nil
	weight   uint16
	healthy  bool
	since    time.Time // when it began to take connections; zero: it does not
}

// SetSelf says who this host is and what it serves, and replaces what an earlier
// call said. An error names the field, and leaves the board as it was.
func (b *Board) SetSelf(s Self) error {
	next, err := s.build()
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	next.seq = b.self.seq
	if s.Boot == 0 && b.self.ID == s.ID {
		next.Boot = b.self.Boot // a new description is no new life
	}
	if b.self.set {
		next.resources, next.named, next.sampled = b.self.resources, b.self.named, b.self.sampled
	}
	for i, svc := range next.services {
		b.ask(svc.id, svc.name)
		if was := b.self.service(svc.id); was != nil {
			next.services[i].since = was.since
		}
	}
	b.self = next
	if b.hosts[s.ID] != nil { // a former life of this host
		b.forget(s.ID)
	}
	b.notify()
	return nil
}

func (s Self) build() (own, error) {
	o := own{set: true, ID: s.ID, Boot: s.Boot, Node: s.Node, state: s.State, resources: Unknown}
	o.dialled = slices.Clone(s.Dialled)
	if o.Boot == 0 {
		o.Boot = uint64(time.Now().UnixNano())
	}
	var err error
	if o.weight, err = weight(s.Weight, DefaultWeight); err != nil {
		return own{}, fmt.Errorf("loadinfo: Self.Weight: %w", err)
	}
	for _, svc := range s.Services {
		built, err := svc.build(o.weight)
		if err != nil {
			return own{}, err
		}
		if twin := o.service(built.id); twin != nil {
			return own{}, fmt.Errorf("loadinfo: services %q and %q have the same hash: rename one",
				twin.name, svc.Name)
		}
		o.services = append(o.services, built)
	}
	r := o.report(time.Time{})
	return o, r.Validate()
}

func (s OwnService) build(host uint16) (ownService, error) {
	o := ownService{
		name: s.Name, id: HashService(s.Name), conns: s.Conns, requests: s.Requests, healthy: !s.Unhealthy,
	}
	if s.Name == "" {
		return o, fmt.Errorf("loadinfo: Self.Services: a service without a name")
	}
	if o.conns == nil {
		o.conns = new(atomic.Int32)
	}
	var err error
	if o.weight, err = weight(s.Weight, host); err != nil {
		return o, fmt.Errorf("loadinfo: weight of service %q: %w", s.Name, err)
	}
	if host == 0 {
		o.weight = 0 // a host that takes nothing takes nothing of any service
	}
	return o, nil
}

func weight(w int, def uint16) (uint16, error) {
	switch {
	case w > math.MaxUint16:
		return 0, fmt.Errorf("%d is above %d", w, math.MaxUint16)
	case w == 0:
		return def, nil
	}
	return uint16(max(w, 0)), nil
}

// SetState says whether this host takes connections: Up, Joining or Draining, as
// which any other state counts. Before SetSelf it has no effect, like the other setters.
func (b *Board) SetState(s State) {
	b.change(func(o *own) { o.state = min(s, Draining) })
}

// SetHealthy says whether the server of a service answers.
func (b *Board) SetHealthy(service string, healthy bool) {
	b.change(func(o *own) {
		if s := o.service(HashService(service)); s != nil {
			s.healthy = healthy
		}
	})
}

// SetWeight sets this host's weight for a service; 0 is 0: no new connections.
func (b *Board) SetWeight(service string, weight uint16) {
	b.change(func(o *own) {
		if s := o.service(HashService(service)); s != nil {
			s.weight = weight
		}
	})
}

// SetResources says how much of this host's resources is in use.
func (b *Board) SetResources(r lb.Resources) {
	b.change(func(o *own) { o.resources = r })
}

// SetNamed says how much of this host's resources by name is in use, as of now;
// their ages are those of the samples at now. An error names the resource, and
// leaves what was set before.
func (b *Board) SetNamed(list []NamedResource, now time.Time) error {
	if len(list) > MaxNamed {
		return fmt.Errorf("loadinfo: %d resources by name, at most %d fit in a report", len(list), MaxNamed)
	}
	if err := validNamed(list); err != nil {
		return err
	}
	b.change(func(o *own) { o.named, o.sampled = slices.Clone(list), now })
	return nil
}

func (b *Board) change(f func(*own)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.self.set {
		f(&b.self)
		b.notify()
	}
}

// Counter returns the counter of this host's established connections of a
// service, or nil if it does not serve it. The number in it is what peers are
// told and what policies see of this host.
func (b *Board) Counter(service string) *atomic.Int32 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.self.service(HashService(service)); s != nil {
		return s.conns
	}
	return nil
}

// Report returns what this host says of itself at now, each time with the next
// sequence number: it is to be sent. ok is false before SetSelf.
func (b *Board) Report(now time.Time) (r Report, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.self.set {
		return Report{}, false
	}
	b.self.seq++
	b.self.touch(now)
	return b.self.report(now), true
}

// draft is Report without the next sequence number, to be compared with the last.
func (b *Board) draft() Report {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.self.report(time.Time{})
}

func (o *own) service(id ServiceID) *ownService {
	for i := range o.services {
		if o.services[i].id == id {
			return &o.services[i]
		}
	}
	return nil
}

// touch notes which services take connections at now.
func (o *own) touch(now time.Time) {
	for i := range o.services {
		s := &o.services[i]
		if open := o.state == Up && s.healthy && s.weight > 0; !open {
			s.since = time.Time{}
		} else if s.since.IsZero() {
			s.since = now
		}
	}
}

// taking is how long the service has been taking connections at now, at least 1 ns
// if it does.
func (s *ownService) taking(now time.Time) time.Duration {
	if s.since.IsZero() {
		return 0
	}
	return max(age(s.since, now), 1)
}

func (o *own) report(now time.Time) Report {
	r := Report{
		ID: o.ID, Boot: o.Boot, Seq: o.seq, Weight: o.weight, State: o.state,
		Node: o.Node, Dialled: o.dialled, Resources: o.resources,
	}
	for _, s := range o.services {
		r.Services = append(r.Services, s.report(now))
	}
	for _, x := range o.named {
		x.Age += age(o.sampled, now)
		r.Named = append(r.Named, x)
	}
	return r
}

func (s *ownService) report(now time.Time) ServiceReport {
	r := ServiceReport{
		ID: s.id, Conns: uint32(max(s.conns.Load(), 0)), Weight: s.weight, Healthy: s.healthy,
		Since: s.taking(now),
	}
	if s.requests != nil {
		r.InFlight, r.Latency = s.requests.InFlight(), s.requests.Latency()
	}
	return r
}

// host is this host as its own policies see it: its count is exact at any time.
func (o *own) host(id ServiceID, now time.Time) (lb.Host, bool) {
	s := o.service(id)
	if s == nil {
		return lb.Host{}, false
	}
	said := s.report(now)
	h := lb.Host{
		ID:       o.ID,
		Weight:   s.weight,
		Load:     o.resources,
		Live:     s.conns,
		InFlight: said.InFlight,
		Latency:  said.Latency,
		Since:    said.Since,
		Flags:    lb.Local | pool{}.flags(o.state, o.state),
	}
	if !s.healthy {
		h.Flags |= lb.Unhealthy
	}
	return h, true
}

// heard judges a report that bears this host's own name.
func (o *own) heard(r *Report) error {
	switch {
	case r.Boot == o.Boot:
		return ErrOwn
	case r.Boot < o.Boot:
		return ErrReplayed // from a former life
	}
	return ErrConflict
}
