package tun

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/internal/nonblock"
)

const device = "/dev/net/tun"

// Open creates an interface in the network namespace of the calling thread. It
// needs CAP_NET_ADMIN there. On an error nothing is left behind.
func Open(cfg Config) (*Interface, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	of := &offloads{name: cfg.Name, log: cfg.Log, write: nonblock.Write}
	i := &Interface{}
	for range cfg.Queues {
		q, err := openQueue(cfg, of)
		if err != nil {
			i.Close()
			return nil, err
		}
		i.Queues = append(i.Queues, q)
	}
	i.Name = of.name
	if err := i.setUp(cfg); err != nil {
		i.Close()
		return nil, err
	}
	return i, nil
}

// openQueue attaches one queue to the interface of.name. The first creates the
// interface and stores the name that the kernel gave it.
func openQueue(cfg Config, of *offloads) (*Queue, error) {
	fd, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("tun: %s: %w%s", device, err, remedy(err))
	}
	if err := attach(fd, cfg, of); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return newQueue(fd, of)
}

func attach(fd int, cfg Config, of *offloads) error {
	req, err := unix.NewIfreq(of.name)
	if err != nil {
		return fmt.Errorf("tun: Name %q: %w", of.name, err)
	}
	req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_MULTI_QUEUE)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return fmt.Errorf("tun: %s: %w%s", of.creating(), err, remedy(err))
	}
	of.name = req.Name()
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, vnetLen); err != nil {
		return fmt.Errorf("tun: interface %q: header size: %w", of.name, err)
	}
	return setOffload(fd, cfg.NoOffload, of)
}

// creating says what is being made: before the kernel has numbered it, an interface has
// a pattern for a name.
func (of *offloads) creating() string {
	if strings.Contains(of.name, "%d") {
		return "create an interface"
	}
	return fmt.Sprintf("create interface %q", of.name)
}

// setOffload agrees with the kernel on the offloads, the most that it has.
func setOffload(fd int, none bool, of *offloads) error {
	const tcp = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6 | unix.TUN_F_TSO_ECN
	const udp = unix.TUN_F_USO4 | unix.TUN_F_USO6 // Linux 6.2
	if none {
		of.refused.Store(allTypes)
		return offload(fd, of, 0)
	}
	err := offload(fd, of, tcp|udp)
	if errors.Is(err, unix.EINVAL) {
		of.refused.Store(1 << dpr.GSOUDP)
		err = offload(fd, of, tcp)
	}
	return err
}

func offload(fd int, of *offloads, flags int) error {
	// The flags are the argument itself, not behind a pointer.
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, flags); err != nil {
		return fmt.Errorf("tun: interface %q: offload %#x: %w", of.name, flags, err)
	}
	return nil
}

// setUp finds the interface's index, sets its MTU and, if asked, brings it up.
func (i *Interface) setUp(cfg Config) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("tun: interface %q: %w", i.Name, err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq(i.Name)
	if err != nil {
		return fmt.Errorf("tun: interface %q: %w", i.Name, err)
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, req); err != nil {
		return fmt.Errorf("tun: interface %q: index: %w", i.Name, err)
	}
	i.Index = int(req.Uint32())
	req.SetUint32(uint32(cfg.MTU))
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFMTU, req); err != nil {
		return fmt.Errorf("tun: interface %q: MTU %d: %w", i.Name, cfg.MTU, err)
	}
	if !cfg.Up {
		return nil
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req); err != nil {
		return fmt.Errorf("tun: interface %q: flags: %w", i.Name, err)
	}
	req.SetUint16(req.Uint16() | unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req); err != nil {
		return fmt.Errorf("tun: interface %q: up: %w", i.Name, err)
	}
	return nil
}

// remedy says what to do about an error of the kernel, where that is known.
func remedy(err error) string {
	switch {
	case errors.Is(err, unix.EPERM):
		return ": run as root or with CAP_NET_ADMIN"
	case errors.Is(err, unix.EACCES):
		return ": run as root, or give this user the right to open it"
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV):
		return ": load the kernel's module (modprobe tun), or give the container the device"
	case errors.Is(err, unix.EBUSY):
		return ": another process has this interface, choose another Name"
	case errors.Is(err, unix.EINVAL):
		return ": an interface of this name and another kind exists, choose another Name"
	}
	return ""
}
