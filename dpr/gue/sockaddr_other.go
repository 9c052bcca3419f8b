//go:build !linux

package gue

import "net/netip"

// sockaddr is the kernel's form of a peer's address; only Linux needs it.
type sockaddr struct{}

func newSockaddr(netip.AddrPort) sockaddr { return sockaddr{} }
