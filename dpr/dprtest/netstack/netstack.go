// Package netstack gives tests and demonstrations whole IP hosts in memory: a
// real TCP/IP stack (gVisor's) that is wired to a router of this module as a
// Linux kernel is, on any system and without privileges.
//
// A [Host] has two sides. The wire is a [dpr.Device], what the host's network
// card would send and receive; the TUN is another, which a router reads and
// writes. Packets from the wire that the capture predicate takes go to the TUN,
// as they do through the BPF program of a real host; all others go into the
// stack. What the router writes to the TUN enters the stack. What the stack sends
// leaves through the wire and no router sees it: the direct reply. With
// [Config.Tunnelled], answers from aliases go to the TUN.
//
// As on a real host, an alias is an address of a peer that the stack accepts
// from the TUN alone: a server that listens on the wildcard address answers from
// it, while the host's own connections to that address go out to its owner.
//
// Two things differ from Linux. A host's link to itself is not the loopback
// interface but the way out, turned back before the wire; and the smaller MTU of
// redirected connections limits the segments that the server sends too, where
// Linux limits only those it asks for.
package netstack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carom-dpr/carom/dpr"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// Config is the configuration of a [Host]. Addrs and Wire have no default.
type Config struct {
	// Name appears in errors.
	Name string
	// Addrs are the host's own addresses, of either family.
	Addrs []netip.Prefix
	// MTU is the largest packet that the host sends to the wire, in bytes. The
	// default is 1500; the least is 1280 (RFC 8200).
	MTU int
	// Overhead is what a tunnel between hosts adds to a packet, in bytes. On
	// redirected connections the host asks for segments that are so much smaller,
	// so that what the client sends fits the tunnel. The default is 68: an outer
	// IPv6 header, UDP, and GUE with 20 bytes of its private field.
	Overhead int
	// Wire is the host's network card. The host owns it, and closes it.
	Wire dpr.Device
	// Capture reports whether a packet from the wire goes to the TUN. It is called
	// by one goroutine and must not keep or change the bytes. Nil captures
	// nothing.
	Capture func(pkt []byte) bool
	// Bypass sends packets of TCP connections that the stack already holds, in any
	// state but LISTEN and TIME_WAIT, to the stack even if Capture takes them, as
	// the BPF program on a real host does. Without it, the router sees every
	// packet of a connection that it leaves to its own host, and must track it.
	Bypass bool
	// Tunnelled sends what the stack sends from an alias to the TUN instead of the wire,
	// as a host does whose services have dpr.ReplyTunnelled.
	Tunnelled bool
	// TimeWait is how long a closed connection holds its port. The default is one
	// second: in memory no packet wanders for longer, and a test opens thousands.
	TimeWait time.Duration
}

const (
	defaultMTU      = 1500
	minMTU          = header.IPv6MinimumMTU
	defaultOverhead = 40 + 8 + 20
	defaultTimeWait = time.Second
	// batch is the number of packets that move at once.
	batch = 32
	// queueLen is the length of the queues to the wire and to the TUN, in packets:
	// a few full windows. A full queue drops, like that of a network card.
	queueLen = 4096
	// readLen is the least buffer for a packet from the wire, in bytes: a jumbo
	// frame.
	readLen = 9216
)

// The interfaces of a stack. Both send to the wire.
const (
	wireNIC tcpip.NICID = 1 // owns the host's addresses
	tunNIC  tcpip.NICID = 2 // owns the aliases
)

func (c Config) withDefaults() (Config, error) {
	if c.MTU == 0 {
		c.MTU = defaultMTU
	}
	if c.Overhead == 0 {
		c.Overhead = defaultOverhead
	}
	if c.TimeWait == 0 {
		c.TimeWait = defaultTimeWait
	}
	switch {
	case c.Wire == nil:
		return c, c.errorf("Config.Wire is nil; give it a device")
	case len(c.Addrs) == 0:
		return c, c.errorf("Config.Addrs is empty; a host needs an address")
	case c.MTU < minMTU || c.MTU > dpr.MaxPacket:
		return c, c.errorf("Config.MTU %d is not between %d and %d", c.MTU, minMTU, dpr.MaxPacket)
	case c.Overhead < 0 || c.MTU-c.Overhead < header.IPv4MinimumMTU:
		return c, c.errorf("Config.Overhead %d leaves less than %d bytes of MTU %d", c.Overhead, header.IPv4MinimumMTU, c.MTU)
	case c.TimeWait < 0:
		return c, c.errorf("Config.TimeWait %v is negative", c.TimeWait)
	}
	for _, a := range c.Addrs {
		if !a.IsValid() || a.Addr().Is4In6() {
			return c, c.errorf("Config.Addrs: %v is no IPv4 or IPv6 prefix", a)
		}
	}
	return c, nil
}

func (c Config) errorf(format string, args ...any) error {
	return fmt.Errorf("netstack: host %q: "+format, append([]any{c.Name}, args...)...)
}

// Stats counts packets since the host was made.
type Stats struct {
	// Captured went to the TUN.
	Captured uint64
	// WireFull and TUNFull were dropped because that queue was full.
	WireFull, TUNFull uint64
}

// A Host is an IP host in memory. Its methods may be called from any goroutine.
type Host struct {
	cfg   Config
	stack *stack.Stack
	own   map[netip.Addr]bool
	wire  *nic // the interface that owns the host's addresses
	alias *nic // the one that owns the aliases
	out   chan *stack.PacketBuffer
	tun   *tun

	captured, wireFull atomic.Uint64

	mu      sync.Mutex // guards aliases
	aliases map[netip.Addr]bool

	closing   chan struct{}
	closeOnce sync.Once
}

// New makes a host. Packets move once [Host.Run] runs. The stack has goroutines
// of its own, so a host that was made must be closed. On an error the wire is
// left open.
func New(c Config) (*Host, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	h := &Host{
		cfg:     c,
		own:     make(map[netip.Addr]bool),
		out:     make(chan *stack.PacketBuffer, queueLen),
		aliases: make(map[netip.Addr]bool),
		closing: make(chan struct{}),
	}
	h.tun = newTUN(h)
	h.wire = &nic{host: h, mtu: uint32(c.MTU)}
	h.alias = &nic{host: h, mtu: uint32(c.MTU - c.Overhead)}
	if h.stack, err = newStack(c, h.wire, h.alias); err != nil {
		return nil, err
	}
	for _, a := range c.Addrs {
		h.own[a.Addr()] = true
	}
	return h, nil
}

// TUN returns the device that a router of this host reads and writes. Read
// returns what was captured. Write delivers packets into the stack: to the
// host's own addresses and to aliases; others are dropped. After Close, the
// stack itself gets what would be captured, as when a router's process ends.
func (h *Host) TUN() dpr.Device { return h.tun }

// Sender returns the way on which packets leave like the stack's own: past the
// router, to the wire.
func (h *Host) Sender() dpr.Writer { return sender{h} }

// Stats returns the counters.
func (h *Host) Stats() Stats {
	return Stats{Captured: h.captured.Load(), WireFull: h.wireFull.Load(), TUNFull: h.tun.full.Load()}
}

// SetAliases replaces the addresses of peers that the stack accepts from the
// TUN. It returns an error, and changes nothing, if one of them is the host's
// own.
func (h *Host) SetAliases(addrs []netip.Addr) error {
	want := make(map[netip.Addr]bool, len(addrs))
	for _, a := range addrs {
		if a = a.Unmap(); !a.IsValid() || h.own[a] {
			return h.cfg.errorf("alias %v is no address of a peer", a)
		}
		want[a] = true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for a := range h.aliases {
		if !want[a] {
			h.stack.RemoveAddress(tunNIC, tcpip.AddrFromSlice(a.AsSlice()))
			delete(h.aliases, a)
		}
	}
	for a := range want {
		if h.aliases[a] {
			continue
		}
		// Never primary: no connection of the host's own starts from an alias.
		if err := addAddress(h.stack, tunNIC, netip.PrefixFrom(a, a.BitLen()), stack.NeverPrimaryEndpoint); err != nil {
			return h.cfg.errorf("alias %v: %w", a, err)
		}
		h.aliases[a] = true
	}
	return nil
}

// Run moves packets between the wire, the TUN and the stack until the context is
// done, the host is closed or the wire fails. Then it closes the host. It
// returns nil unless the wire failed. It is called once.
func (h *Host) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { h.closeDevices() })
	defer stop()
	var wg sync.WaitGroup
	var sendErr error
	wg.Go(func() {
		if sendErr = h.send(); sendErr != nil {
			h.closeDevices()
		}
	})
	recvErr := h.receive()
	h.Close()
	wg.Wait()
	return errors.Join(ignoreClosed(recvErr), ignoreClosed(sendErr))
}

func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// Close closes the wire and the TUN, aborts all connections and waits until the
// stack's goroutines have ended. It may be called more than once. [Host.Run]
// then returns.
func (h *Host) Close() error {
	h.closeDevices()
	h.closeOnce.Do(func() {
		h.stack.Close()
		h.stack.Wait()
	})
	return nil
}

// closeDevices stops the movement of packets.
func (h *Host) closeDevices() {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.closing:
		return
	default:
	}
	close(h.closing)
	h.tun.Close()
	h.cfg.Wire.Close()
}
