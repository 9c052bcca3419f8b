package netstack

import (
	"context"
	"net"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// Listen listens for TCP connections to the port on the wildcard address of both
// families: to the host's own addresses and to aliases. Port 0 picks one.
func (h *Host) Listen(port uint16) (net.Listener, error) {
	l, err := gonet.ListenTCP(h.stack, tcpip.FullAddress{Port: port}, header.IPv6ProtocolNumber)
	if err != nil {
		return nil, h.cfg.errorf("TCP port %d: %w", port, err)
	}
	return l, nil
}

// ListenPacket returns a UDP socket that is bound to the address and port. The
// unspecified address of a family takes datagrams to any of the host's addresses
// and aliases; as on Linux, it answers from the host's own address, whichever
// was asked.
func (h *Host) ListenPacket(local netip.AddrPort) (net.PacketConn, error) {
	at := fullAddress(local)
	if local.Addr().IsUnspecified() {
		at.Addr = tcpip.Address{}
	}
	c, err := gonet.DialUDP(h.stack, &at, nil, protocolOf(local.Addr()))
	if err != nil {
		return nil, h.cfg.errorf("UDP %v: %w", local, err)
	}
	return c, nil
}

// Dial opens a TCP connection to remote from local. The zero local stands for
// the host's first address of the family and any port; a local port of 0 for any
// port. It blocks until the connection is established or refused or the context
// is done.
func (h *Host) Dial(ctx context.Context, local, remote netip.AddrPort) (net.Conn, error) {
	var bind tcpip.FullAddress
	if local.Addr().IsValid() {
		bind = fullAddress(local)
	}
	c, err := gonet.DialTCPWithBind(ctx, h.stack, bind, fullAddress(remote), protocolOf(remote.Addr().Unmap()))
	if err != nil {
		return nil, h.cfg.errorf("dial %v: %w", remote, err)
	}
	return c, nil
}

// DialContext is [Host.Dial] in the form that [net/http.Transport] takes. The
// network is tcp, tcp4 or tcp6; the address is an IP address and a port.
func (h *Host) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	remote, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, h.cfg.errorf("dial: %w", err)
	}
	switch network {
	case "tcp", "tcp4", "tcp6":
		return h.Dial(ctx, netip.AddrPort{}, remote)
	}
	return nil, h.cfg.errorf("dial %s: %w", address, net.UnknownNetworkError(network))
}

func fullAddress(a netip.AddrPort) tcpip.FullAddress {
	return tcpip.FullAddress{Addr: tcpip.AddrFromSlice(a.Addr().Unmap().AsSlice()), Port: a.Port()}
}
