package sim

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/carom-dpr/carom/lb"
)

// A Scenario describes a cluster, its clients and what its hosts know of each
// other. Times are in lifetimes, see the package comment. Zero fields take the
// defaults that they state.
type Scenario struct {
	// Name is for people.
	Name string `json:"name,omitempty"`
	// Seed starts the random numbers.
	Seed uint64 `json:"seed,omitempty"`

	// Hosts is the number of hosts; 0 means 10.
	Hosts int `json:"hosts,omitempty"`
	// Routers is the number of choosers that serve nothing themselves, among which
	// the clients spread evenly. 0 means that every host is entry and server.
	Routers int `json:"routers,omitempty"`
	// Policy is what choosers go by, as in lb.Parse; "" means home-or-other. The
	// word {period} in it stands for Period, as a duration.
	Policy string `json:"policy,omitempty"`
	// Length is how long the simulation lasts; 0 means 1000. Warm is the part at its
	// beginning that is not counted; 0 means a tenth, a negative value none.
	Length float64 `json:"length,omitempty"`
	Warm   float64 `json:"warm,omitempty"`

	// Load is the rate of connections, as a share of what the hosts can serve; 0
	// means 0.9.
	Load float64 `json:"load,omitempty"`
	// Entry is which hosts the clients dial: "uniform" (the default), "zipf:s=1",
	// where the k-th host gets a share in proportion to k^-s, or "one".
	Entry string `json:"entry,omitempty"`
	// Crowd is a flash crowd.
	Crowd Crowd `json:"crowd,omitzero"`
	// Clients is the number of client addresses, which matters to policies that
	// hash them; 0 means one for each connection.
	Clients int `json:"clients,omitempty"`
	// Service is the distribution of service times, of mean 1: "exp" (the default),
	// "fixed", "pareto:alpha=1.5", "bimodal:share=0.1,ratio=10", where a share of
	// the connections is ratio times as long as the others, or "trace:FILE", with
	// one time on a line, in any unit, drawn in order from a random place.
	Service string `json:"service,omitempty"`

	// Speeds are the hosts' speeds, repeated as often as needed; none means 1.
	Speeds []float64 `json:"speeds,omitempty"`
	// Weights are the hosts' weights, repeated likewise; none means a hundred times
	// the speeds.
	Weights []int `json:"weights,omitempty"`
	// Slots is how many connections a host serves at a time, each at the host's
	// speed; the others wait in their order. 0 means 1, or no bound if Sharing.
	Slots int `json:"slots,omitempty"`
	// Sharing has the connections that a host serves share its speed, as processes
	// share a processor.
	Sharing bool `json:"sharing,omitempty"`
	// Limit is how many connections a host takes, those that wait included; what
	// comes beyond is refused. 0 means no bound.
	Limit int `json:"limit,omitempty"`

	// View is what choosers see: "boards", a loadinfo.Board for each of them,
	// "shared", one Board for all, "partial", the last reports of those that they
	// know, or "" to decide by the number of hosts: boards up to 1,000, or 10,000 if
	// Known is set, shared up to 10,000 otherwise, and partial above.
	View string `json:"view,omitempty"`
	// Known is how many other hosts, drawn at random, a chooser hears; 0 means all,
	// and 16 in a partial view. A shared view has no use for it.
	Known int `json:"known,omitempty"`
	// Period is the time between two reports of a host. 0 means that choosers see
	// the counts themselves, at any time.
	Period float64 `json:"period,omitempty"`
	// Sync has all hosts report at the same instants, instead of each at phases of
	// its own.
	Sync bool `json:"sync,omitempty"`
	// Rebuild is the least time between two snapshots of a chooser; 0 means that it
	// makes one whenever it has a connection and news.
	Rebuild float64 `json:"rebuild,omitempty"`
	// Loss is the probability that a report does not reach a chooser. Delay is how
	// long it takes, Jitter the mean of what it takes longer, at random.
	Loss   float64 `json:"loss,omitempty"`
	Delay  float64 `json:"delay,omitempty"`
	Jitter float64 `json:"jitter,omitempty"`
	// Correction is what a chooser adds to a report: "live" (the default), the
	// change of the number of its own connections there, see lb.Host.Estimate;
	// "sent", what it has sent there since the report; or "none".
	Correction string `json:"correction,omitempty"`
	// Unseen is the probability that a chooser does not see a redirected connection
	// end.
	Unseen float64 `json:"unseen,omitempty"`
	// Hop is how long a redirected connection takes to its host.
	Hop float64 `json:"hop,omitempty"`

	// Events are what happens to hosts, in order of time.
	Events []Event `json:"events,omitempty"`
	// Samples is the number of points of Result.Series; 0 means 200.
	Samples int `json:"samples,omitempty"`
}

// A Crowd is clients that come together, from At on and For so long: Times as many
// as usual, of which those that are more than usual all dial the first host, as
// if one cached answer of the DNS was in everybody's hands. Zero Times is no crowd.
type Crowd struct {
	// At is when they begin to come, For how long they do.
	At  float64 `json:"at"`
	For float64 `json:"for"`
	// Times is how many connections there are, in those without a crowd.
	Times float64 `json:"times"`
}

// An Event happens to Count hosts from Host on, at a time.
type Event struct {
	// At is when, Host the index of the first host.
	At   float64 `json:"at"`
	Host int     `json:"host"`
	// Count is how many hosts; 0 means one.
	Count int `json:"count,omitempty"`
	// What is "join" (the host comes; before, it is not there), "drain" (it takes no
	// new connections), "die" (it takes its connections with it) or "return" (it
	// comes back after any of the others).
	What string `json:"what"`
}

// The forms that Scenario.View names.
const (
	viewBoards  = "boards"
	viewShared  = "shared"
	viewPartial = "partial"
)

// maxBoards is up to how many hosts each has a board with all others on it, which
// takes a gigabyte; maxShared is up to how many a snapshot has all hosts.
const (
	maxBoards = 1000
	maxShared = 10_000
)

// defaultKnown is enough to draw two or three from, and a report's copies cost less
// than the connections of a host.
const defaultKnown = 16

// WithDefaults returns the scenario with what its zero fields stand for filled in.
func (sc Scenario) WithDefaults() Scenario {
	sc.Hosts = orInt(sc.Hosts, 10)
	sc.Policy = orString(sc.Policy, "home-or-other")
	sc.Length = orFloat(sc.Length, 1000)
	sc.Warm = max(orFloat(sc.Warm, sc.Length/10), 0)
	sc.Load = orFloat(sc.Load, 0.9)
	sc.Entry = orString(sc.Entry, "uniform")
	sc.Service = orString(sc.Service, "exp")
	sc.Correction = orString(sc.Correction, "live")
	sc.Samples = orInt(sc.Samples, 200)
	sc.Crowd.Times = max(sc.Crowd.Times, 1)
	if len(sc.Speeds) == 0 {
		sc.Speeds = []float64{1}
	}
	if sc.Slots == 0 && !sc.Sharing {
		sc.Slots = 1
	}
	sc.View = orString(sc.View, sc.viewFor())
	if sc.View == viewPartial {
		sc.Known = orInt(sc.Known, min(defaultKnown, sc.Hosts))
	}
	return sc
}

func (sc *Scenario) viewFor() string {
	switch {
	case sc.Hosts > maxShared:
		return viewPartial
	case sc.Hosts > maxBoards && sc.Known == 0:
		return viewShared
	}
	return viewBoards
}

func orInt(n, def int) int {
	if n == 0 {
		return def
	}
	return n
}

func orFloat(x, def float64) float64 {
	if x == 0 {
		return def
	}
	return x
}

func orString(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

// Validate returns an error that names each field that cannot be simulated.
func (sc Scenario) Validate() error {
	sc = sc.WithDefaults()
	_, policy := sc.policy()
	_, service := parseService(sc.Service)
	_, entry := parseEntry(sc.Entry, sc.Hosts)
	return errors.Join(policy, service, entry, sc.validCluster(), sc.validReports(), sc.validEvents())
}

func (sc *Scenario) validCluster() error {
	for _, s := range sc.Speeds {
		if !(s > 0 && s <= maxSpeed) {
			return fmt.Errorf("sim: speeds: %g is not above 0 and at most %d", s, maxSpeed)
		}
	}
	for _, w := range sc.Weights {
		if w < 0 || w > math.MaxUint16 {
			return fmt.Errorf("sim: weights: %d is not from 0 to %d", w, math.MaxUint16)
		}
	}
	return errors.Join(
		within("hosts", float64(sc.Hosts), 1, maxHosts), within("routers", float64(sc.Routers), 0, maxHosts),
		within("length", sc.Length, 0, maxTime), within("warm", sc.Warm, 0, sc.Length),
		within("load", sc.Load, 0, 100), within("clients", float64(sc.Clients), 0, math.MaxInt32),
		within("slots", float64(sc.Slots), 0, maxHosts), within("limit", float64(sc.Limit), 0, maxHosts),
		within("crowd.at", sc.Crowd.At, 0, maxTime), within("crowd.for", sc.Crowd.For, 0, maxTime),
		within("crowd.times", sc.Crowd.Times, 1, 1000), within("samples", float64(sc.Samples), 1, 1e6),
	)
}

func (sc *Scenario) validReports() error {
	return errors.Join(
		oneOf("view", sc.View, viewBoards, viewShared, viewPartial), oneOf("correction", sc.Correction, "live", "sent", "none"),
		within("known", float64(sc.Known), 0, float64(sc.Hosts)), within("period", sc.Period, 0, maxTime),
		within("rebuild", sc.Rebuild, 0, maxTime), within("loss", sc.Loss, 0, 1),
		within("delay", sc.Delay, 0, maxTime), within("jitter", sc.Jitter, 0, maxTime),
		within("unseen", sc.Unseen, 0, 1), within("hop", sc.Hop, 0, maxTime),
	)
}

func (sc *Scenario) validEvents() (err error) {
	for _, e := range sc.Events {
		err = errors.Join(err,
			oneOf("events: what", e.What, "join", "drain", "die", "return"), within("events: at", e.At, 0, maxTime),
			within("events: host", float64(e.Host), 0, float64(sc.Hosts-1)),
			within("events: count", float64(e.Count), 0, float64(sc.Hosts-e.Host)))
	}
	return err
}

// The bounds of a scenario keep its numbers in 32 bits and its times in 64.
const (
	maxHosts = 1 << 24
	maxTime  = 1e8 // lifetimes: three years of seconds, a hundredth of what a Duration holds
	maxSpeed = 600 // a weight of 100 each fits 16 bits
)

func within(field string, x, lo, hi float64) error {
	if x >= lo && x <= hi {
		return nil
	}
	return fmt.Errorf("sim: %s: %g is not from %g to %g", field, x, lo, hi)
}

func oneOf(field, value string, words ...string) error {
	for _, w := range words {
		if value == w {
			return nil
		}
	}
	return fmt.Errorf("sim: %s: there is no %q: use %s", field, value, strings.Join(words, ", "))
}

// policy makes a policy of its own for a chooser.
func (sc *Scenario) policy() (lb.Policy, error) {
	period := max(lifetimes(sc.Period), time.Millisecond)
	return lb.Parse(strings.ReplaceAll(sc.Policy, "{period}", period.String()))
}

// lifetimes is a time as boards and policies have it.
func lifetimes(x float64) time.Duration { return time.Duration(x * float64(time.Second)) }

// speed and weight are those of a host.
func (sc *Scenario) speed(host int) float64 { return sc.Speeds[host%len(sc.Speeds)] }

func (sc *Scenario) weight(host int) int {
	if len(sc.Weights) == 0 {
		return int(math.Round(100 * sc.speed(host)))
	}
	return sc.Weights[host%len(sc.Weights)]
}

// rate is the number of connections per lifetime at Load.
func (sc *Scenario) rate() float64 {
	sum := 0.0
	for i := range sc.Hosts {
		sum += sc.speed(i)
	}
	if !sc.Sharing {
		sum *= float64(sc.Slots)
	}
	return sc.Load * sum
}

// Conns is the number of connections that the scenario is expected to have, its
// crowd not counted.
func (sc Scenario) Conns() float64 {
	sc = sc.WithDefaults()
	return sc.rate() * sc.Length
}
