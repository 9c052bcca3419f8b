package netstack

import (
	"errors"
	"fmt"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

// Sizes of TCP's buffers in bytes. The default fills a link in memory, where a
// round trip takes far less than a millisecond; a test has hundreds of
// connections, so the maximum is moderate.
const (
	minBuffer     = 4 << 10
	defaultBuffer = 256 << 10
	maxBuffer     = 1 << 20
)

// newStack makes a stack with two interfaces and the host's own addresses.
func newStack(c Config, wire, alias *nic) (*stack.Stack, error) {
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6},
		// With HandleLocal the stack would serve its own connections to an alias
		// itself, which belong to the alias's owner.
		HandleLocal: false,
	})
	if err := setUp(s, c, wire, alias); err != nil {
		s.Close()
		s.Wait()
		return nil, err
	}
	return s, nil
}

func setUp(s *stack.Stack, c Config, wire, alias *nic) error {
	if err := setTCP(s, c); err != nil {
		return err
	}
	for id, ep := range map[tcpip.NICID]*nic{wireNIC: wire, tunNIC: alias} {
		if err := s.CreateNIC(id, ep); err != nil {
			return c.errorf("interface %d: %s", id, err)
		}
	}
	for _, a := range c.Addrs {
		if err := addAddress(s, wireNIC, a, stack.CanBePrimaryEndpoint); err != nil {
			return c.errorf("Config.Addrs: %v: %w", a, err)
		}
	}
	// A connection is answered through the interface it came in by; those that
	// start here take the first route for which it has an address. So aliases are
	// answered with the smaller MTU, and everything else is as if there were none.
	s.SetRouteTable([]tcpip.Route{
		{Destination: header.IPv4EmptySubnet, NIC: wireNIC},
		{Destination: header.IPv6EmptySubnet, NIC: wireNIC},
		{Destination: header.IPv4EmptySubnet, NIC: tunNIC},
		{Destination: header.IPv6EmptySubnet, NIC: tunNIC},
	})
	return nil
}

// setTCP sets TCP up as Linux does where gVisor's defaults differ, but for congestion
// control, which stays Reno. Acknowledgements can take gVisor's CUBIC down to a window
// of no packets, and the sender then stops for good, without a timer: after HyStart it
// has no maximum to aim at, only its estimate of what Reno would do, which falls as
// round trips get longer. A busy machine is enough (google/gvisor#13958).
func setTCP(s *stack.Stack, c Config) error {
	sack := tcpip.TCPSACKEnabled(true)
	moderate := tcpip.TCPModerateReceiveBufferOption(true)
	wait := tcpip.TCPTimeWaitTimeoutOption(c.TimeWait)
	reuse := tcpip.TCPTimeWaitReuseGlobal
	for _, o := range []tcpip.SettableTransportProtocolOption{
		&sack, &moderate, &wait, &reuse,
		&tcpip.TCPSendBufferSizeRangeOption{Min: minBuffer, Default: defaultBuffer, Max: maxBuffer},
		&tcpip.TCPReceiveBufferSizeRangeOption{Min: minBuffer, Default: defaultBuffer, Max: maxBuffer},
	} {
		if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			return fmt.Errorf("netstack: TCP option %T: %s", o, err)
		}
	}
	return nil
}

// addAddress gives an interface an address.
func addAddress(s *stack.Stack, id tcpip.NICID, p netip.Prefix, peb stack.PrimaryEndpointBehavior) error {
	err := s.AddProtocolAddress(id, tcpip.ProtocolAddress{
		Protocol: protocolOf(p.Addr()),
		AddressWithPrefix: tcpip.AddressWithPrefix{
			Address:   tcpip.AddrFromSlice(p.Addr().AsSlice()),
			PrefixLen: p.Bits(),
		},
	}, stack.AddressProperties{PEB: peb})
	if err != nil {
		return errors.New(err.String())
	}
	return nil
}

func protocolOf(a netip.Addr) tcpip.NetworkProtocolNumber {
	if a.Is4() {
		return header.IPv4ProtocolNumber
	}
	return header.IPv6ProtocolNumber
}
