//go:build !linux

package tunnel

import "net/netip"

// A Sockaddr is the kernel's form of a peer's address; only Linux needs it.
type Sockaddr struct{}

// NewSockaddr returns the kernel's form of an address.
func NewSockaddr(netip.AddrPort) Sockaddr { return Sockaddr{} }
