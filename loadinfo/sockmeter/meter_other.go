//go:build !linux

package sockmeter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
)

var errOther = fmt.Errorf("sockmeter: counting the kernel's sockets needs Linux; count in the listener instead: %w", errors.ErrUnsupported)

// A Meter cannot be had on this system.
type Meter struct{}

// Open returns an error that matches [errors.ErrUnsupported].
func Open(c Config) (*Meter, error) {
	if _, err := c.withDefaults(); err != nil {
		return nil, err
	}
	return nil, errOther
}

// Mode returns Poll.
func (*Meter) Mode() Mode { return Poll }

// Counter returns nil.
func (*Meter) Counter(string) *atomic.Int32 { return nil }

// Opened returns nil.
func (*Meter) Opened(string) *atomic.Uint32 { return nil }

// SetServices returns an error that matches [errors.ErrUnsupported].
func (*Meter) SetServices([]Service) error { return errOther }

// Listening returns an error that matches [errors.ErrUnsupported].
func (*Meter) Listening(netip.Addr, uint16) (bool, error) { return false, errOther }

// Audit returns an error that matches [errors.ErrUnsupported].
func (*Meter) Audit() (int, error) { return 0, errOther }

// Run returns an error that matches [errors.ErrUnsupported].
func (*Meter) Run(context.Context) error { return errOther }

// Close does nothing.
func (*Meter) Close() error { return nil }
