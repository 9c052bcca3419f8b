package dpr

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/carom-dpr/carom/internal/flowtable"
	"github.com/carom-dpr/carom/internal/siphash"
	"github.com/carom-dpr/carom/lb"
)

// A Peer is a host that flows may be handed to.
type Peer struct {
	// ID is the host's ID in the snapshots.
	ID string
	// MTU is the length of the longest packet, in bytes, that fits the tunnel to
	// the peer: the path's MTU less the overhead of the forwarding method. IPv6
	// packets of up to 1280 bytes go to the uplink even if it is less, since every
	// link must carry those, in pieces if need be (RFC 8200, section 5).
	// Default 1452: 1500 less 48, which is right for GUE over IPv4 and IPv6.
	MTU int
	// Addrs are the addresses at which clients dial the peer. What this host's servers
	// answer from there goes back to it, for services whose Reply is ReplyTunnelled. An
	// address of this host's own must not be among them; of several peers with one
	// address, one has it.
	Addrs []netip.Addr
	// Servers makes the peer one that runs no engine: flows of each named service reach
	// it at one of these endpoints, of the client's family, by NAT. Flows of other
	// services or families, and those for which there is no free port, are served
	// here. MTU is then that of the path, default 1500. Nil for hosts that run one.
	Servers map[string][]netip.AddrPort
}

// defaultPeerMTU is that of GUE over IPv6 on Ethernet: 1500 - 40 - 8.
const defaultPeerMTU = 1452

// A view is all that Process needs to know of services and peers, as it was at
// one instant. It is immutable, but for counters: every change makes a new one,
// and Process loads it once per batch.
type view struct {
	services []*service      // by index; nil for one that was removed; see service.next
	states   []*serviceState // by index, of those that were removed too
	ports    [2]portMap      // TCP, UDP
	peers    []peer          // by slot; slot 0 stays empty
	addrs    []netip.Addr
	owner    []PeerID  // by index of an address: the peer that is dialled there; 0 for none
	servers  []*server // by number; nil for those that are gone, and for 0
	// byEndpoint finds servers; packets from them come to ports of this range.
	byEndpoint        map[endpoint]*server
	natFirst, natLast uint16
}

// A portMap gives for each port the services that have it: usually one, several
// when they differ by address.
type portMap struct {
	index []uint16     // by port: a number in lists, 0 for none; nil if there are no ports
	lists [][]*service // the first is empty
}

func (m *portMap) add(port uint16, s *service) {
	if m.index == nil {
		m.index, m.lists = make([]uint16, 1<<16), make([][]*service, 1)
	}
	list := m.lists[m.index[port]]
	m.index[port] = m.number(append(list[:len(list):len(list)], s))
}

// number returns the number of the list; services with port ranges share lists.
func (m *portMap) number(list []*service) uint16 {
	for n, have := range m.lists {
		if slices.Equal(have, list) {
			return uint16(n)
		}
	}
	m.lists = append(m.lists, list)
	return uint16(len(m.lists) - 1)
}

type service struct {
	Service
	index uint16
	addrs addrSet
	next  *service // further endpoints of the same name, which share the state
	*serviceState
}

// serviceState is what a service keeps when its configuration changes. One that is removed
// leaves its counters, which its flows are in until they end: it may come back.
type serviceState struct {
	choice atomic.Pointer[choice] // nil until the first snapshot
	count  serviceCounters
	here   flowCounters // of the flows with an entry that this host serves itself
	own    ownCount
}

// A choice is a snapshot, the picker that was built from it, and the peers that
// its hosts are: 0 for this host and for those that are no peers.
type choice struct {
	snap   *lb.Snapshot
	picker lb.Picker
	peers  []PeerID
	ids    []uint64 // hashes of the hosts' IDs, equal on all hosts of the cluster
}

type peer struct {
	id       PeerID // 0: the slot is free
	name     string
	mtu      int
	addrs    []netip.Addr
	count    []*flowCounters // by service index
	listener *listener
	plain    map[string][]netip.AddrPort // Peer.Servers
	servers  [][2]uint16                 // their numbers by service index and family; 0 for none
}

// counts returns the counters of a service's flows to a peer, or to this host if that is
// 0; nil if the peer is gone.
func (v *view) counts(service uint16, peer PeerID) *flowCounters {
	if peer == 0 {
		return &v.states[service].here
	}
	if p := v.peer(peer); p != nil {
		return p.count[service]
	}
	return nil
}

// countsOf returns the counters of an entry's flow, nil if its peer is gone.
func (v *view) countsOf(entry *flowtable.Entry) *flowCounters {
	return v.counts(entry.Key.Service, PeerID(entry.Peer()))
}

// flowCounters counts the flows of one service that one host serves.
type flowCounters struct {
	// live is lb.Host.Live: +1 for each flow handed over, -1 for each end seen.
	// A flow that merely times out is not an end, so only differences count.
	live *atomic.Int32
	// open is the number of entries whose flow has not ended: 0 when all are gone.
	open atomic.Int32
}

// add counts flows that begin or end. For a peer that is gone, nil, nothing is counted.
func (c *flowCounters) add(delta int32) {
	if c != nil {
		c.live.Add(delta)
		c.open.Add(delta)
	}
}

func protoIndex(p Proto) int {
	if p == UDP {
		return 1
	}
	return 0
}

func (v *view) lookup(proto Proto, dst *[16]byte, port uint16) (s *service, addr uint16) {
	m := &v.ports[protoIndex(proto)]
	if m.index == nil {
		return nil, 0
	}
	for _, s := range m.lists[m.index[port]] {
		if addr, ok := s.addrs.index(dst); ok {
			return s, addr
		}
	}
	return nil, 0
}

// dialled reports whether dst is an address of any service, or one that plain servers
// answer to.
func (v *view) dialled(dst *[16]byte) (addr uint16, ok bool) {
	for _, s := range v.services {
		for ; s != nil; s = s.next {
			if addr, ok := s.addrs.index(dst); ok {
				return addr, true
			}
		}
	}
	for _, s := range v.byEndpoint {
		if s.source == *dst {
			return s.addr, true
		}
	}
	return 0, false
}

// peer returns the peer with the ID, nil if it is gone.
func (v *view) peer(id PeerID) *peer {
	slot := int(id & slotMask)
	if slot == 0 || slot >= len(v.peers) || v.peers[slot].id != id {
		return nil
	}
	return &v.peers[slot]
}

// A PeerID is a slot in its low bits and the slot's generation above.
const (
	slotBits = 16
	slotMask = 1<<slotBits - 1
	maxPeers = slotMask // slot 0 is nobody's
)

// serves reports whether the view knows whom the flow is bound to.
func (v *view) serves(entry *flowtable.Entry) bool {
	return v.peer(PeerID(entry.Peer())) != nil && int(entry.Server) < len(v.servers)
}

// An addrSet finds the engine-wide index of an address. Clusters with few
// addresses, the usual case, are searched faster in line than in a map.
type addrSet struct {
	few  []addrIndex
	many map[[16]byte]uint16
}

type addrIndex struct {
	addr  [16]byte
	index uint16
}

const fewAddrs = 8

func (s *addrSet) index(a *[16]byte) (uint16, bool) {
	if s.many != nil {
		i, ok := s.many[*a]
		return i, ok
	}
	for i := range s.few {
		if s.few[i].addr == *a {
			return s.few[i].index, true
		}
	}
	return 0, false
}

// SetServices replaces the services. Flows of services that stay, by name, are
// kept; those of services that go are forgotten as they time out, and their
// packets pass to the kernel. One that comes back needs a snapshot, and sockets, again.
// On an error nothing changes.
func (e *Engine) SetServices(services []Service) error {
	if err := validateServices(services); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	next := *e.view.Load()
	next.peers = slices.Clone(next.peers) // growCounters writes to them
	next.services = make([]*service, len(e.states), len(e.states)+len(services))
	next.ports = [2]portMap{}
	for _, s := range services {
		if err := e.addService(&next, s); err != nil {
			return err
		}
	}
	next.states, next.addrs = e.states, e.addrs
	e.findOwners(&next)
	e.growCounters(&next)
	if err := e.setServers(&next); err != nil {
		return err
	}
	e.view.Store(&next)
	for i, s := range next.services {
		if s == nil {
			next.states[i].leave()
		}
	}
	return nil
}

// leave forgets what a service is told anew if it comes back.
func (s *serviceState) leave() {
	s.choice.Store(nil)
	s.own.sockets.Store(nil)
}

// addService puts s into v under the index that its name has for the engine's
// life, with the state that it had before.
func (e *Engine) addService(v *view, s Service) error {
	index, known := e.serviceIndex[s.Name]
	if !known {
		if len(e.serviceIndex) > maxServices {
			return fmt.Errorf("dpr: service %q: an engine knows at most %d names in its life", s.Name, maxServices)
		}
		index = uint16(len(e.serviceIndex))
		e.serviceIndex[s.Name] = index
		e.states = append(e.states, &serviceState{here: flowCounters{live: new(atomic.Int32)}})
		v.services = append(v.services, nil)
	}
	next := &service{Service: s, index: index, next: v.services[index], serviceState: e.states[index]}
	if err := e.internAddrs(next); err != nil {
		return err
	}
	v.services[index] = next
	for p := int(s.Port); p <= int(s.last()); p++ {
		v.ports[protoIndex(s.Proto)].add(uint16(p), next)
	}
	return nil
}

const (
	maxServices = answerFragments - 1 // indexes are 16 bits; the last ones mark fragments
	maxAddrs    = 1<<16 - 1
)

// internAddrs gives each address of s the index that it has for the engine's life.
func (e *Engine) internAddrs(s *service) error {
	for _, a := range s.Addrs {
		index, err := e.internAddr(a)
		if err != nil {
			return err
		}
		s.addrs.few = append(s.addrs.few, addrIndex{a.As16(), index})
	}
	if len(s.addrs.few) > fewAddrs {
		s.addrs.many = make(map[[16]byte]uint16, len(s.addrs.few))
		for _, a := range s.addrs.few {
			s.addrs.many[a.addr] = a.index
		}
	}
	return nil
}

// internAddr returns the index that an address has for the engine's life.
func (e *Engine) internAddr(a netip.Addr) (uint16, error) {
	index, known := e.addrIndex[a.As16()]
	if known {
		return index, nil
	}
	if len(e.addrs) >= maxAddrs {
		return 0, errors.New("dpr: an engine knows at most 65,535 addresses in its life")
	}
	index = uint16(len(e.addrs))
	e.addrIndex[a.As16()] = index
	e.addrs = append(e.addrs, a.Unmap())
	return index, nil
}

// growCounters gives each peer of v counters for each service name. They are those of
// one ID: batches that still know a peer of that name that went do not count in them.
func (e *Engine) growCounters(v *view) {
	for slot := range v.peers {
		p := &v.peers[slot]
		if p.id == 0 || len(p.count) == len(e.serviceIndex) {
			continue
		}
		count := make([]*flowCounters, len(e.serviceIndex))
		copy(count, p.count)
		for name, index := range e.serviceIndex {
			if count[index] == nil {
				count[index] = &flowCounters{live: e.liveOf(p.name, name)}
			}
		}
		p.count = count
	}
}

type hostService struct{ host, service string }

func (e *Engine) liveOf(host, service string) *atomic.Int32 {
	key := hostService{host, service}
	live := e.live[key]
	if live == nil {
		live = new(atomic.Int32)
		e.live[key] = live
	}
	return live
}

// Live returns the count of flows of the service that this engine has handed to
// the host, less those whose end it has seen; it is what lb.Host.Live of a peer should
// point to. Only differences mean something: flows that time out, or whose peer leaves,
// are never taken off, and [Engine.Open] is what returns to 0. The pointer stays the
// same for the engine's life.
func (e *Engine) Live(host, service string) *atomic.Int32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.liveOf(host, service)
}

// Open returns the number of open flows of the service that the host was handed and
// that are in the table; 0 if the host is not among the peers.
func (e *Engine) Open(host, service string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	v := e.view.Load()
	p := v.peer(v.byName()[host])
	index, known := e.serviceIndex[service]
	if p == nil || !known || int(index) >= len(p.count) { // or the service was refused
		return 0
	}
	return int(p.count[index].open.Load())
}

// PeerID returns the ID of the peer for the uplink's use, which changes when a
// peer goes and comes back; 0 if the host is not among the peers.
func (e *Engine) PeerID(host string) PeerID {
	return e.view.Load().byName()[host]
}

func (v *view) byName() map[string]PeerID {
	ids := make(map[string]PeerID, len(v.peers))
	for i := range v.peers {
		if p := &v.peers[i]; p.id != 0 {
			ids[p.name] = p.id
		}
	}
	return ids
}

// SetSnapshot has the policy choose from the snapshot from now on, for new flows
// of the service. It calls policy.Build. A service without a snapshot is served
// here alone. A missing policy (see lb.Validate), a snapshot of nil and the name of no
// service are errors, which change nothing.
func (e *Engine) SetSnapshot(name string, policy lb.Policy, snap *lb.Snapshot) error {
	if err := lb.Validate(policy); err != nil {
		return fmt.Errorf("dpr: service %q: %w", name, err)
	}
	if snap == nil {
		return fmt.Errorf("dpr: service %q: the snapshot is nil: give one, whose Hosts may be none", name)
	}
	picker := policy.Build(snap)
	e.mu.Lock()
	defer e.mu.Unlock()
	v := e.view.Load()
	s := v.named(name, e.serviceIndex)
	if s == nil {
		return fmt.Errorf("dpr: there is no service %q", name)
	}
	s.choice.Store(&choice{snap, picker, routes(snap, v.byName()), e.hashIDs(snap)})
	return nil
}

// routes returns the peer of each host of the snapshot.
func routes(snap *lb.Snapshot, ids map[string]PeerID) []PeerID {
	peers := make([]PeerID, len(snap.Hosts))
	for i := range snap.Hosts {
		if i != snap.Self {
			peers[i] = ids[snap.Hosts[i].ID]
		}
	}
	return peers
}

func (e *Engine) hashIDs(snap *lb.Snapshot) []uint64 {
	ids := make([]uint64, len(snap.Hosts))
	for i := range snap.Hosts {
		ids[i] = siphash.Sum64(e.seed, []byte(snap.Hosts[i].ID))
	}
	return ids
}

// relink finds the peers of all snapshots again, after the peers changed.
func (v *view) relink() {
	ids := v.byName()
	for _, s := range v.services {
		if s == nil {
			continue
		}
		if c := s.choice.Load(); c != nil {
			s.choice.Store(&choice{c.snap, c.picker, routes(c.snap, ids), c.ids})
		}
	}
}
