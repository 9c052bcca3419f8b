package node

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// warnUnsuited says in the log what this host's kernel has against the plain servers,
// though nothing is wrong with the configuration as such.
func (l *linux) warnUnsuited() {
	if len(l.cfg.Servers) == 0 {
		return
	}
	first, last := l.cfg.NAT.Ports()
	if text := sharedPorts(first, last, kernelSetting("ip_local_port_range"), kernelSetting("ip_local_reserved_ports")); text != "" {
		l.cfg.Logger.Warn("node: " + text)
	}
	here, err := net.InterfaceAddrs()
	if err != nil {
		return // then nothing is known of broadcast addresses
	}
	for i := range l.cfg.Servers {
		for name, list := range l.cfg.Servers[i].Services {
			for _, at := range list {
				if isBroadcast(at.Addr(), here) {
					l.cfg.Logger.Warn("node: a server is at the broadcast address of a network of this host, where none can answer: give the server's own",
						"server", l.cfg.Servers[i].ID, "service", name, "at", at)
				}
			}
		}
	}
}

// kernelSetting returns a setting of IPv4, or nothing where there is none.
func kernelSetting(name string) string {
	text, _ := os.ReadFile("/proc/sys/net/ipv4/" + name)
	return strings.TrimSpace(string(text))
}

// sharedPorts returns what is to be said if some ports from first to last are among those
// that the kernel gives its own connections: the range local but for the list reserved.
func sharedPorts(first, last uint16, local, reserved string) string {
	from, to, ok := portRange(strings.Join(strings.Fields(local), "-"))
	if !ok {
		return ""
	}
	shared := map[int]bool{}
	for p := max(from, int(first)); p <= min(to, int(last)); p++ {
		shared[p] = true
	}
	for _, part := range strings.Split(reserved, ",") {
		if from, to, ok := portRange(part); ok {
			for p := from; p <= to; p++ {
				delete(shared, p)
			}
		}
	}
	if len(shared) == 0 {
		return ""
	}
	remedy := strings.Trim(fmt.Sprintf("%s,%d-%d", reserved, first, last), ",")
	return fmt.Sprintf("connections to Servers leave from ports %d to %d (NAT, nat_ports), of which the kernel gives %d to other connections of this host"+
		" (net.ipv4.ip_local_port_range is %d to %d), and those would fail: choose other ports for Servers, or set net.ipv4.ip_local_reserved_ports=%s",
		first, last, len(shared), from, to, remedy)
}

// portRange reads a port, or a range such as 1-2.
func portRange(text string) (from, to int, ok bool) {
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		last = first
	}
	from, errFrom := strconv.Atoi(first)
	to, errTo := strconv.Atoi(last)
	return from, to, errFrom == nil && errTo == nil
}

// isBroadcast reports whether an address is the last one of an IPv4 network that this
// host has an address in.
func isBroadcast(a netip.Addr, here []net.Addr) bool {
	a = a.Unmap()
	for _, h := range here {
		n, ok := h.(*net.IPNet)
		if !ok || !a.Is4() || n.IP.To4() == nil || !n.Contains(a.AsSlice()) {
			continue
		}
		ones, bits := n.Mask.Size()
		hosts := uint32(1)<<(bits-ones) - 1
		if hosts > 1 && binary.BigEndian.Uint32(a.AsSlice())&hosts == hosts { // RFC 3021 has none in a /31
			return true
		}
	}
	return false
}
