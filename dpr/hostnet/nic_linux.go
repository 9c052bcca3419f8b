package hostnet

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// A nic is an interface that clients' packets arrive on. It is known by its name: one
// that is deleted and made again takes its predecessor's place.
type nic struct {
	name     string
	link     netlink.Link // nil while there is none of the name
	arp      setting      // arp_ignore; the kernel's file is gone as soon as the interface is
	settings []setting    // changed for capture by routing
	detach   func() error // ends the capture program there; nil without it
}

// find opens the interface of the name.
func (c *nic) find(nl *netlink.Handle) error {
	link, err := nl.LinkByName(c.name)
	if err != nil {
		return err
	}
	if c.arp, err = openSetting(ipv4Setting(c.name, "arp_ignore")); err != nil {
		return err
	}
	c.link = link
	return nil
}

// release takes back what was done to the interface, as far as it is there.
func (c *nic) release() error {
	var errs []error
	if c.detach != nil {
		errs = append(errs, c.detach())
	}
	for _, s := range slices.Backward(c.settings) {
		errs = append(errs, s.restore())
	}
	if c.link != nil {
		c.arp.file.Close()
	}
	c.link, c.settings, c.detach = nil, nil, nil
	return errors.Join(errs...)
}

// change sets a kernel setting of the interface until release.
func (c *nic) change(name, value string) error {
	s, err := openSetting(ipv4Setting(c.name, name))
	if err != nil {
		return err
	}
	c.settings = append(c.settings, s)
	return s.set(value)
}

// followNICs gives up interfaces that are gone and captures on those that have come
// back. The kernel took the capture program and the settings with the interface; rules
// that name it stay.
func (n *Net) followNICs() error {
	if n.closed {
		return nil
	}
	var errs []error
	for _, c := range n.nics {
		if c.link != nil {
			if _, err := c.arp.get(); !errors.Is(err, unix.ENOENT) {
				errs = append(errs, err)
				continue
			}
			n.cfg.Log.Warn("hostnet: the interface is gone, and nothing is captured on it until it is there again", "interface", c.name)
			_ = c.release() // what of? it is gone
		}
		errs = append(errs, n.resume(c))
	}
	return errors.Join(errs...)
}

// resume captures on an interface again, if it is there.
func (n *Net) resume(c *nic) error {
	err := n.inNamespace(func() error {
		err := c.find(n.nl)
		if err == nil {
			err = n.captureOn(c)
		}
		return err
	})
	if err == nil {
		n.cfg.Log.Info("hostnet: the interface is there again, and packets are captured on it", "interface", c.name)
		return nil
	}
	// It may have gone meanwhile.
	_ = c.release()
	if _, missing := n.nl.LinkByName(c.name); missing != nil {
		return nil
	}
	return fmt.Errorf("interface %s, which was made again: %w", c.name, err)
}

// captureOn has packets that arrive on an interface captured, if it is there and Open
// has come as far.
func (n *Net) captureOn(c *nic) (err error) {
	switch {
	case c.link == nil:
	case n.byRouting:
		return c.routeToTUN()
	case n.capture != nil:
		c.detach, err = n.capture.attach(n.nl, c.link)
	}
	return err
}

// inNamespace calls f on a thread of the network namespace that Open was called in: the
// paths of settings and the numbers of interfaces mean those of the thread.
func (n *Net) inNamespace(f func() error) error {
	runtime.LockOSThread()
	here, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("network namespace: %w", err)
	}
	defer here.Close()
	if here.Equal(n.home) {
		defer runtime.UnlockOSThread()
		return f()
	}
	if err := netns.Set(n.home); err != nil {
		runtime.UnlockOSThread()
		return os.NewSyscallError("setns", err)
	}
	defer func() {
		// A thread that cannot return stays locked, and ends with its goroutine.
		if netns.Set(here) == nil {
			runtime.UnlockOSThread()
		}
	}()
	return f()
}
