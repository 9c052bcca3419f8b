package dprtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/carom-dpr/carom/dpr"
)

// A Link is the cable between an endpoint and its network. A packet crosses two of
// them, the sender's and the receiver's: it may be lost or doubled on each, and
// their delays add up. The zero Link is perfect and has an MTU of 1500.
type Link struct {
	// Loss and Duplicate are the probabilities, from 0 to 1, that a packet is lost
	// and that it arrives twice.
	Loss, Duplicate float64
	// Delay is the time that every packet takes. Jitter is the most that a packet
	// takes beyond it; each packet draws its own, so packets that are sent closer
	// together than that overtake each other. A packet with neither arrives before
	// Write returns.
	Delay, Jitter time.Duration
	// MTU is the length, in bytes, of the longest packet. Default 1500. Longer
	// packets are dropped without an answer, as by a switch.
	MTU int
	// Queue is how many packets may be on their way to the endpoint or wait to be
	// read; more are dropped. Default 1024.
	Queue int
}

const (
	defaultMTU   = 1500 // Ethernet's
	defaultQueue = 1024 // a full TCP window of 1.5 MB at an MTU of 1500
	minMTU       = 68   // the least that IPv4 allows (RFC 791)
)

func (l Link) withDefaults() (Link, error) {
	if l.MTU == 0 {
		l.MTU = defaultMTU
	}
	if l.Queue == 0 {
		l.Queue = defaultQueue
	}
	switch {
	case !(l.Loss >= 0 && l.Loss <= 1) || !(l.Duplicate >= 0 && l.Duplicate <= 1):
		return l, fmt.Errorf("dprtest: Link.Loss %v, Link.Duplicate %v: must be from 0 to 1", l.Loss, l.Duplicate)
	case l.Delay < 0 || l.Jitter < 0:
		return l, fmt.Errorf("dprtest: Link.Delay %v, Link.Jitter %v: must not be negative", l.Delay, l.Jitter)
	case l.MTU < minMTU || l.MTU > dpr.MaxPacket:
		return l, fmt.Errorf("dprtest: Link.MTU %d: must be from %d to %d bytes", l.MTU, minMTU, dpr.MaxPacket)
	case l.Queue < 0:
		return l, fmt.Errorf("dprtest: Link.Queue %d: must be positive", l.Queue)
	}
	return l, nil
}

// A Network is a switch in memory that carries IP packets between endpoints by
// their destination address. Its methods may be called from any goroutine. It
// starts none of its own; delayed packets are moved by a timer.
type Network struct {
	seed uint64

	mu        sync.RWMutex
	owners    map[netip.Addr]*Endpoint
	fallback  *Endpoint
	filter    func(from, to *Endpoint, pkt []byte) bool
	endpoints []*Endpoint // all that were ever joined; the index seeds an endpoint's dice
}

// NewNetwork returns a network without endpoints. With the same seed and the same
// order of packets from each endpoint, the same packets are lost, doubled and
// delayed.
func NewNetwork(seed uint64) *Network {
	return &Network{seed: seed, owners: map[netip.Addr]*Endpoint{}}
}

// Join returns a new endpoint that owns the given addresses.
func (n *Network) Join(link Link, addrs ...netip.Addr) (*Endpoint, error) {
	link, err := link.withDefaults()
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	e := &Endpoint{net: n, dice: rand.New(rand.NewPCG(n.seed, uint64(len(n.endpoints))))}
	e.arrived.L = &e.mu
	e.link.Store(&link)
	if err := n.own(e, addrs); err != nil {
		return nil, err
	}
	n.endpoints = append(n.endpoints, e)
	return e, nil
}

// own gives addresses to an endpoint, all or none. The caller holds n.mu.
func (n *Network) own(e *Endpoint, addrs []netip.Addr) error {
	for _, a := range addrs {
		if !a.IsValid() {
			return errors.New("dprtest: an endpoint's address is the zero Addr")
		}
		if owner := n.owners[a.Unmap()]; owner != nil && owner != e {
			return fmt.Errorf("dprtest: address %v belongs to another endpoint: remove it there first", a)
		}
	}
	for _, a := range addrs {
		n.owners[a.Unmap()] = e
	}
	return nil
}

// SetDefault makes an endpoint the receiver of all packets to addresses that no
// endpoint owns, like a default gateway. Nil: such packets are dropped.
func (n *Network) SetDefault(e *Endpoint) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fallback = e
}

// SetFilter has a function asked about every packet that could be sent, with its
// sender and receiver; the packet is dropped if it returns false. It is for tests
// that lose particular packets, cut particular pairs of endpoints, or look at what
// passes. It is called by several goroutines at once, must not keep pkt, and must
// not write to an endpoint. Nil: no filter.
func (n *Network) SetFilter(pass func(from, to *Endpoint, pkt []byte) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.filter = pass
}

// Close closes all endpoints.
func (n *Network) Close() error {
	n.mu.RLock()
	endpoints := slices.Clone(n.endpoints)
	n.mu.RUnlock()
	for _, e := range endpoints {
		e.Close()
	}
	return nil
}

// route returns the endpoint that gets packets for an address.
func (n *Network) route(dst netip.Addr) (*Endpoint, func(from, to *Endpoint, pkt []byte) bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if to := n.owners[dst]; to != nil {
		return to, n.filter
	}
	return n.fallback, n.filter
}

// leave forgets an endpoint's addresses.
func (n *Network) leave(e *Endpoint) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for a, owner := range n.owners {
		if owner == e {
			delete(n.owners, a)
		}
	}
	if n.fallback == e {
		n.fallback = nil
	}
}
