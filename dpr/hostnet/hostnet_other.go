//go:build !linux

package hostnet

import (
	"context"
	"errors"
	"net/netip"

	"github.com/carom-dpr/carom/dpr"
)

var errLinux = errors.New("hostnet: works on Linux only")

// A Net cannot be had on this system.
type Net struct{}

// Open returns an error on this system.
func Open(Config) (*Net, error) { return nil, errLinux }

// Probe returns an error on this system.
func Probe() error { return errLinux }

// Beat does nothing on this system.
func (*Net) Beat() {}

// ByRouting returns false on this system.
func (*Net) ByRouting() bool { return false }

// SetServices returns an error on this system.
func (*Net) SetServices([]Service) error { return errLinux }

// SetAliases returns an error on this system.
func (*Net) SetAliases([]netip.Addr) error { return errLinux }

// Rewritten returns an error on this system.
func (*Net) Rewritten([]netip.Addr) ([][2]netip.AddrPort, error) { return nil, errLinux }

// Stats returns an error on this system.
func (*Net) Stats() (Stats, error) { return Stats{}, errLinux }

// Run returns an error on this system.
func (*Net) Run(context.Context) error { return errLinux }

// Close does nothing on this system.
func (*Net) Close() error { return nil }

// A RawSender cannot be had on this system.
type RawSender struct {
	// TooBig is never called on this system.
	TooBig func(p *dpr.Packet, mtu int)
}

// NewRawSender returns an error on this system.
func NewRawSender() (*RawSender, error) { return nil, errLinux }

// Write returns an error on this system.
func (*RawSender) Write([]dpr.Packet) (int, error) { return 0, errLinux }

// Dropped returns 0 on this system.
func (*RawSender) Dropped() uint64 { return 0 }

// Close does nothing on this system.
func (*RawSender) Close() error { return nil }
