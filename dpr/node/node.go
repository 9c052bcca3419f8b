package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/confirm"
	"github.com/carom-dpr/carom/internal/beat"
	"github.com/carom-dpr/carom/lb"
	"github.com/carom-dpr/carom/loadinfo"
)

// A Node is one host of a cluster. Its methods may be called from several
// goroutines.
type Node struct {
	cfg     Config // as it was opened, for what Reconfigure cannot change
	boot    uint64 // orders the lives of this host
	host    Host
	engine  *dpr.Engine
	board   *loadinfo.Board
	reports loadinfo.Transport
	// confirmer is nil where connections cannot be confirmed.
	confirmer *confirm.Confirmer
	prober    *prober
	aborted   atomic.Uint64 // see abandon
	started   atomic.Bool   // Run was called
	// serversChanged has watchServers look at the configuration again.
	serversChanged chan struct{}
	// current is the configuration in force. Whoever changes it, or makes the parts
	// follow it, holds wiring.
	current atomic.Pointer[setup]
	wiring  sync.Mutex
	ended   bool                       // Run is giving back what it has; under wiring
	served  []dpr.Service              // the endpoints that the host was told last
	peers   map[string]loadinfo.Member // those that the engine and the host know

	mu      sync.Mutex
	sockets map[string]dpr.Sockets // the counts of own connections, by service
	state   loadinfo.State
	healthy map[string]bool // by service
	// answering is since when endpoints of plain servers answer, zero if they do not.
	answering map[string]time.Time
	mtus      map[string]int // of the tunnels to peers; changes under wiring, too
}

// New returns a node on the host. The node owns the host from then on: Run closes
// it, and so does New when it fails.
func New(cfg Config, host Host) (*Node, error) {
	n, err := assemble(cfg, host)
	if err != nil {
		return nil, errors.Join(err, host.unwire(), host.close())
	}
	return n, nil
}

func assemble(cfg Config, host Host) (*Node, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(host.validate(&cfg), cfg.canTranslate(&host)); err != nil {
		return nil, err
	}
	first := &setup{Config: cfg}
	n := &Node{
		cfg: cfg, host: host,
		boot:           uint64(time.Now().UnixNano()),
		served:         first.captured(),
		state:          loadinfo.Joining,
		prober:         newProber(len(host.Answers) > 0),
		peers:          make(map[string]loadinfo.Member),
		healthy:        make(map[string]bool),
		answering:      make(map[string]time.Time),
		serversChanged: make(chan struct{}, 1),
		sockets:        make(map[string]dpr.Sockets),
	}
	n.current.Store(first)
	if n.engine, err = dpr.New(dpr.Config{
		Services:   first.endpoints(nil),
		NAT:        cfg.NAT,
		Seed:       cfg.seed(),
		MaxFlows:   cfg.MaxFlows,
		TrackLocal: host.TrackLocal,
		Timeouts:   cfg.Timeouts,
		Confirm:    host.Control != nil,
	}); err != nil {
		return nil, err
	}
	if err := n.equip(first); err != nil {
		return nil, errors.Join(err, n.engine.Close())
	}
	if host.OnTooBig != nil {
		host.OnTooBig(n.tooBig)
	}
	return n, nil
}

// equip makes what surrounds the engine.
func (n *Node) equip(first *setup) error {
	if err := n.countSockets(first); err != nil {
		return err
	}
	n.board = loadinfo.NewBoard(loadinfo.BoardConfig{Period: n.cfg.Period, Live: n.engine.Live})
	if err := n.introduce(first); err != nil {
		return err
	}
	var err error
	if n.reports, err = n.transport(); err != nil {
		return err
	}
	n.confirmer, err = n.newConfirmer()
	return err
}

// countSockets tells the engine who counts the connections of TCP services: the
// host's kernel, or else the listeners of Wrap. A service has one count for life.
func (n *Node) countSockets(s *setup) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, service := range s.Services {
		if service.Proto != dpr.TCP {
			continue // no socket knows a UDP flow, but the engine does
		}
		sockets, known := n.sockets[service.Name]
		switch {
		case known:
		case n.host.Sockets != nil:
			sockets = n.host.Sockets(service.Name)
		default:
			sockets = dpr.Sockets{Live: new(atomic.Int32), Opened: new(atomic.Uint32)}
		}
		n.sockets[service.Name] = sockets
		if err := n.engine.SetSockets(service.Name, sockets); err != nil {
			return err
		}
	}
	return nil
}

// introduce puts this host on the board.
func (n *Node) introduce(s *setup) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	self := s.self()
	self.Boot, self.State = n.boot, n.state
	for i := range self.Services {
		service := &self.Services[i]
		service.Conns = n.engine.Serving(service.Name)
		service.Unhealthy = !n.healthyNow(service.Name)
	}
	return n.board.SetSelf(self)
}

// Run works until ctx is done, which is no error, or a part fails. It returns when
// all goroutines have ended and everything that was changed on the host is undone.
// A node runs once: any other call returns an error and does nothing.
//
// The host is taken back before the router stops, so that no packet is led to a
// router that is not there.
func (n *Node) Run(ctx context.Context) error {
	if n.started.Swap(true) {
		return errors.New("node: Run was called already: make another node")
	}
	working, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	routing, stopRouting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRouting()
	var router, others sync.WaitGroup
	fail := func(err error) {
		if err != nil && ctx.Err() == nil { // who stops may take the network away too
			cancel(err)
		}
	}
	router.Go(func() { fail(n.runRouter(routing)) })
	for _, run := range []func(context.Context) error{n.reports.Run, n.sample, n.follow, n.watchHealth, n.watchServers, n.confirm, n.probe, n.host.run} {
		others.Go(func() { fail(run(working)) })
	}
	<-working.Done()
	others.Wait()
	n.retire()
	err := n.host.unwire()
	stopRouting()
	router.Wait()
	err = errors.Join(err, n.host.close(), n.engine.Close())
	if cause := context.Cause(working); cause != context.Cause(ctx) {
		err = errors.Join(cause, err)
	}
	return err
}

// retire has Reconfigure leave alone what Run gives back.
func (n *Node) retire() {
	n.wiring.Lock()
	defer n.wiring.Unlock()
	n.ended = true
}

// sample measures the host's resources until ctx is done.
func (n *Node) sample(ctx context.Context) error {
	if n.cfg.Resources == nil {
		return nil
	}
	return n.cfg.Resources.Run(ctx, n.board, max(n.cfg.Period, sampleEvery))
}

// sampleEvery is the least time between two samples of resources: reading them costs
// more than all else that an idle node does, and use over less time says little.
const sampleEvery = 2 * time.Second

// runRouter moves packets until ctx is done; an end before that is an error.
func (n *Node) runRouter(ctx context.Context) error {
	router := &dpr.Router{
		Engine:  n.engine,
		Devices: n.host.Devices,
		Uplinks: n.host.Uplinks,
		Replies: n.host.Replies,
		Beat:    n.host.Beat,
	}
	err := router.Run(ctx)
	if err == nil && ctx.Err() == nil {
		err = errors.New("node: a device was closed while the node works")
	}
	return err
}

// refreshEvery bounds how often pickers are rebuilt, so that a large cluster's
// reports, each of which is a change, cost no more than those of a small one.
const refreshEvery = 10 * time.Millisecond

// follow brings what the board knows into the engine and the host until ctx is
// done.
func (n *Node) follow(ctx context.Context) error {
	changes, cancel := n.board.Subscribe()
	defer cancel()
	every := min(n.cfg.Period, pathsEvery)
	tick := time.NewTimer(beat.Wait(time.Now(), every))
	defer tick.Stop()
	joined := time.After(joinPeriods * n.cfg.Period)
	for {
		last := time.Now()
		n.refresh(last)
		select {
		case <-ctx.Done():
			return nil
		case <-changes:
			pause(ctx, time.Until(last.Add(refreshEvery)))
		case <-n.prober.changed:
			pause(ctx, time.Until(last.Add(refreshEvery)))
		case <-tick.C:
			tick.Reset(beat.Wait(time.Now(), every))
			if err := n.followPaths(); err != nil {
				n.cfg.Logger.Error("cannot follow the paths to the peers", "err", err)
			}
		case <-joined:
			n.setState(loadinfo.Joining, loadinfo.Up)
		}
	}
}

// pause waits for as long, or until ctx is done.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// joinPeriods is how many report periods a node listens before it takes part: one
// for every peer's report to come, one for a report that is lost.
const joinPeriods = 2

// refresh makes the engine and the host follow the board as of now.
func (n *Node) refresh(now time.Time) {
	n.wiring.Lock()
	defer n.wiring.Unlock()
	n.forget()
	n.board.Tick(now)
	if err := n.followPeers(n.board.Members(now)); err != nil {
		n.cfg.Logger.Error("cannot follow the cluster's membership", "err", err)
	}
	n.choose(now)
}

// choose gives each service a picker for the load that the board knows of.
func (n *Node) choose(now time.Time) {
	state := n.State()
	for _, s := range n.current.Load().Services {
		policy := s.Policy
		if state == loadinfo.Joining {
			policy = lb.Stay{}
		}
		snap := n.board.Snapshot(s.Name, now)
		if s.Proto == dpr.TCP {
			n.prober.mark(snap, s.Name)
		}
		n.addServers(snap, s.Name, now)
		snap.Taken = n.engine.Clock(now)
		if err := n.engine.SetSnapshot(s.Name, policy, snap); err != nil {
			n.cfg.Logger.Error("cannot follow the cluster's load", "service", s.Name, "err", err)
		}
	}
}

// followPeers makes engine, uplink and aliases follow the members. It does nothing
// if they have not changed since it last succeeded.
func (n *Node) followPeers(members []loadinfo.Member) error {
	next := make(map[string]loadinfo.Member)
	for _, m := range members {
		if !m.Local && m.State != loadinfo.Down && m.Node.IsValid() && n.host.reaches(m.Node) {
			next[m.ID] = m
		}
	}
	if maps.EqualFunc(n.peers, next, sameWiring) {
		return nil
	}
	for _, server := range n.current.Load().Servers {
		if m, taken := next[server.ID]; taken {
			n.cfg.Logger.Warn("a server without a router has the ID of a host of the cluster and gets no connections: give it another",
				"server", server.ID, "host", m.Node)
		}
	}
	dead, dialled := n.dead(members)
	n.abandon(dead, dialled, next)
	if err := n.wire(n.current.Load(), next); err != nil {
		return err
	}
	n.peers = next
	if len(dead) > 0 {
		n.rouse(time.Now())
	}
	return nil
}

// sameWiring reports whether two states of a peer need the same wiring. A peer
// that booted again is the same: if only its router did, its sockets and their
// flows go on, and if the host did, its kernel resets them.
func sameWiring(a, b loadinfo.Member) bool {
	return a.Node == b.Node && slices.Equal(a.Dialled, b.Dialled)
}

// wire tells the parts of the peers: first who may be answered for, then who may
// send, at last to whom flows may go.
func (n *Node) wire(s *setup, peers map[string]loadinfo.Member) error {
	aliases := n.aliases(s, peers)
	if err := n.host.SetAliases(aliases); err != nil {
		return fmt.Errorf("addresses of peers: %w", err)
	}
	if err := n.engine.SetServices(s.endpoints(aliases)); err != nil {
		return err
	}
	defer signal(n.prober.peers)
	return n.setPeers(s, peers, n.measure(s, peers))
}

// aliases returns the addresses of the peers that this host is to answer from.
func (n *Node) aliases(s *setup, peers map[string]loadinfo.Member) []netip.Addr {
	var list []netip.Addr
	for _, m := range peers {
		list = append(list, s.aliasesOf(m)...)
		for _, a := range m.Dialled {
			if !s.mayAlias(a) {
				n.cfg.Logger.Warn("address of a peer is outside the prefixes for aliases, its connections cannot be served here",
					"peer", m.ID, "addr", a)
			}
		}
	}
	return unique(list)
}

// unique sorts the addresses and removes what is there twice.
func unique(list []netip.Addr) []netip.Addr {
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}
