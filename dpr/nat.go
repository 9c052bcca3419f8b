package dpr

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/carom-dpr/carom/internal/flowtable"
	"github.com/carom-dpr/carom/internal/header"
)

// NAT is how flows reach plain servers, those of peers that run no engine: both ends
// of their packets are translated (RFC 2663, section 4.4), so that a server sees this
// host as its client and answers to it.
type NAT struct {
	// Sources are the addresses of this host's own that flows leave from: at most one
	// of each family. A family without one has no plain servers.
	Sources []netip.Addr
	// First and Last bound the ports that flows leave from. Nothing else of this host
	// should use them: what comes to them must be brought to the engine. Each endpoint
	// of a plain server has all of them. Default 61000 and 65534, which lie beyond
	// those that Linux chooses from. A TCP port rests for a minute when its connection
	// has been forgotten, so the default makes about 65 connections a second to each
	// endpoint.
	First, Last uint16
}

const (
	defaultNATFirst = 61000
	defaultNATLast  = 65534 // rules of Linux, which capture by routing needs, do not know 65535
	// defaultPlainMTU is that of Ethernet: nothing is added to what is translated.
	defaultPlainMTU = 1500
)

// Ports returns the range of ports, with the defaults.
func (n NAT) Ports() (first, last uint16) {
	first, last = n.First, n.Last
	if first == 0 {
		first = defaultNATFirst
	}
	if last == 0 {
		last = defaultNATLast
	}
	return first, last
}

func (n *NAT) validate() error {
	if first, last := n.Ports(); first > last {
		return fmt.Errorf("dpr: NAT.First %d lies behind Last %d: give a range of ports", first, last)
	}
	for i, a := range n.Sources {
		twice := func(b netip.Addr) bool { return a.Unmap().Is4() == b.Unmap().Is4() }
		switch {
		case !isHost(a):
			return fmt.Errorf("dpr: NAT.Sources: %v: must be a unicast address without a zone", a)
		case slices.ContainsFunc(n.Sources[:i], twice):
			return fmt.Errorf("dpr: NAT.Sources: %v: give one address of each family", a)
		}
	}
	return nil
}

// isHost reports whether packets can be addressed to it, from anywhere.
func isHost(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && a.Zone() == ""
}

// source returns the address of the family that flows leave from, in the mapped form.
func (n *NAT) source(is4 bool) (a [16]byte, ok bool) {
	for _, s := range n.Sources {
		if s.Unmap().Is4() == is4 {
			return s.As16(), true
		}
	}
	return a, false
}

// A way is where the packets of a flow go. The zero way leads to this host.
type way struct {
	peer   PeerID
	server uint16 // the number of the plain server that they are translated for, or 0
	port   uint16 // that the flow has there
	back   bool   // from the server to the client
}

// An endpoint is what a plain server listens on.
type endpoint struct {
	addr  [16]byte
	port  uint16
	proto Proto
}

func (e endpoint) addrPort() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(e.addr).Unmap(), e.port)
}

// A server is an endpoint of a plain server, with the flows that were translated for
// it, by the port that they leave from. It holds no flow's state: that is in the flow
// table, for both directions. A server is known for as long as any of its ports is
// used or rests, whatever becomes of its host.
type server struct {
	endpoint
	index  uint16
	source [16]byte // this host's address
	addr   uint16   // the number of source among the engine's addresses
	first  uint16   // the port of sessions[0]

	// mu is taken last, also under the lock of a shard of the flow table.
	mu         sync.Mutex
	sessions   []session
	head, tail uint32 // of the queue of ports that are not in use: index + 1, or 0
	used       int
	closed     bool // it has no flow and gets none
}

// A session is a port of a server, and the flow that has it.
type session struct {
	key flowtable.Key
	// until is when the port may be used, in seconds after the engine's epoch.
	until uint32
	next  uint32 // in the queue: index + 1, or 0
	// seq is the sequence number that the server is expected to send next. It is
	// guarded by the lock of the flow's shard, the other fields by that of the server.
	seq uint32
}

const (
	inUse = math.MaxUint32 // for session.until
	// natRest is for how long a TCP port is not used again: the server may have the
	// connection in TIME_WAIT, for 60 s on Linux, and would answer a new one on the same
	// port by what belongs to the old one (RFC 5961, section 4). A UDP flow has been
	// silent for long enough when it is forgotten.
	natRest = 60
)

// newServer returns a server whose ports are used in no order that could be guessed
// (RFC 6056).
func newServer(e endpoint, source [16]byte, first, last uint16) *server {
	s := &server{endpoint: e, source: source, first: first, sessions: make([]session, int(last)-int(first)+1)}
	for _, i := range rand.Perm(len(s.sessions)) {
		s.append(uint32(i))
	}
	return s
}

// append puts a port at the end of the queue.
func (s *server) append(i uint32) {
	if s.tail == 0 {
		s.head = i + 1
	} else {
		s.sessions[s.tail-1].next = i + 1
	}
	s.sessions[i].next, s.tail = 0, i+1
}

// take gives a flow the port that has rested longest; it fails if there is none.
func (s *server) take(key *flowtable.Key, now uint32) (port uint16, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.head == 0 || s.sessions[s.head-1].until > now {
		return 0, false
	}
	i := s.head - 1
	if s.head = s.sessions[i].next; s.head == 0 {
		s.tail = 0
	}
	s.sessions[i] = session{key: *key, until: inUse}
	s.used++
	return s.first + uint16(i), true
}

// free takes a port back, which may be used again at a later time.
func (s *server) free(port uint16, until uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := uint32(port - s.first)
	s.sessions[i] = session{until: until}
	s.append(i)
	s.used--
}

// rest returns when a port that is free now may be used again.
func (s *server) rest(now uint32) uint32 {
	if s.proto == UDP {
		return now
	}
	return now + natRest + 1 // the clock's second may be about to end
}

// flow returns the flow that has the port.
func (s *server) flow(port uint16) (key flowtable.Key, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &s.sessions[port-s.first]
	return t.key, t.until == inUse
}

// seq returns where the server's expected sequence number for a flow is kept.
func (s *server) seq(port uint16) *uint32 { return &s.sessions[port-s.first].seq }

// ports counts the ports by their use.
func (s *server) ports(now uint32) (p NATPorts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.Server, p.Proto, p.Used = s.addrPort(), s.proto, s.used
	for i := range s.sessions {
		if s.sessions[i].until <= now {
			p.Free++
		}
	}
	p.Resting = len(s.sessions) - p.Used - p.Free
	return p
}

// close makes an end of a server of which no port is used or rests.
func (s *server) close(now uint32) bool {
	all := s.ports(now).Free == len(s.sessions)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = all && s.used == 0 // none was taken meanwhile
	return s.closed
}

// reopen takes close back.
func (s *server) reopen() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = false
}

// NATPorts counts the ports that flows to one endpoint of a plain server leave from.
type NATPorts struct {
	// Server is the endpoint.
	Server netip.AddrPort
	// Proto is its protocol.
	Proto Proto
	// Used are those of flows, Free those that a new flow can have, Resting those that
	// were used less than a minute ago.
	Used, Free, Resting int
}

func seconds(d time.Duration) uint32 { return uint32(d / time.Second) }

// translated returns the flow to which a packet from a plain server belongs, or one
// that this host has sent there, if its ends are exchanged.
func (b *batch) translated(h *header.Packet) (w way, key flowtable.Key, ok bool) {
	v := b.view
	if len(v.byEndpoint) == 0 || h.DstPort < v.natFirst || h.DstPort > v.natLast {
		return w, key, false
	}
	s := v.byEndpoint[endpoint{h.Src, h.SrcPort, Proto(h.Proto)}]
	if s == nil || h.Dst != s.source {
		return w, key, false
	}
	key, ok = b.flowAt(s, h.DstPort)
	return way{server: s.index, port: h.DstPort, back: true}, key, ok
}

// flowAt returns the flow that has a port of a server. If it is of a service or an address
// that came after the batch began, the batch goes on with what is known now.
func (b *batch) flowAt(s *server, port uint16) (key flowtable.Key, ok bool) {
	key, ok = s.flow(port)
	if int(key.Service) >= len(b.view.services) || int(key.Addr) >= len(b.view.addrs) {
		b.view = b.engine.view.Load()
	}
	return key, ok
}

// setServers gives v's peers the numbers of their plain servers, as far as their
// services are known. Servers without a peer stay for as long as their ports rest.
func (e *Engine) setServers(v *view) error {
	wanted := make(map[endpoint]bool)
	for slot := range v.peers {
		p := &v.peers[slot]
		if p.id == 0 || p.plain == nil {
			continue
		}
		p.servers = make([][2]uint16, len(e.serviceIndex))
		for name, list := range p.plain {
			s := v.named(name, e.serviceIndex)
			for _, at := range list {
				if s == nil {
					continue
				}
				to := endpoint{at.Addr().As16(), at.Port(), s.Proto}
				n, err := e.server(to)
				if err != nil {
					return err
				}
				wanted[to] = true
				p.servers[s.index][family(at.Addr().Unmap().Is4())] = n
			}
		}
	}
	v.servers = slices.Clone(e.servers)
	gone := e.forgetServers(v, wanted)
	v.byEndpoint = make(map[endpoint]*server, len(v.servers))
	for _, s := range v.servers {
		if s != nil {
			v.byEndpoint[s.endpoint] = s
		}
	}
	if err := v.natOverlap(&e.cfg.NAT); err != nil {
		for _, s := range gone {
			s.reopen()
		}
		return err
	}
	e.servers = v.servers
	return nil
}

// family is the place of a server in a peer's list.
func family(is4 bool) int {
	if is4 {
		return 0
	}
	return 1
}

func (v *view) named(name string, index map[string]uint16) *service {
	if i, known := index[name]; known && int(i) < len(v.services) { // else the service was refused
		return v.services[i]
	}
	return nil
}

// server returns the number of a plain server, which it gets if it has none.
func (e *Engine) server(to endpoint) (uint16, error) {
	for _, s := range e.servers {
		if s != nil && s.endpoint == to {
			return s.index, nil
		}
	}
	n := len(e.servers) // no number is used again: an entry may still have it
	if n > math.MaxUint16 {
		return 0, errors.New("dpr: an engine knows at most 65,535 endpoints of plain servers in its life")
	}
	source, _ := e.cfg.NAT.source(to.addrPort().Addr().Is4())
	first, last := e.cfg.NAT.Ports()
	s := newServer(to, source, first, last)
	s.index, s.addr = uint16(n), e.addrIndex[source]
	e.servers = append(e.servers, s)
	return s.index, nil
}

// forgetServers drops from v the servers that are not wanted and have no port that is
// used or rests, and returns them.
func (e *Engine) forgetServers(v *view, wanted map[endpoint]bool) (gone []*server) {
	now := seconds(time.Duration(e.ticked.Load()))
	for i, s := range v.servers {
		if s != nil && !wanted[s.endpoint] && s.close(now) {
			v.servers[i] = nil
			gone = append(gone, s)
		}
	}
	return gone
}

// natOverlap refuses services whose packets could not be told from those of plain
// servers.
func (v *view) natOverlap(n *NAT) error {
	if len(v.byEndpoint) == 0 {
		return nil
	}
	first, last := n.Ports()
	for _, s := range v.services {
		for ; s != nil; s = s.next {
			shared := func(a netip.Addr) bool { return slices.Contains(s.Addrs, a) }
			if s.last() >= first && s.Port <= last && slices.ContainsFunc(n.Sources, shared) {
				return fmt.Errorf("dpr: service %q: its ports lie within NAT.First %d and Last %d: give others", s.Name, first, last)
			}
		}
	}
	return nil
}

// validatePlain refuses servers that nothing could be translated for.
func (p *Peer) validatePlain(n *NAT) error {
	for name, list := range p.Servers {
		for i, at := range list {
			is4 := at.Addr().Unmap().Is4()
			source, ok := n.source(is4)
			switch {
			case !isHost(at.Addr()) || at.Port() == 0:
				return fmt.Errorf("dpr: peer %q: server %v of %q: give a unicast address and a port", p.ID, at, name)
			case !ok:
				return fmt.Errorf("dpr: peer %q: server %v of %q: NAT.Sources has no address of its family", p.ID, at, name)
			case source == at.Addr().As16():
				return fmt.Errorf("dpr: peer %q: server %v of %q is on this host: it needs no NAT", p.ID, at, name)
			}
			for _, other := range list[:i] {
				if other.Addr().Unmap().Is4() == is4 {
					return fmt.Errorf("dpr: peer %q: servers %v and %v of %q: give one of each family", p.ID, other, at, name)
				}
			}
		}
	}
	return nil
}
