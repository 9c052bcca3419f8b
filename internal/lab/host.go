//go:build linux

package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// A Host is one network namespace. Its methods may be called by several
// goroutines at once.
type Host struct {
	name, netns string
	ns          netns.NsHandle
	nl          *netlink.Handle
	addrs       []netip.Addr

	mu       sync.Mutex
	children []*os.Process
	waiters  sync.WaitGroup
}

// Name returns the name that the host was added under.
func (h *Host) Name() string { return h.name }

// Namespace returns the name for `ip netns exec`.
func (h *Host) Namespace() string { return h.netns }

// Path returns the file that holds the namespace open, for `nsenter --net=`.
func (h *Host) Path() string { return filepath.Join(namespaceDir, h.netns) }

// Netlink returns the netlink handle of the host's namespace. It belongs to the
// host and may be used until the lab is closed.
func (h *Host) Netlink() *netlink.Handle { return h.nl }

// Addr4 returns the host's first IPv4 address, or the zero Addr.
func (h *Host) Addr4() netip.Addr { return h.addr(netip.Addr.Is4) }

// Addr6 returns the host's first IPv6 address, or the zero Addr.
func (h *Host) Addr6() netip.Addr { return h.addr(netip.Addr.Is6) }

func (h *Host) addr(family func(netip.Addr) bool) netip.Addr {
	for _, a := range h.addrs {
		if family(a) {
			return a
		}
	}
	return netip.Addr{}
}

// Do runs f in the host's namespace, on a thread of its own while it runs, and
// returns f's error. A socket belongs for ever to the namespace that it was made
// in, so it may be used after Do returns. Goroutines that f starts are *not* in
// the namespace.
func (h *Host) Do(f func() error) error { return inNamespace(h.ns, f) }

// Listen announces on an address of the host; see [net.Listen].
func (h *Host) Listen(network, address string) (ln net.Listener, err error) {
	err = h.Do(func() (err error) {
		ln, err = net.Listen(network, address)
		return err
	})
	return ln, err
}

// ListenPacket announces on an address of the host; see [net.ListenPacket].
func (h *Host) ListenPacket(network, address string) (c net.PacketConn, err error) {
	err = h.Do(func() (err error) {
		c, err = net.ListenPacket(network, address)
		return err
	})
	return c, err
}

// DialContext connects from the host, in the form that net/http's Transport
// takes. The address must be numeric: names are not resolved in the namespace.
func (h *Host) DialContext(ctx context.Context, network, address string) (c net.Conn, err error) {
	if _, err := netip.ParseAddrPort(address); err != nil {
		return nil, fmt.Errorf("lab: host %s: dial: %w", h.name, err)
	}
	err = h.Do(func() (err error) {
		c, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// Start starts a command inside the host; the caller waits for it with cmd.Wait.
// The process is killed when the lab is closed or when this process dies. Start
// sets Pdeathsig of cmd.SysProcAttr.
func (h *Host) Start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &unix.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	started := make(chan error)
	h.waiters.Go(func() {
		// The parent in the sense of Pdeathsig is the thread, so this one stays
		// until the child has ended; reaping it is left to cmd.Wait.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		pidfd := -1
		err := h.Do(func() (err error) {
			if err = cmd.Start(); err == nil {
				pidfd, err = unix.PidfdOpen(cmd.Process.Pid, 0)
			}
			return err
		})
		started <- err
		if err == nil {
			awaitExit(pidfd)
		}
	})
	err := <-started
	if err != nil {
		return fmt.Errorf("lab: host %s: start %s: %w", h.name, cmd.Path, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.children = append(h.children, cmd.Process)
	return nil
}

// awaitExit returns when the process has ended, and does not reap it.
func awaitExit(pidfd int) {
	defer unix.Close(pidfd)
	for {
		err := unix.Waitid(unix.P_PIDFD, pidfd, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return
		}
	}
}

// AddRoute adds a route through the gateway via, which must be on a network of
// the host. The prefix 0.0.0.0/0 or ::/0 makes it the default route.
func (h *Host) AddRoute(dst netip.Prefix, via netip.Addr) error {
	err := h.nl.RouteAdd(&netlink.Route{Dst: ipNet(dst), Gw: via.AsSlice()})
	if err != nil {
		return fmt.Errorf("lab: host %s: route %v via %v: %w", h.name, dst, via, err)
	}
	return nil
}

// SetMTU sets the MTU of an interface of the host, in bytes.
func (h *Host) SetMTU(iface string, mtu int) error {
	link, err := h.nl.LinkByName(iface)
	if err == nil {
		err = h.nl.LinkSetMTU(link, mtu)
	}
	if err != nil {
		return fmt.Errorf("lab: host %s: MTU %d of %s: %w", h.name, mtu, iface, err)
	}
	return nil
}

// SetSysctl sets a kernel parameter of the namespace, such as
// net.ipv4.ip_forward; an interface name with a dot in it cannot be expressed.
func (h *Host) SetSysctl(key, value string) error {
	err := h.Do(func() error { return os.WriteFile(sysctlPath(key), []byte(value), 0) })
	if err != nil {
		return fmt.Errorf("lab: host %s: %s=%s: %w", h.name, key, value, err)
	}
	return nil
}

// Sysctl returns a kernel parameter of the namespace.
func (h *Host) Sysctl(key string) (value string, err error) {
	err = h.Do(func() error {
		b, err := os.ReadFile(sysctlPath(key))
		value = strings.TrimSpace(string(b))
		return err
	})
	if err != nil {
		return "", fmt.Errorf("lab: host %s: %s: %w", h.name, key, err)
	}
	return value, nil
}

func sysctlPath(key string) string { return "/proc/sys/" + strings.ReplaceAll(key, ".", "/") }

// prepare makes a fresh namespace the same on every machine: new ones inherit
// much from the machine's own settings.
func (h *Host) prepare() error {
	for _, s := range [][2]string{
		{"net.ipv4.ip_forward", "0"},
		{"net.ipv4.conf.all.rp_filter", "0"},
		{"net.ipv4.conf.default.rp_filter", "0"},
		{"net.ipv6.conf.all.disable_ipv6", "0"},
		{"net.ipv6.conf.default.disable_ipv6", "0"},
		{"net.ipv6.conf.all.forwarding", "0"},
		{"net.ipv6.conf.default.accept_ra", "0"},
		{"net.ipv6.conf.default.accept_dad", "0"}, // addresses are of use at once
	} {
		if err := h.SetSysctl(s[0], s[1]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	lo, err := h.nl.LinkByName("lo")
	if err == nil {
		err = h.nl.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("lab: host %s: lo: %w", h.name, err)
	}
	return nil
}

// quietBridges keeps the bridges of the namespace from having addresses, and the
// packets that cross them from netfilter. Where br_netfilter is loaded the latter
// is on by default, and silently drops packets whose IP header checksum is wrong,
// which a test may have sent on purpose.
func (h *Host) quietBridges() error {
	for _, s := range [][2]string{
		{"net.ipv6.conf.default.disable_ipv6", "1"},
		{"net.bridge.bridge-nf-call-iptables", "0"},
		{"net.bridge.bridge-nf-call-ip6tables", "0"},
		{"net.bridge.bridge-nf-call-arptables", "0"},
	} {
		if err := h.SetSysctl(s[0], s[1]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// configure gives an interface of the host its MTU and addresses and sets it up.
func (h *Host) configure(iface string, p Port) error {
	link, err := h.nl.LinkByName(iface)
	if err != nil {
		return err
	}
	if err := errors.Join(h.nl.LinkSetMTU(link, p.MTU), h.nl.LinkSetUp(link)); err != nil {
		return err
	}
	for _, a := range p.Addrs {
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: a.Addr().AsSlice(), Mask: ipNet(a).Mask}}
		if a.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := h.nl.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("address %v: %w", a, err)
		}
		if !slices.Contains(h.addrs, a.Addr()) {
			h.addrs = append(h.addrs, a.Addr())
		}
	}
	return nil
}

// awaitIPv6 returns when the interface's IPv6 addresses work. The kernel adds their
// routes later, from a work queue, and says nothing of it to whoever added them.
func (h *Host) awaitIPv6(iface string) error {
	link, err := h.nl.LinkByName(iface)
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(ipv6Limit); ; time.Sleep(time.Millisecond) {
		addrs, err := h.nl.AddrList(link, netlink.FAMILY_V6)
		if err != nil {
			return err
		}
		local := &netlink.Route{Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, LinkIndex: link.Attrs().Index}
		routes, err := h.nl.RouteListFiltered(netlink.FAMILY_V6, local,
			netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE|netlink.RT_FILTER_OIF)
		if err != nil || len(routes) >= len(addrs) {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d of %d IPv6 addresses of %s work after %v", len(routes), len(addrs), iface, ipv6Limit)
		}
	}
}

// ipv6Limit is far more than a kernel ever needed.
const ipv6Limit = 10 * time.Second

// awaitCarrier makes the kernel take note of an interface's carrier now. It would
// do so by itself within a second, and drop all packets until then.
func (h *Host) awaitCarrier(iface string) error {
	return h.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		// Asking ethtool for the link state handles the pending event first.
		value := struct{ cmd, data uint32 }{cmd: unix.ETHTOOL_GLINK}
		req := struct {
			name [unix.IFNAMSIZ]byte
			data unsafe.Pointer
			_    [16]byte // the rest of the kernel's union, at most
		}{data: unsafe.Pointer(&value)}
		copy(req.name[:unix.IFNAMSIZ-1], iface)
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
		if errno != 0 {
			return fmt.Errorf("link state of %s: %w", iface, errno)
		}
		if value.data == 0 {
			return fmt.Errorf("%s has no carrier", iface)
		}
		return nil
	})
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Masked().Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// kill ends the host's processes and returns when they have ended. Those that
// their starter has waited for are left alone.
func (h *Host) kill() {
	h.mu.Lock()
	for _, p := range h.children {
		_ = p.Kill() // the only error is that it has ended
	}
	h.mu.Unlock()
	h.waiters.Wait()
}

// release closes what keeps the namespace open in this process.
func (h *Host) release() error {
	if h.nl != nil {
		h.nl.Close()
	}
	return h.ns.Close()
}

// remove closes the namespace and takes its name away.
func (h *Host) remove() error { return errors.Join(h.release(), removeNamespace(h.netns)) }
