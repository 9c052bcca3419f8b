package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/carom-dpr/carom/lb"
	"github.com/carom-dpr/carom/loadinfo"
)

// serviceName is the one service of a simulated cluster.
const serviceName = "www"

// simulation is a scenario being played.
type simulation struct {
	sc       Scenario
	now      time.Duration
	length   time.Duration
	events   queue
	hosts    []host
	choosers []chooser
	conns    conns
	messages messages
	wire     []byte // the last report
	view     view
	tally    tally
	random   streams
	service  service
	entry    entry
	gap      time.Duration // mean time between arrivals
	slots    int           // for a host's load
}

// A chooser is a host, or a router, that decides where connections go.
type chooser struct {
	number   int32
	home     int32 // its own host, none for a router
	policy   lb.Policy
	picker   lb.Picker
	snapshot *lb.Snapshot
	sight    sight
}

// streams are the random numbers, one sequence for each use, so that a policy that
// draws more or redirects more does not change the connections.
type streams struct {
	arrivals, services, flows, network *rand.Rand
}

func newStreams(seed uint64) streams {
	stream := func(n uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, n)) }
	return streams{stream(1), stream(2), stream(3), stream(4)}
}

// origin is when simulations begin, on the clocks of boards and policies. It is not
// 0, which means unknown to a snapshot.
const origin = time.Hour

// epoch is what boards' times are counted from. Only their differences matter; it has
// a reading of the monotonic clock, as real times have, with which these cost little.
var epoch = time.Now()

// clock is the time as boards have it.
func clock(now time.Duration) time.Time { return epoch.Add(origin + now) }

// Run plays a scenario. It calls progress, unless that is nil, with the part of the
// time that has passed, some hundred times or more. It returns early, with the
// context's error, if ctx is done.
func Run(ctx context.Context, sc Scenario, progress func(done float64)) (Result, error) {
	s, err := newSimulation(sc)
	if err != nil {
		return Result{}, err
	}
	for n := 0; ; n++ {
		e := s.events.pop()
		if e.at > s.length {
			break
		}
		if n%(1<<14) == 0 {
			if err := ctx.Err(); err != nil {
				return Result{}, err
			}
			if progress != nil {
				progress(float64(e.at) / float64(s.length))
			}
		}
		s.now = e.at
		s.handle(e)
	}
	s.now = s.length
	return s.result(), nil
}

func newSimulation(sc Scenario) (*simulation, error) {
	if err := sc.Validate(); err != nil {
		return nil, err
	}
	sc = sc.WithDefaults()
	s := &simulation{
		sc: sc, length: lifetimes(sc.Length), random: newStreams(sc.Seed), conns: conns{free: none},
		gap: time.Duration(float64(time.Second) / (sc.rate() * sc.Crowd.Times)), slots: max(sc.Slots, 1),
	}
	s.tally.warm = lifetimes(sc.Warm)
	if sc.Sharing {
		s.slots = 1
	}
	s.service, _ = parseService(sc.Service)
	s.entry, _ = parseEntry(sc.Entry, sc.Hosts)
	s.makeHosts()
	s.makeChoosers()
	s.view = s.newView()
	s.begin()
	return s, nil
}

func (s *simulation) makeHosts() {
	s.hosts = make([]host, s.sc.Hosts)
	requests := strings.HasPrefix(s.sc.Policy, "prequal") || strings.HasPrefix(s.sc.Policy, "peak-ewma")
	for i := range s.hosts {
		h := &s.hosts[i]
		h.id, h.speed, h.first = "h"+pad(i), s.sc.speed(i), none
		if requests {
			h.meter = new(loadinfo.Requests)
		}
	}
	for _, e := range s.sc.Events {
		if e.What == "join" {
			for i := range max(e.Count, 1) {
				s.hosts[e.Host+i].state = gone
			}
		}
	}
}

// pad makes numbers sort as text.
func pad(i int) string { return fmt.Sprintf("%08d", i) }

// number returns the host that has an ID.
func number(id string) int32 {
	n, _ := strconv.Atoi(id[1:])
	return int32(n)
}

func (s *simulation) makeChoosers() {
	s.choosers = make([]chooser, max(s.sc.Routers, 0))
	if s.sc.Routers == 0 {
		s.choosers = make([]chooser, s.sc.Hosts)
	}
	common, _ := s.sc.policy()
	for i := range s.choosers {
		c := &s.choosers[i]
		c.number, c.home, c.policy = int32(i), int32(i), common
		if s.sc.Routers > 0 {
			c.home = none
		}
		if s.sc.Known > 0 || keepsState(common) {
			c.policy, _ = s.sc.policy()
		}
	}
}

// keepsState reports whether a policy is a chooser's own because it remembers more
// than a table that follows from the hosts.
func keepsState(p lb.Policy) bool {
	switch p.(type) {
	case *lb.RoundRobin, *lb.SmoothRoundRobin, *lb.BoundedLoad, *lb.PeakEWMA, *lb.SlowStart:
		return true
	}
	return false
}

// begin schedules what happens by itself.
func (s *simulation) begin() {
	s.events.push(event{s.nextArrival(), arrive, 0})
	for i := range s.sc.Samples {
		at := s.length * time.Duration(i+1) / time.Duration(s.sc.Samples)
		s.events.push(event{at, sample, 0})
	}
	for i, e := range s.sc.Events {
		s.events.push(event{lifetimes(e.At), script, int32(i)})
	}
	if s.sc.Period == 0 {
		return
	}
	s.introduce()
	if s.sc.Sync {
		s.events.push(event{0, report, everybody})
		return
	}
	period := s.period()
	for i := range s.hosts {
		s.events.push(event{time.Duration(s.random.network.Int64N(int64(period))), report, int32(i)})
	}
}

// introduce has all hosts heard by all at the beginning: a cluster in which everybody
// knows the same few that reported first is not what is to be studied.
func (s *simulation) introduce() {
	for i := range s.hosts {
		h := &s.hosts[i]
		if h.state == gone {
			continue
		}
		said, _ := h.board.Report(clock(s.now))
		hearers, _ := s.view.hearers(int32(i))
		for _, to := range hearers {
			s.view.receive(to, &said)
		}
	}
}

func (s *simulation) period() time.Duration { return max(lifetimes(s.sc.Period), 1) }

func (s *simulation) nextArrival() time.Duration {
	return s.now + time.Duration(s.random.arrivals.ExpFloat64()*float64(s.gap))
}

func (s *simulation) handle(e event) {
	switch e.kind {
	case arrive:
		s.events.push(event{s.nextArrival(), arrive, 0})
		s.arrive()
	case reach:
		s.enter(e.arg)
	case finish:
		s.finish(e.arg)
	case share:
		s.finishShare(e.arg)
	case report:
		s.report(e.arg)
	case deliver:
		s.deliver(e.arg)
	case script:
		s.play(s.sc.Events[e.arg])
	case sample:
		s.sample()
	}
}

// arrive lets a client dial, and its host or router choose.
func (s *simulation) arrive() {
	dialled, come := s.dial()
	work := time.Duration(s.service(s.random.services) * float64(time.Second))
	flow := s.flow()
	if !come {
		return
	}
	c := &s.choosers[dialled]
	s.count(&s.tally.arrived, 1)
	server, ok := s.view.pick(c, flow)
	if !ok {
		s.count(&s.tally.refused, 1)
		return
	}
	i := s.conns.add(conn{
		arrived: s.now, work: work, server: server, chooser: c.number, chooserLife: s.life(c.number),
	})
	if server == c.home {
		s.enter(i)
		return
	}
	s.count(&s.tally.redirected, 1)
	if s.sc.Correction != "none" {
		s.view.change(c, server, +1)
	}
	if s.sc.Hop > 0 {
		s.events.push(event{s.now + lifetimes(s.sc.Hop), reach, i})
		return
	}
	s.enter(i)
}

// dial draws the chooser that a client dials. Arrivals are drawn at the rate of a
// crowd, and those beyond the usual ones come only while there is one. Who dials a
// host that is gone tries the next one.
func (s *simulation) dial() (dialled int32, come bool) {
	crowd := s.sc.Crowd.Times > 1 && s.random.arrivals.Float64()*s.sc.Crowd.Times >= 1
	n := s.entry(s.random.arrivals)
	if crowd {
		at := s.now.Seconds() - s.sc.Crowd.At
		if at < 0 || at >= s.sc.Crowd.For {
			return 0, false
		}
		n = 0
	}
	if s.sc.Routers > 0 {
		return int32(n % s.sc.Routers), true
	}
	for range s.hosts {
		if s.hosts[n].state != gone {
			return int32(n), true
		}
		n = (n + 1) % len(s.hosts)
	}
	return 0, false
}

// flow draws the hashes of a connection.
func (s *simulation) flow() lb.Flow {
	f := lb.Flow{Conn: s.random.flows.Uint64()}
	f.Client = ^f.Conn
	if s.sc.Clients > 0 {
		f.Client = hash(uint64(s.random.flows.IntN(s.sc.Clients)), s.sc.Seed)
	}
	return f
}

// hash mixes two numbers: the finaliser of splitmix64, twice.
func hash(x, y uint64) uint64 {
	for _, z := range [2]uint64{y, x} {
		x += z + 0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		x ^= x >> 31
	}
	return x
}

// play lets an event of the scenario happen.
func (s *simulation) play(e Event) {
	for i := range max(e.Count, 1) {
		h := &s.hosts[e.Host+i]
		switch {
		case e.What == "drain" && h.state == up:
			h.state = draining
			h.board.SetState(loadinfo.Draining)
			s.view.moved(int32(e.Host+i), h.state)
		case e.What == "die" && h.state != gone:
			s.die(h)
			s.view.moved(int32(e.Host+i), h.state)
		case (e.What == "join" || e.What == "return") && h.state != up:
			h.state = up
			s.view.moved(int32(e.Host+i), h.state)
		default:
			continue
		}
		if s.sc.Period > 0 && h.state != gone {
			s.send(int32(e.Host + i)) // news is told at once
		}
	}
}
