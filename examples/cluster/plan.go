package main

import (
	"net/netip"
	"time"
)

// The plan that both kinds of cluster follow.
const (
	serviceName = "web"
	servicePort = 80
	reportPort  = 6082
	// maxClients is the number of client hosts: enough for several addresses, few
	// enough for a small machine.
	maxClients = 4
	// reportEvery is how often counts are looked at.
	reportEvery = 100 * time.Millisecond
	// startTimeout is how long a part may take to be ready on a busy machine.
	startTimeout = 30 * time.Second
)

// group tells the addresses of the plan apart; all lie in one network.
type group byte

const (
	hosts group = iota + 1
	clients
	tunnels
)

// address returns the i-th address of a group: of a range for benchmarks (RFC 2544)
// or documentation (RFC 3849).
func address(ipv6 bool, g group, i int) netip.Addr {
	if ipv6 {
		a := netip.MustParseAddr("2001:db8::").As16()
		a[13], a[15] = byte(g), byte(i+1)
		return netip.AddrFrom16(a)
	}
	return netip.AddrFrom4([4]byte{198, 18, byte(g), byte(i + 1)})
}

// prefix returns the address with the length of the plan's network.
func prefix(a netip.Addr) netip.Prefix {
	if a.Is6() {
		return netip.PrefixFrom(a, 64)
	}
	return netip.PrefixFrom(a, 16)
}

// targets returns whom the i-th client dials, in turn; each begins with another
// host.
func (o *options) targets(i int) []netip.AddrPort {
	n := o.entries()
	list := make([]netip.AddrPort, n)
	for k := range list {
		list[k] = netip.AddrPortFrom(address(o.IPv6, hosts, (k+i)%n), servicePort)
	}
	return list
}

// nameServers returns whom the i-th client asks for the cluster's name; none without
// -dns.
func (o *options) nameServers(i int) (list []netip.AddrPort) {
	if !o.DNS {
		return nil
	}
	for _, t := range o.targets(i) {
		list = append(list, netip.AddrPortFrom(t.Addr(), dnsPort))
	}
	return list
}

// share returns the i-th of n nearly equal parts of total.
func share(total, n, i int) int { return total*(i+1)/n - total*i/n }

// A dial is a client's port and the address that it dialled from there. An answer
// to the port must come from such an address; from which of several, when a port was
// used again, cannot be told, since a late answer to an earlier dial is right.
type dial struct {
	port uint16
	addr netip.Addr
}
