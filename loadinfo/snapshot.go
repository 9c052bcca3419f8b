package loadinfo

import (
	"net/netip"
	"slices"
	"time"

	"github.com/carom-dpr/carom/lb"
)

// Snapshot returns the picture of one service at now, as policies see it: the
// hosts that serve it and are not down, in the order of their IDs, this host
// among them if it serves it. A service that nobody serves has no hosts.
//
// From its first Snapshot on, reports note the counters of Live for the service.
func (b *Board) Snapshot(service string, now time.Time) *lb.Snapshot {
	b.mu.Lock()
	defer b.mu.Unlock()
	id := HashService(service)
	b.ask(id, service)
	b.self.touch(now)
	s := &lb.Snapshot{Self: -1, Hosts: make([]lb.Host, 0, len(b.order)+1)}
	own, serves := b.self.host(id, now)
	pool := b.pool(id, now)
	for _, rec := range b.order {
		if serves && s.Self < 0 && own.ID < rec.report.ID {
			s.Self, s.Hosts = len(s.Hosts), append(s.Hosts, own)
		}
		if said := rec.report.service(id); said != nil {
			if state := b.stateIn(pool, rec, now); state != Down {
				s.Hosts = append(s.Hosts, b.host(rec, said, pool.flags(rec.report.State, state), now))
			}
		}
	}
	if serves && s.Self < 0 {
		s.Self, s.Hosts = len(s.Hosts), append(s.Hosts, own)
	}
	s.Members = lb.HashMembers(s.Hosts)
	return s
}

// ask learns a service's name, and the counters of the hosts that have reported it
// before. Nothing can have been handed to them yet, so noting the counters now
// is as good as noting them then.
func (b *Board) ask(id ServiceID, service string) {
	if _, known := b.services[id]; known {
		return
	}
	b.services[id] = service
	for name, rec := range b.hosts {
		if rec.report.service(id) != nil {
			rec.note(id, b.live(name, service, nil))
		}
	}
}

func (b *Board) host(rec *record, said *ServiceReport, f lb.Flags, now time.Time) lb.Host {
	c := rec.live[said.ID]
	if !said.Healthy {
		f |= lb.Unhealthy
	}
	return lb.Host{
		ID:       rec.report.ID,
		Weight:   said.Weight,
		Conns:    said.Conns,
		Load:     rec.report.Resources,
		Age:      age(rec.heard, now),
		Live:     c.live,
		LiveThen: c.then,
		InFlight: said.InFlight,
		Latency:  said.Latency,
		Since:    rec.servingSince(said, now),
		Flags:    f,
	}
}

// servingSince is how long the host has been taking connections: by its own word,
// but no longer than since it came back, if this board lost sight of it.
func (r *record) servingSince(said *ServiceReport, now time.Time) time.Duration {
	since := said.Since
	if since > 0 {
		since += age(r.heard, now)
	}
	if back := max(age(r.since, now), 1); r.back && (since == 0 || back < since) {
		return back
	}
	return since
}

// A Member is what the board knows of one host, for those who wire hosts together
// and for people.
type Member struct {
	// ID is the host's name.
	ID string
	// Node is where peers reach the host's tunnel.
	Node netip.AddrPort
	// Dialled lists the addresses at which clients dial the host. It is the
	// board's: do not change it.
	Dialled []netip.Addr
	// State is what the host says of itself or, if it is silent, what follows from
	// that.
	State State
	// Local marks this host.
	Local bool
	// Boot orders the lives of a host: the latest has the greatest number.
	Boot uint64
	// Weight is the host's relative capacity; 0 drains it.
	Weight uint16
	// Age is that of the last report, 0 for this host.
	Age time.Duration
	// Resources are the used shares of the host's resources.
	Resources lb.Resources
	// Named are those that an application has named. It is the board's: do not change
	// it.
	Named []NamedResource
	// Services lists what the host serves. It is the board's: do not change it.
	Services []ServiceReport
}

// Members returns all hosts that the board has not forgotten, those that are down
// and this host among them, in the order of IDs.
func (b *Board) Members(now time.Time) []Member {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.self.touch(now)
	list := make([]Member, 0, len(b.order)+1)
	pools := b.pools(now)
	for _, rec := range b.order {
		list = append(list, member(&rec.report, b.stateAt(rec, pools, now), age(rec.heard, now)))
	}
	if b.self.set {
		r := b.self.report(now)
		m := member(&r, r.State, 0)
		m.Local = true
		at, _ := b.find(m.ID)
		list = slices.Insert(list, at, m)
	}
	return list
}

func member(r *Report, s State, age time.Duration) Member {
	return Member{
		ID: r.ID, Node: r.Node, Dialled: r.Dialled, State: s,
		Boot: r.Boot, Weight: r.Weight, Age: age,
		Resources: r.Resources, Named: r.Named, Services: r.Services,
	}
}
