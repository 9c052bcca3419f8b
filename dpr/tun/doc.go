// Package tun carries packets between the engine and the host's kernel through a
// Linux TUN interface.
//
// Every packet travels behind a virtio_net_hdr, so that a TCP super-frame of 64
// KiB and a checksum that the sender left to the hardware pass through in one
// system call, both ways; on one packet per call a TUN is ten times slower. An
// interface has one [Queue] per reader, among which the kernel spreads flows.
// The interface disappears with its last queue.
//
// On other systems [Open] returns an error; [dpr.Device] has adapters for the
// TUN packages of others.
package tun

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/carom-dpr/carom/dpr"
)

// ErrDown means that the interface is not up: the kernel takes no packets from it.
var ErrDown = errors.New("interface is down")

// ErrGone means that somebody deleted the interface.
var ErrGone = errors.New("interface was deleted")

const (
	defaultMTU  = 1500
	minMTU      = 68    // RFC 791: what every IPv4 link must carry
	maxMTU      = 65535 // the kernel's limit for a TUN
	maxQueues   = 256   // MAX_TAP_QUEUES of the kernel
	maxNameSize = 15    // IFNAMSIZ without its terminating zero
)

// Config says what interface to create.
type Config struct {
	// Name is the interface's name, at most 15 bytes. A %d in it stands for the
	// first free number. The default is "carom%d".
	Name string
	// MTU is the interface's MTU in bytes; the default is 1500. It limits what the
	// kernel sends into the interface, not what may be written to it.
	MTU int
	// Queues is the number of queues; the default is 1. More help only if as many
	// processors are free to serve them.
	Queues int
	// NoOffload makes the kernel segment super-frames and complete checksums before
	// it hands packets over, and makes Write do the same. It costs most of the
	// throughput; it is meant for kernels whose offload is broken.
	NoOffload bool
	// Up brings the interface up. Without it the caller does, once its addresses
	// and routes are in place; until then Write returns [ErrDown].
	Up bool
	// Log receives the one message there is: that the kernel refused an offload it
	// had agreed to. The default is slog.Default.
	Log *slog.Logger
}

// withDefaults returns the configuration with its zero fields filled in, or an
// error that names the field that cannot be.
func (c Config) withDefaults() (Config, error) {
	if c.Name == "" {
		c.Name = "carom%d"
	}
	if c.MTU == 0 {
		c.MTU = defaultMTU
	}
	if c.Queues == 0 {
		c.Queues = 1
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	switch {
	case len(c.Name) > maxNameSize:
		return c, fmt.Errorf("tun: Name %q is longer than the %d bytes of an interface name", c.Name, maxNameSize)
	case c.MTU < minMTU || c.MTU > maxMTU:
		return c, fmt.Errorf("tun: MTU %d is not within %d to %d", c.MTU, minMTU, maxMTU)
	case c.Queues < 0 || c.Queues > maxQueues:
		return c, fmt.Errorf("tun: Queues %d is not within 1 to %d", c.Queues, maxQueues)
	}
	return c, nil
}

// Interface is a TUN interface with its queues.
type Interface struct {
	// Name is the name that the kernel gave the interface.
	Name string
	// Index is the kernel's number for it.
	Index int
	// Queues are the interface's queues. Each is a [dpr.Device] of its own.
	Queues []*Queue
}

// Close closes all queues, which removes the interface. It may be called more
// than once and wakes every Read that waits.
func (i *Interface) Close() error {
	var errs []error
	for _, q := range i.Queues {
		errs = append(errs, q.Close())
	}
	return errors.Join(errs...)
}

// Stats counts packets of a queue, or of an interface, since it was opened.
type Stats struct {
	// Read and Written are packets that passed, a super-frame counting as one.
	Read, Written uint64
	// Cut are packets that were longer than the buffer they were read into, and
	// Malformed those that the kernel should not have sent. Both were dropped.
	Cut, Malformed uint64
	// Refused are packets that the kernel would not take, and Headless those that
	// had no room before them for the virtio_net_hdr. Both were dropped.
	Refused, Headless uint64
	// Split are super-frames and partial checksums that Write had to finish itself,
	// because the kernel does not take them.
	Split uint64
}

// Stats returns the sum over all queues.
func (i *Interface) Stats() Stats {
	var sum Stats
	for _, q := range i.Queues {
		s := q.Stats()
		sum.Read += s.Read
		sum.Written += s.Written
		sum.Cut += s.Cut
		sum.Malformed += s.Malformed
		sum.Refused += s.Refused
		sum.Headless += s.Headless
		sum.Split += s.Split
	}
	return sum
}

var _ dpr.Device = (*Queue)(nil)
