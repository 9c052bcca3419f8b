package hostnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// A Net is what Open has set up on this host. Its methods may be called by several
// goroutines at once, on any thread.
type Net struct {
	cfg     Config
	nl      *netlink.Handle
	tracked *netlink.Handle   // of conntrack; nil where there is none
	changes *nl.NetlinkSocket // the kernel's notices of routing, for Run
	tables  *nl.NetlinkSocket // and those of nftables; nil where there are none
	tun     netlink.Link
	nics    []*nic
	home    netns.NsHandle // the network namespace of all of it
	capture *capture
	beat    heart
	// repairAfter is repairPeriod but in tests.
	repairAfter time.Duration

	mu        sync.Mutex
	services  []Service // for what the capture program does not know of them
	rewrite   rewriter
	byRouting bool
	settings  []setting           // changed by Open, restored by Close
	aliases   map[netip.Addr]bool // those that are to be
	added     map[netip.Addr]bool // those that have an address on the TUN
	ours      bool                // nobody else uses our tables
	closed    bool
}

// Open sets up capture for the services. It works on the network namespace of the
// calling thread, for good. What an instance that was killed has left in the
// tables of the configuration is removed first. On error everything is as it was.
//
// Nothing is captured until the first [Net.Beat].
func Open(cfg Config) (*Net, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	n := newNet(cfg)
	for _, step := range n.steps() {
		if err := step(); err != nil {
			return nil, errors.Join(fmt.Errorf("hostnet: %w", err), n.Close())
		}
	}
	return n, nil
}

func newNet(cfg Config) *Net {
	return &Net{cfg: cfg, services: cfg.Services, home: netns.None(), aliases: map[netip.Addr]bool{}, added: map[netip.Addr]bool{}, repairAfter: repairPeriod}
}

// steps are what Open does, in order. Close undoes as many as were done.
func (n *Net) steps() []func() error {
	return []func() error{n.findInterfaces, n.checkTables, n.configureTUN, n.endForwarding, n.syncRouting, n.startCapture}
}

// Beat tells the capture program that the engine's router works. It must be called
// by the router's own loop, at least every 250 ms also when there is nothing to
// do: after 500 ms without, new connections and datagrams stay with the kernel,
// after 10 s everything does. It costs one store to memory, and does nothing after
// Close.
func (n *Net) Beat() { n.beat.beat() }

// SetServices replaces the services. Connections of a service that stays are not
// touched. Interfaces are not chosen anew.
func (n *Net) SetServices(services []Service) error {
	want, err := endpoints(services)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return fmt.Errorf("hostnet: SetServices: %w", os.ErrClosed)
	}
	if n.capture != nil {
		if err := n.capture.setEndpoints(want); err != nil {
			return err
		}
	}
	n.services = slices.Clone(services)
	if err := n.syncRouting(); err != nil {
		return fmt.Errorf("hostnet: SetServices: %w", err)
	}
	return nil
}

// Stats returns the capture program's counters, and what interfaces are missing.
func (n *Net) Stats() (s Stats, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return Stats{}, fmt.Errorf("hostnet: Stats: %w", os.ErrClosed)
	}
	if n.capture != nil { // rules count nothing
		s, err = n.capture.stats()
	}
	for _, c := range n.nics {
		if c.link == nil {
			s.Missing = append(s.Missing, c.name)
		}
	}
	return s, err
}

// ByRouting reports whether packets are captured by routing. Then the engine gets those
// of this host's own connections, too, and must know them: dpr.Config.TrackLocal.
func (n *Net) ByRouting() bool { return n.byRouting }

// Close takes away all that Open and SetAliases have set up and puts back what was
// there before. It may be called more than once. Redirected connections that this
// host serves end; those of its own go on. It is best called before the TUN is
// closed: packets that are captured in between are lost.
func (n *Net) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil
	}
	n.closed = true
	var errs []error
	if n.capture != nil {
		errs = append(errs, n.stopProgram())
	}
	if n.ours {
		clear(n.aliases)
		errs = append(errs, n.syncRouting())
	}
	// Down first: an interface that is up would get a link-local address as soon as
	// it may have one again.
	if n.tun != nil && n.tun.Attrs().Flags&net.FlagUp == 0 {
		errs = append(errs, ignore(n.nl.LinkSetDown(n.tun), unix.ENODEV))
	}
	for _, s := range slices.Backward(n.settings) {
		errs = append(errs, s.restore())
	}
	for _, c := range n.nics {
		errs = append(errs, c.release())
	}
	n.deafen()
	for _, h := range []*netlink.Handle{n.nl, n.tracked} {
		if h != nil {
			h.Close()
		}
	}
	if n.home.IsOpen() {
		n.home.Close()
	}
	return errors.Join(append(errs, n.rewrite.close())...)
}

// deafen ends the kernel's notices.
func (n *Net) deafen() {
	for _, s := range []*nl.NetlinkSocket{n.changes, n.tables} {
		if s != nil {
			s.Close()
		}
	}
}

// findInterfaces opens the netlink sockets and finds the interfaces.
func (n *Net) findInterfaces() (err error) {
	if n.home, err = netns.Get(); err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	if n.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	n.changes, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
	if err != nil {
		return fmt.Errorf("netlink: subscribe: %w", err)
	}
	if n.tables, err = nl.Subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES); err != nil {
		n.tables = nil // not in this kernel: Run looks now and then
	}
	if n.tracked, err = netlink.NewHandle(unix.NETLINK_NETFILTER); err != nil {
		n.tracked = nil // then nothing can be rewritten
	}
	names := n.cfg.Interfaces
	if len(names) == 0 {
		if names, err = n.interfacesOf(n.cfg.Services); err != nil {
			return err
		}
	}
	for _, name := range names {
		c := &nic{name: name}
		if err := c.find(n.nl); err != nil {
			return fmt.Errorf("interface %s: %w: set Interfaces to those of this host that clients' packets arrive on", name, err)
		}
		n.nics = append(n.nics, c)
	}
	if n.tun, err = n.nl.LinkByName(n.cfg.TUN); err != nil {
		return fmt.Errorf("TUN %s: %w", n.cfg.TUN, err)
	}
	return nil
}

// interfacesOf returns the names of the interfaces that carry the services' addresses.
func (n *Net) interfacesOf(services []Service) ([]string, error) {
	addrs, err := n.addrs(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	index := map[netip.Addr]int{}
	for _, a := range addrs {
		index[addrOf(a.IP)] = a.LinkIndex
	}
	var names []string
	for _, s := range services {
		for _, a := range s.Addrs {
			i, ok := index[a.Unmap()]
			if !ok {
				return nil, fmt.Errorf("address %v of a service is on no interface: set Interfaces to those that its packets arrive on", a)
			}
			link, err := n.nl.LinkByIndex(i)
			if err != nil {
				return nil, fmt.Errorf("interface of %v: %w", a, err)
			}
			name := link.Attrs().Name
			if link.Attrs().Flags&net.FlagLoopback != 0 {
				return nil, fmt.Errorf("address %v of a service is on %s: set Interfaces to those that its packets arrive on", a, name)
			}
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names, nil
}

// configureTUN prepares the TUN for packets that come from the engine, and brings
// it up.
func (n *Net) configureTUN() error {
	name := n.cfg.TUN
	// The senders of what comes from here are reached through another interface.
	if err := n.change(ipv4Setting(name, "rp_filter"), "2", nil); err != nil {
		return err
	}
	// They may be this host itself, as the client of its own cluster.
	if err := n.change(ipv4Setting(name, "accept_local"), "1", nil); err != nil {
		return err
	}
	if _, err := os.Stat(ipv6Setting(name, "")); err == nil {
		if err := n.disableAutoconf(name); err != nil {
			return err
		}
	}
	if err := n.nl.LinkSetUp(n.tun); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}

// disableAutoconf keeps the TUN without IPv6 addresses and without the packets
// that come with them.
func (n *Net) disableAutoconf(name string) error {
	// The file makes an address at once when it is set to a mode that wants one;
	// netlink does not, so Close can restore the mode.
	setMode := func(value string) error {
		mode, err := strconv.Atoi(value)
		if err != nil {
			return err
		}
		return n.nl.LinkSetIP6AddrGenMode(n.tun, mode)
	}
	const modeNone = "1"
	return errors.Join(
		n.change(ipv6Setting(name, "addr_gen_mode"), modeNone, setMode),
		n.change(ipv6Setting(name, "accept_ra"), "0", nil),
		n.change(ipv6Setting(name, "autoconf"), "0", nil),
	)
}

// change sets a kernel setting and keeps what Close needs to restore it.
func (n *Net) change(path, value string, write func(string) error) error {
	s, err := openSetting(path)
	if err != nil {
		return err
	}
	s.write = write
	n.settings = append(n.settings, s)
	return s.set(value)
}

// startCapture captures by BPF, or by routing where that is all there is. A missing
// capability is left to the operator, and a missing interface too.
func (n *Net) startCapture() error {
	if n.cfg.ByRouting {
		return n.startByRouting()
	}
	err := errors.Join(n.cfg.attachError, n.startProgram())
	if err == nil || errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENODEV) {
		return err
	}
	n.cfg.Log.Warn("hostnet: this kernel cannot capture by BPF, so rules lead the services' IPv4 packets to the router;"+
		" it sees those of this host's own connections, too, and IPv6 stays with the kernel", "err", err)
	if n.capture != nil {
		if err := n.stopProgram(); err != nil {
			return err
		}
	}
	return n.startByRouting()
}

// startProgram loads the program, tells it the services and attaches it.
func (n *Net) startProgram() error {
	want, err := endpoints(n.cfg.Services)
	if err != nil {
		return err
	}
	if n.capture, err = loadProgram(n.tun, n.cfg.SYNRate); err != nil {
		return err
	}
	n.capture.noTCX = n.cfg.noTCX
	if err := n.capture.setEndpoints(want); err != nil {
		return err
	}
	if err := n.beat.open(n.capture.objects.Heartbeat); err != nil {
		return err
	}
	for _, c := range n.nics {
		if err := n.captureOn(c); err != nil {
			return err
		}
	}
	return nil
}

// stopProgram detaches the program and unloads it.
func (n *Net) stopProgram() error {
	var errs []error
	for _, c := range n.nics {
		if c.detach != nil {
			errs = append(errs, c.detach())
			c.detach = nil
		}
	}
	errs = append(errs, n.capture.objects.Close())
	n.capture = nil
	return errors.Join(errs...)
}

// ignore returns err unless it is one of those.
func ignore(err error, expected ...error) error {
	for _, e := range expected {
		if errors.Is(err, e) {
			return nil
		}
	}
	return err
}
