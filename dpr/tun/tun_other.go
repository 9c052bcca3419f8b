//go:build !linux

package tun

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/carom-dpr/carom/dpr"
)

// Queue is one queue of an interface. This system has none.
type Queue struct{}

var errUnsupported = fmt.Errorf("tun: needs Linux, and this is %s: wrap another TUN with dpr's adapters: %w",
	runtime.GOOS, errors.ErrUnsupported)

// Open returns an error that matches errors.ErrUnsupported.
func Open(cfg Config) (*Interface, error) {
	if _, err := cfg.withDefaults(); err != nil {
		return nil, err
	}
	return nil, errUnsupported
}

// Read returns an error.
func (q *Queue) Read([]dpr.Packet) (int, error) { return 0, errUnsupported }

// Write returns an error.
func (q *Queue) Write([]dpr.Packet) (int, error) { return 0, errUnsupported }

// Close does nothing.
func (q *Queue) Close() error { return nil }

// Stats returns zeros.
func (q *Queue) Stats() Stats { return Stats{} }
