//go:build !linux

package ipip

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	"github.com/carom-dpr/carom/dpr"
)

var errUnsupported = fmt.Errorf("ipip: raw sockets as this uplink needs them are Linux's, and this is %s: %w",
	runtime.GOOS, errors.ErrUnsupported)

// Uplink is a tunnel to the peers over raw sockets. This system has none.
type Uplink struct {
	// Queues is empty.
	Queues []*Queue
}

// Queue receives from the peers.
type Queue struct{}

// Open returns an error that matches errors.ErrUnsupported.
func Open(cfg Config) (*Uplink, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return nil, errUnsupported
}

// SetPeers returns an error.
func (u *Uplink) SetPeers([]Peer) error { return errUnsupported }

// Stats returns zeros.
func (u *Uplink) Stats() Stats { return Stats{} }

// MTU returns an error.
func (u *Uplink) MTU(netip.Addr) (int, error) { return 0, errUnsupported }

// Write returns an error.
func (u *Uplink) Write([]dpr.Packet) (int, error) { return 0, errUnsupported }

// Close does nothing.
func (u *Uplink) Close() error { return nil }

// Read returns an error.
func (q *Queue) Read([]dpr.Packet) (int, error) { return 0, errUnsupported }

// Write returns an error.
func (q *Queue) Write([]dpr.Packet) (int, error) { return 0, errUnsupported }

// Close does nothing.
func (q *Queue) Close() error { return nil }

var _ dpr.Device = (*Queue)(nil)
