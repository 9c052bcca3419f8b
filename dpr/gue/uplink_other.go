//go:build !linux

package gue

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	"github.com/carom-dpr/carom/dpr"
)

var errUnsupported = fmt.Errorf("gue: an uplink of UDP sockets needs Linux, and this is %s: %w",
	runtime.GOOS, errors.ErrUnsupported)

// Uplink is a tunnel to the peers over UDP sockets. This system has none.
type Uplink struct {
	// Queues are the receive queues: none.
	Queues []*Queue
}

// Queue is one receive queue of an uplink.
type Queue struct{}

// Open returns an error that matches errors.ErrUnsupported.
func Open(cfg Config) (*Uplink, error) {
	if _, err := cfg.withDefaults(); err != nil {
		return nil, err
	}
	return nil, errUnsupported
}

// SetPeers returns an error.
func (u *Uplink) SetPeers([]Peer) error { return errUnsupported }

// SetKeys returns an error.
func (u *Uplink) SetKeys(...Key) error { return errUnsupported }

// Stats returns zeros.
func (u *Uplink) Stats() Stats { return Stats{} }

// Overhead is what an uplink without keys adds to a packet to the address.
func (u *Uplink) Overhead(to netip.Addr) int { return Overhead(!to.Unmap().Is4(), false) }

// MTU returns an error.
func (u *Uplink) MTU(netip.Addr) (int, error) { return 0, errUnsupported }

// Control returns an error.
func (u *Uplink) Control(dpr.PeerID, []byte) error { return errUnsupported }

// Close does nothing.
func (u *Uplink) Close() error { return nil }

// Read returns an error.
func (q *Queue) Read([]dpr.Packet) (int, error) { return 0, errUnsupported }

// Write returns an error.
func (q *Queue) Write([]dpr.Packet) (int, error) { return 0, errUnsupported }

// Close does nothing.
func (q *Queue) Close() error { return nil }

var _ dpr.Device = (*Queue)(nil)
