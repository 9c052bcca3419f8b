// Package lb chooses the host that serves a new connection.
//
// A [Policy] looks at a [Snapshot], the state of all hosts at one instant, and
// builds a [Picker] from it. The picker is then asked once per connection. Work
// that depends on the hosts alone (sorting, tables, sums of weights) belongs in
// Build, which runs off the packet path and may allocate; Pick is called for
// every new connection, by several goroutines at once, and neither blocks nor
// allocates.
//
// Every host of a cluster chooses for itself, from reports that are always a
// little old. What makes that work is one correction, applied in one place by
// [Host.Estimate]: a chooser knows exactly how many connections it has itself
// handed to a peer, so it adds the change since that peer's report.
//
// [HomeOrOther] is the default policy; [Parse] makes one from its name and
// parameters, as a configuration file has them. What they share: only eligible
// hosts get connections (see [Host.Eligible]), and if there is none the own host
// serves; loads are compared per weight; and equals are told apart by the flow's
// hash, never by their position.
//
// There are four kinds. Those that compare ([HomeOrOther], [HomeOrOthers],
// [PowerOfD], [LeastConnections], and by other measures [ResourceLoad], [Prequal],
// [PeakEWMA]) keep a connection unless a peer is better, since serving here costs
// nothing while a redirect costs a hop. Those that hash ([Rendezvous], [Maglev],
// [Ring], [Jump]) send the same key to the same host, wherever it came in. Those
// between ([BoundedLoad], [Geometric], [Affinity]) give a key a few hosts and
// choose by load. The others spread: [Random], [RoundRobin], [SmoothRoundRobin],
// and [StaleLoad] by what old reports still say. [SlowStart] is put around any.
//
// The package imports neither a network nor a clock: the same code runs in a
// router, in a test and in a simulator.
package lb

import (
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"time"
)

// A Host is what a chooser knows of one member of the cluster, as far as one
// service is concerned.
type Host struct {
	// ID names the host. It is unique within a snapshot and stable over restarts.
	ID string
	// Weight is the host's capacity relative to the others. 0 drains: the host
	// keeps the connections it has and gets no new ones.
	Weight uint16
	// Conns is the number of established connections of the service that the
	// host serves, by its own count, at the time of its report.
	Conns uint32
	// Load is the used share of the host's resources, at the time of its report.
	Load Resources
	// Age is the age of the report when the snapshot was made.
	Age time.Duration
	// Live counts the connections that this chooser has handed to the host, less
	// those whose end it has seen: only its growth since LiveThen means something. It
	// goes on counting after the snapshot was made, and successive snapshots share it.
	// For the chooser's own host it counts the connections served, with Conns and
	// LiveThen 0, so the own count is always exact. A nil Live means no correction.
	Live *atomic.Int32
	// LiveThen is the value of Live when the report arrived.
	LiveThen int32
	// InFlight is the number of requests that the host's server for the service
	// was working on at the time of its report. It differs from Conns where a
	// connection carries no request for a while, or several at once.
	InFlight uint32
	// Latency is the median time that the host took of late for a request of the
	// service, with about InFlight others at work. 0 means unknown.
	Latency time.Duration
	// Since is how long the host had been taking connections of the service when
	// the snapshot was made: since it joined, restarted or recovered. 0 means
	// unknown and counts as long. [SlowStart] goes by it.
	Since time.Duration
	// Flags is the host's state.
	Flags Flags
}

// Resources holds the used shares of a host's resources, from 0 (idle) to 1
// (exhausted). A negative value means unknown.
type Resources struct {
	// CPU is the share of the processors' time that is used.
	CPU float32
	// Memory is the share of the memory that cannot be had without swapping.
	Memory float32
	// Disk is the share of the disks' time that is used.
	Disk float32
	// Network is the share of the links' bandwidth that is used.
	Network float32
}

// Flags is the state of a host as a set of bits.
type Flags uint8

// The states of a host. Any but Local keeps new connections away from it.
const (
	// Local marks the chooser's own host.
	Local Flags = 1 << iota
	// Draining marks a host that finishes what it has.
	Draining
	// Stale marks a host whose last report is too old to trust.
	Stale
	// Unhealthy marks a host whose server for this service does not answer.
	Unhealthy
)

// Estimate returns the number of connections that the host probably serves now:
// what it reported, plus the connections this chooser has handed to it since,
// less those of them that have ended. It is never negative.
//
// Counting only what was sent since the report would err once a report is older
// than a connection lives; the difference of a live count does not, since ends
// are subtracted as they are seen.
func (h *Host) Estimate() int64 {
	return max(int64(h.Conns)+h.since(), 0)
}

// since returns by how much the live count has grown since the report.
func (h *Host) since() int64 {
	if h.Live == nil {
		return 0
	}
	return int64(h.Live.Load() - h.LiveThen) // wraps like the counter does
}

// Eligible reports whether the host may get a new connection.
func (h *Host) Eligible() bool {
	return h.Weight > 0 && h.Flags&(Draining|Stale|Unhealthy) == 0
}

// A Snapshot describes the hosts of one service at one instant. It is immutable
// but for the counters that its hosts point to. Hosts are sorted by ID, so hosts
// that agree on the membership agree on the indexes.
type Snapshot struct {
	// Hosts are all members that the chooser knows, eligible or not.
	Hosts []Host
	// Self is the index of the chooser's own host, -1 on a router that serves
	// nothing itself.
	Self int
	// Members identifies the set of IDs: equal on hosts that know the same
	// members, so that policies which depend on it can tell a change.
	Members uint64
	// Taken is when the snapshot was made, on the clock of Pick's now, so that
	// policies which go by a report's age can let it grow. 0 means unknown: then
	// they take the ages that the hosts had in the snapshot.
	Taken time.Duration
}

// HashMembers returns the value of Snapshot.Members for hosts that are sorted by
// ID: FNV-1a over the IDs, each closed by a zero byte so that their borders
// count. Whoever makes snapshots uses it, so that all hosts agree.
func HashMembers(hosts []Host) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	sum := uint64(offset)
	for i := range hosts {
		for _, c := range []byte(hosts[i].ID) {
			sum = (sum ^ uint64(c)) * prime
		}
		sum *= prime // the closing zero byte
	}
	return sum
}

// A Flow identifies a new connection by two hashes, keyed with a seed that all
// hosts of a cluster share. They are also a picker's only source of randomness,
// so a run can be repeated.
type Flow struct {
	// Conn hashes the whole connection: both addresses, both ports, protocol.
	Conn uint64
	// Client hashes the client's address alone.
	Client uint64
}

// An Action is what to do with a new connection.
type Action uint8

const (
	// Serve leaves the connection to the chooser's own host.
	Serve Action = iota
	// Send hands it to the choice's host.
	Send
	// Refuse turns it away.
	Refuse
)

// A Choice is a picker's answer. The zero Choice serves the connection here.
type Choice struct {
	// Do is what to do with the connection.
	Do Action
	// Host is the index of the chosen host in the snapshot, for Send. It is never
	// the chooser's own: serving there is Serve.
	Host int
}

// A Policy is a way to choose, with its parameters. Those that remember something
// from one snapshot to the next say so and are used by pointer, one for each
// service.
type Policy interface {
	// Build makes a picker for a snapshot. It is called off the packet path,
	// whenever there is a new one, and by several goroutines at once if they share
	// the policy; it may allocate. The picker keeps the snapshot's hosts, which
	// nobody may write to from then on.
	Build(s *Snapshot) Picker
}

// Validate returns an error if the policy, or the one that a [SlowStart] is put
// around, is missing: nil, or a nil pointer. Numbers that no policy can use count as
// ones that it can.
func Validate(p Policy) error {
	switch v := reflect.ValueOf(p); {
	case p == nil:
		return errors.New("lb: the policy is nil: give one")
	case v.Kind() == reflect.Pointer && v.IsNil():
		return fmt.Errorf("lb: the policy is a nil %T: give one", p)
	}
	slow, ok := p.(*SlowStart)
	if !ok {
		return nil
	}
	if err := Validate(slow.Policy); err != nil {
		return fmt.Errorf("lb: SlowStart.Policy: %w", err)
	}
	if slow.Settled == nil {
		return nil
	}
	if err := Validate(slow.Settled); err != nil {
		return fmt.Errorf("lb: SlowStart.Settled: %w", err)
	}
	return nil
}

// A Picker chooses for one connection after another, by one snapshot.
type Picker interface {
	// Pick chooses for the connection f. Several goroutines call it at once; it
	// neither blocks nor allocates. now is the time since an origin of the
	// caller's, on the clock of Snapshot.Taken; only differences mean anything.
	Pick(f Flow, now time.Duration) Choice
}
