package hostnet

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Lack is something that this process may not do or this kernel cannot do.
type Lack struct {
	// Capability names what is missing.
	Capability string
	// Err says how it showed.
	Err error
	// Without says what does not work then, and what still does.
	Without string
}

// Error returns everything that the Lack says, in one line.
func (l *Lack) Error() string {
	return fmt.Sprintf("hostnet: %s: %v; without it %s", l.Capability, l.Err, l.Without)
}

// Unwrap returns Err.
func (l *Lack) Unwrap() error { return l.Err }

// Probe tries what this package needs, without changing anything, and returns nil
// or a [Lack] for each thing that is missing, joined by [errors.Join].
func Probe() error {
	var errs []error
	for _, p := range []struct {
		capability string
		try        func() error
		without    string
	}{
		{"BPF program for tc (CAP_BPF and CAP_NET_ADMIN, Linux 5.8)", probeProgram,
			"no packet is captured, so this host redirects nothing; it can still serve what peers redirect to it"},
		{"routing rules and addresses (CAP_NET_ADMIN)", probeAdmin,
			"nothing can be captured nor served for peers"},
		{"writable kernel settings in /proc/sys/net", probeSettings,
			"packets that come from the TUN are dropped by reverse path filtering; mount /proc/sys writable"},
		{"TUN interfaces (/dev/net/tun)", probeTUN,
			"there is no way to the engine"},
		{"raw sockets (CAP_NET_RAW)", probeRaw,
			"the engine's own ICMP errors and resets are not sent; all else works"},
	} {
		if err := p.try(); err != nil {
			errs = append(errs, &Lack{p.capability, err, p.without})
		}
	}
	return errors.Join(errs...)
}

func probeProgram() error {
	c, err := loadProgram(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "probe"}}, defaultSYNRate)
	if err != nil {
		return err
	}
	defer c.objects.Close()
	// There is no such interface, so a kernel with TCX says that, and nothing else
	// happens. One without it has clsact.
	_, err = link.AttachTCX(link.TCXOptions{
		Interface: 1<<31 - 1, Program: c.objects.Capture, Attach: ebpf.AttachTCXIngress,
	})
	return ignore(err, unix.ENODEV, ebpf.ErrNotSupported)
}

func probeAdmin() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return err
	}
	if data[0].Effective&(1<<unix.CAP_NET_ADMIN) == 0 {
		return unix.EPERM
	}
	return nil
}

// probeSettings asks for what this process may do, not for what its user may.
func probeSettings() error {
	return unix.Faccessat(unix.AT_FDCWD, ipv4Setting("lo", "rp_filter"), unix.W_OK, unix.AT_EACCESS)
}

func probeTUN() error {
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	switch {
	case err == nil:
		return f.Close()
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w: run as root, or give this user the right to open it", err)
	}
	return fmt.Errorf("%w: load the kernel's module (modprobe tun), or give the container the device", err)
}

func probeRaw() error {
	s, err := NewRawSender()
	if err != nil {
		return err
	}
	return s.Close()
}
