//go:build linux

package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// LAN is the name of the segment that [Lab.AddHost] attaches hosts to.
const LAN = "lan"

// Config says what a lab is like. The zero Config is ready for use.
type Config struct {
	// Name is the prefix of the lab's namespaces; host h is found at
	// /run/netns/NAME-h. A lab of the same name that a killed process left behind
	// is removed, so two labs of one name cannot stand at the same time. The
	// default is a name that is unique to the process and the lab; New then
	// removes what dead processes left under such names.
	Name string
	// MTU is that of every interface whose Port does not say otherwise, in bytes.
	// The default is 1500.
	MTU int
	// Keep leaves the namespaces standing after Close, for a look around. Processes
	// started by [Host.Start] are ended all the same.
	Keep bool
}

// A Lab is a set of hosts and the segments that join them. Its methods may be
// called by several goroutines at once.
type Lab struct {
	cfg Config

	mu       sync.Mutex
	segments *Host           // the namespace with the bridges
	bridges  map[string]bool // the segments made so far
	ports    int             // the number of interfaces made so far
	hosts    []*Host         // all namespaces, segments included
	closed   bool
}

// A Port is one network interface of a host.
type Port struct {
	// Segment names the Ethernet segment that the port is attached to; a segment
	// comes into being with its first port. The default is [LAN].
	Segment string
	// MTU of the interface, in bytes. The default is the lab's.
	MTU int
	// Addrs are the interface's addresses with the length of their network's
	// prefix.
	Addrs []netip.Prefix
}

// segmentsName is the host name of the namespace that holds the bridges.
const segmentsName = "segments"

// created numbers the labs of this process, for their default names.
var created atomic.Uint32

// New makes an empty lab. On error nothing is left behind. The lab must be closed.
func New(cfg Config) (*Lab, error) {
	if cfg.MTU == 0 {
		cfg.MTU = 1500
	}
	if cfg.Name == "" {
		_ = cleanupDead() // what cannot be removed is in nobody's way: it has another name
		cfg.Name = fmt.Sprintf("%s%d.%d", autoPrefix, os.Getpid(), created.Add(1))
	} else if err := Cleanup(cfg.Name); err != nil {
		return nil, err
	}
	l := &Lab{cfg: cfg, bridges: map[string]bool{}}
	var err error
	if l.segments, err = l.addNamespace(segmentsName); err != nil {
		return nil, err
	}
	if err := l.segments.quietBridges(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// AddHost adds a host with one interface, eth0, on the segment [LAN], that has
// the given addresses. Without addresses the interface has only a link-local one.
func (l *Lab) AddHost(name string, addrs ...netip.Prefix) (*Host, error) {
	return l.AddNode(name, Port{Addrs: addrs})
}

// AddNode adds a host with one interface per port: eth0, eth1 and so on. It does
// not forward packets and has no routes but those to its own networks. On error
// the host does not exist.
func (l *Lab) AddNode(name string, ports ...Port) (*Host, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, fmt.Errorf("lab %s: host %s: %w", l.cfg.Name, name, os.ErrClosed)
	}
	h, err := l.addNamespace(name)
	if err != nil {
		return nil, err
	}
	for i, p := range ports {
		if err := l.attach(h, i, p, nil); err != nil {
			l.hosts = l.hosts[:len(l.hosts)-1]
			return nil, errors.Join(fmt.Errorf("lab %s: host %s: eth%d: %w", l.cfg.Name, name, i, err), h.remove())
		}
	}
	return h, nil
}

// AddRouter adds a host like [Lab.AddNode] that forwards IPv4 and IPv6 between
// its ports. Traffic between ports of different MTU meets real path MTU discovery.
func (l *Lab) AddRouter(name string, ports ...Port) (*Host, error) {
	h, err := l.AddNode(name, ports...)
	if err != nil {
		return nil, err
	}
	for _, key := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
		if err := h.SetSysctl(key, "1"); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// Close ends the processes that [Host.Start] started and removes all namespaces,
// unless the lab is to be kept. It may be called more than once. Sockets that are
// still open keep their namespace alive, without a name, until they are closed.
func (l *Lab) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	var errs []error
	for _, h := range l.hosts {
		h.kill()
	}
	for _, h := range l.hosts {
		if l.cfg.Keep {
			errs = append(errs, h.release())
		} else {
			errs = append(errs, h.remove())
		}
	}
	return errors.Join(errs...)
}

// addNamespace makes the namespace of a host and prepares it.
func (l *Lab) addNamespace(name string) (*Host, error) {
	h := &Host{name: name, netns: l.cfg.Name + "-" + name}
	var err error
	if h.ns, err = newNamespace(h.netns); err != nil {
		err = fmt.Errorf("lab: namespace %s: %w", h.netns, err)
		if !errors.Is(err, fs.ErrExist) { // then the name belongs to another
			err = errors.Join(err, removeNamespace(h.netns))
		}
		return nil, err
	}
	if h.nl, err = netlink.NewHandleAt(h.ns); err != nil {
		return nil, errors.Join(fmt.Errorf("lab: namespace %s: netlink: %w", h.netns, err), h.remove())
	}
	if err := h.prepare(); err != nil {
		return nil, errors.Join(err, h.remove())
	}
	l.hosts = append(l.hosts, h)
	return h, nil
}

// Unplug deletes a host's i-th interface, eth0 being 0, and returns what makes it again,
// with the same addresses and hardware address.
func (l *Lab) Unplug(h *Host, i int, p Port) (plug func() error, err error) {
	link, err := h.nl.LinkByName(fmt.Sprintf("eth%d", i))
	if err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	if err := h.nl.LinkDel(link); err != nil {
		return nil, fmt.Errorf("lab: delete %s: %w", link.Attrs().Name, err)
	}
	return func() error { return l.attach(h, i, p, link.Attrs().HardwareAddr) }, nil
}

// attach makes the i-th interface of h and plugs it into its segment, with a hardware
// address of the kernel's choice if mac is nil.
func (l *Lab) attach(h *Host, i int, p Port, mac net.HardwareAddr) error {
	if p.Segment == "" {
		p.Segment = LAN
	}
	if p.MTU == 0 {
		p.MTU = l.cfg.MTU
	}
	bridge, err := l.segment(p.Segment)
	if err != nil {
		return err
	}
	// The switch's end takes the largest MTU there is, so that each host's own
	// MTU decides what it sends and nothing between them does.
	attrs := netlink.NewLinkAttrs()
	l.ports++
	attrs.Name = fmt.Sprintf("port%d", l.ports)
	veth := &netlink.Veth{
		LinkAttrs: attrs, PeerName: fmt.Sprintf("eth%d", i), PeerNamespace: netlink.NsFd(int(h.ns)),
		PeerHardwareAddr: mac,
	}
	if err := l.segments.nl.LinkAdd(veth); err != nil {
		return fmt.Errorf("veth: %w", err)
	}
	port, err := l.segments.nl.LinkByName(attrs.Name)
	if err != nil {
		return err
	}
	return errors.Join(
		l.segments.nl.LinkSetMTU(port, maxMTU),
		l.segments.nl.LinkSetMaster(port, bridge),
		l.segments.nl.LinkSetUp(port),
		h.configure(veth.PeerName, p),
		l.segments.awaitCarrier(attrs.Name),
		h.awaitCarrier(veth.PeerName),
		h.awaitIPv6(veth.PeerName),
	)
}

// maxMTU is the largest MTU of a veth and of a bridge, in bytes.
const maxMTU = 65535

// segment returns the bridge of a segment, which it makes if there is none.
func (l *Lab) segment(name string) (netlink.Link, error) {
	if l.bridges[name] {
		return l.segments.nl.LinkByName(name)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	// Snooping would hold back neighbour solicitations until the groups are learnt.
	snooping := false
	bridge := &netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}
	if err := l.segments.nl.LinkAdd(bridge); err != nil {
		return nil, fmt.Errorf("segment %s: %w", name, err)
	}
	l.bridges[name] = true
	return bridge, l.segments.nl.LinkSetUp(bridge)
}

// newNamespace makes a network namespace of the given name and returns to the
// caller's own.
func newNamespace(name string) (ns netns.NsHandle, err error) {
	ns = netns.None()
	if err := shareNames(); err != nil {
		return ns, fmt.Errorf("%s: %w", namespaceDir, err)
	}
	outer := inNamespace(ns, func() error {
		ns, err = netns.NewNamed(name)
		return err
	})
	if outer != nil {
		return netns.None(), outer
	}
	return ns, nil
}

// inNamespace runs f on a locked thread, in ns unless that is none, and takes the
// thread back to where it was even if f leaves by a panic or runtime.Goexit.
func inNamespace(ns netns.NsHandle, f func() error) error {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer func() {
		// A thread that cannot return stays locked: the runtime then ends it with
		// the goroutine and never runs other code on it.
		if netns.Set(home) == nil {
			runtime.UnlockOSThread()
		}
		home.Close()
	}()
	if ns.IsOpen() {
		if err := netns.Set(ns); err != nil {
			return err
		}
	}
	return f()
}
