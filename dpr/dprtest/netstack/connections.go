package netstack

import (
	"net/netip"
	"slices"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// Connected reports whether the stack has a socket for a TCP connection, in a state
// other than LISTEN and TIME_WAIT.
func (h *Host) Connected(local, remote netip.AddrPort) bool {
	own, other := fullAddress(local), fullAddress(remote)
	return h.connected(protocolOf(local.Addr().Unmap()), stack.TransportEndpointID{
		LocalAddress: own.Addr, LocalPort: own.Port, RemoteAddress: other.Addr, RemotePort: other.Port,
	})
}

func (h *Host) connected(proto tcpip.NetworkProtocolNumber, id stack.TransportEndpointID) bool {
	ep, ok := h.stack.FindTransportEndpoint(proto, header.TCPProtocolNumber, id, wireNIC).(tcpip.Endpoint)
	if !ok {
		return false
	}
	switch tcp.EndpointState(ep.State()) {
	case tcp.StateListen, tcp.StateTimeWait:
		return false
	}
	return true
}

// Abort ends the TCP connections whose own address is one of those: the other ends get
// a reset, and the sockets an error. It returns how many they were.
func (h *Host) Abort(local []netip.Addr) (n int) {
	for _, e := range h.stack.RegisteredEndpoints() {
		ep, ok := e.(*tcp.Endpoint)
		if !ok || tcp.EndpointState(ep.State()) == tcp.StateTimeWait {
			continue
		}
		id := ep.Info().(*stack.TransportEndpointInfo).ID
		own, _ := netip.AddrFromSlice(id.LocalAddress.AsSlice())
		if id.RemotePort != 0 && slices.Contains(local, own) {
			ep.Abort()
			n++
		}
	}
	return n
}
