package loadinfo

import (
	"fmt"
	"net"
	"net/netip"
)

// receiveBuffer is the socket buffer asked for, in bytes: the reports of some
// thousand hosts that come at once. The system may give less.
const receiveBuffer = 1 << 20

// Listen opens a socket for reports by broadcast or to peers. With the unspecified
// address it hears both; a socket bound to one address hears no broadcast on
// Linux.
func Listen(local netip.AddrPort) (*net.UDPConn, error) {
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(local))
	if err != nil {
		return nil, fmt.Errorf("loadinfo: listen for reports on %v: %w", local, err)
	}
	_ = conn.SetReadBuffer(receiveBuffer) // what we get will do
	return conn, nil
}

// ListenGroup opens a socket for reports to a multicast group on the named
// interface; they stay on its network (hop limit 1).
func ListenGroup(group netip.AddrPort, ifname string) (*net.UDPConn, error) {
	if !group.Addr().IsMulticast() {
		return nil, fmt.Errorf("loadinfo: %v is not a multicast group", group)
	}
	ifi, err := net.InterfaceByName(ifname)
	if err != nil {
		return nil, fmt.Errorf("loadinfo: interface %q for group %v: %w", ifname, group, err)
	}
	conn, err := net.ListenMulticastUDP("udp", ifi, net.UDPAddrFromAddrPort(group))
	if err != nil {
		return nil, fmt.Errorf("loadinfo: join group %v on %s: %w", group, ifname, err)
	}
	_ = conn.SetReadBuffer(receiveBuffer)
	return conn, nil
}
