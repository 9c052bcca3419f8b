package node

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/lb"
	"github.com/carom-dpr/carom/loadinfo"
)

// What the fields of a Config may be at most.
const (
	minPeriod = loadinfo.DefaultMinInterval // a host sends no more reports than that
	maxPeriod = time.Minute                 // beyond, a dead host is noticed after ten minutes
	maxWeight = 1<<16 - 1                   // 16 bits of a report
	maxQueues = 256                         // the kernel's limit for a TUN
)

// validate returns an error that names the field that cannot be and the remedy. It
// is asked before anything is opened, and knows what the parts will refuse, so that
// errors speak of the fields of this package. Limits of the flow table are left to
// dpr, whose fields have the same names.
func (c *Config) validate() error {
	for _, check := range []func() error{c.validateSelf, c.validateNetwork, c.validateKeys, c.validateServices, c.validateServers} {
		if err := check(); err != nil {
			return fmt.Errorf("node: %w", err)
		}
	}
	return nil
}

func (c *Config) validateSelf() error {
	switch {
	case len(c.ID) > loadinfo.MaxID || !utf8.ValidString(c.ID):
		return fmt.Errorf("ID %q: give 1 to %d bytes of UTF-8", c.ID, loadinfo.MaxID)
	case !c.Addr.IsValid():
		return errors.New("Addr is missing: give the unicast address at which peers reach this host")
	case !unicast(c.Addr) || c.Addr.IsLoopback():
		return fmt.Errorf("Addr %v: give the unicast address at which peers reach this host", c.Addr)
	case c.CaptureByRouting && c.Addr.Unmap().Is6():
		return fmt.Errorf("Addr %v is IPv6, and CaptureByRouting takes IPv4 alone: give an IPv4 address, or leave it out", c.Addr)
	case c.Weight > maxWeight:
		return fmt.Errorf("Weight %d: give at most %d", c.Weight, maxWeight)
	case c.Period < minPeriod || c.Period > maxPeriod:
		return fmt.Errorf("Period %v: give %v to %v", c.Period, minPeriod, maxPeriod)
	case c.Queues < 0 || c.Queues > maxQueues:
		return fmt.Errorf("Queues %d: give 1 to %d", c.Queues, maxQueues)
	}
	return nil
}

// unicast reports whether other hosts can send to the address.
func unicast(a netip.Addr) bool {
	a = a.Unmap()
	oneLink := a.Is6() && a.IsLinkLocalUnicast() // which is nothing without a zone
	return a.IsValid() && a.Zone() == "" && !a.IsUnspecified() && !a.IsMulticast() && !oneLink
}

func (c *Config) validateNetwork() error {
	if int(c.Method) >= len(methodNames) {
		return fmt.Errorf("Method %d: give GUE or IPIP", c.Method)
	}
	if c.TunnelPort == c.ReportPort {
		return fmt.Errorf("TunnelPort and ReportPort are both %d: give different ports", c.TunnelPort)
	}
	for i, to := range c.Report {
		if !to.Addr().IsValid() || to.Addr().IsUnspecified() || to.Port() == 0 {
			return fmt.Errorf("Report[%d] is %v: give an address and a port to send reports to", i, to)
		}
		if c.Addr.Unmap().Is4() && to.Addr().Unmap().Is6() { // reports leave by a socket of Addr's family
			return fmt.Errorf("Report[%d] %v is IPv6 and Addr %v is not: give IPv4 addresses, or an Addr of IPv6", i, to, c.Addr)
		}
	}
	for i, p := range c.AliasPrefixes {
		if !p.IsValid() {
			return fmt.Errorf("AliasPrefixes[%d] is %v: give an address and a prefix length", i, p)
		}
	}
	return c.validateInterfaces()
}

func (c *Config) validateInterfaces() error {
	if c.Interface != "" && !isLinkName(c.Interface) {
		return fmt.Errorf("Interface %q: give the name of a network interface", c.Interface)
	}
	for i, name := range c.Interfaces {
		switch {
		case name == "":
			return fmt.Errorf("Interfaces[%d] is empty: give the name of a network interface", i)
		case !isLinkName(name):
			return fmt.Errorf("Interfaces[%d] %q: give the name of a network interface", i, name)
		case slices.Contains(c.Interfaces[:i], name):
			return fmt.Errorf("Interfaces[%d] %q is there twice: remove one", i, name)
		}
	}
	return nil
}

// maxLinkName is how long the name of an interface may be on Linux, in bytes:
// IFNAMSIZ less the zero byte.
const maxLinkName = 15

// isLinkName reports whether an interface can have the name.
func isLinkName(name string) bool {
	return len(name) <= maxLinkName && !strings.ContainsFunc(name, func(r rune) bool { return r == '/' || unicode.IsSpace(r) })
}

func (c *Config) validateKeys() error {
	if len(c.Keys) == 0 {
		return nil
	}
	if c.Method == IPIP {
		return errors.New("Method is ipip, which can not be authenticated: give no Keys, or another method")
	}
	if _, err := loadinfo.NewKeyring(c.Keys...); err != nil {
		return fmt.Errorf("Keys: %w", err)
	}
	return nil
}

func (c *Config) validateServices() error {
	switch n := len(c.Services); {
	case n == 0:
		return errors.New("Services is empty: give at least one")
	case n > loadinfo.MaxServices:
		return fmt.Errorf("Services: there are %d: give at most %d", n, loadinfo.MaxServices)
	}
	if n := len(c.dialled()); n > loadinfo.MaxDialled {
		return fmt.Errorf("Services: their Addrs are %d addresses: give at most %d", n, loadinfo.MaxDialled)
	}
	for i := range c.Services {
		err := c.validateService(&c.Services[i])
		for j := 0; err == nil && j < i; j++ {
			err = c.Services[i].conflict(&c.Services[j])
		}
		if err != nil {
			return fmt.Errorf("Services[%d] %q: %w", i, c.Services[i].Name, err)
		}
	}
	return nil
}

// maxServiceName is how long the name of a service may be, in bytes: as a label of DNS,
// and short enough for the lines of a log.
const maxServiceName = 63

func (c *Config) validateService(s *Service) error {
	switch {
	case s.Name == "":
		return errors.New("Name is empty: give the service a name")
	case len(s.Name) > maxServiceName || !utf8.ValidString(s.Name) || strings.ContainsFunc(s.Name, unicode.IsControl):
		return fmt.Errorf("Name: give 1 to %d bytes of UTF-8 without control characters", maxServiceName)
	case s.Proto != dpr.TCP && s.Proto != dpr.UDP:
		return fmt.Errorf("Proto %d: give TCP (6) or UDP (17)", s.Proto)
	case s.Port == 0:
		return errors.New("Port is 0: give the port that clients dial")
	case s.PortEnd != 0 && s.PortEnd < s.Port:
		return fmt.Errorf("PortEnd %d lies before Port %d: give the last port of a range, or 0", s.PortEnd, s.Port)
	case s.Reply > dpr.ReplyTunnelled:
		return fmt.Errorf("Reply %d: give ReplyDirect, ReplyRewritten or ReplyTunnelled", uint8(s.Reply))
	case s.Weight > maxWeight:
		return fmt.Errorf("Weight %d: give at most %d", s.Weight, maxWeight)
	case s.Proto == dpr.UDP && s.has(c.TunnelPort):
		return fmt.Errorf("TunnelPort %d is one of its ports: give others", c.TunnelPort)
	case s.Proto == dpr.UDP && s.has(c.ReportPort):
		return fmt.Errorf("ReportPort %d is one of its ports: give others", c.ReportPort)
	}
	if err := lb.Validate(s.Policy); err != nil {
		return fmt.Errorf("Policy: %w", err)
	}
	for i, a := range s.Addrs {
		if !unicast(a) {
			return fmt.Errorf("Addrs[%d] is %v: give a unicast address that is valid beyond one link", i, a)
		}
	}
	return nil
}

// has reports whether the port is one of the service's.
func (s *Service) has(port uint16) bool { return s.Port <= port && port <= max(s.Port, s.PortEnd) }

// conflict says why the services cannot both be. TCP connections are counted by
// port, whatever their address; datagrams are not.
func (s *Service) conflict(o *Service) error {
	port := max(s.Port, o.Port)
	switch {
	case s.Name == o.Name:
		return errors.New("the name is there twice: give each service its own")
	case s.Proto == dpr.TCP && o.Proto == dpr.TCP && s.has(port) && o.has(port):
		return fmt.Errorf("port %d is one of %q, too: give each TCP service its own ports", port, o.Name)
	case s.Proto == o.Proto && min(s.Reply, o.Reply) == dpr.ReplyDirect && max(s.Reply, o.Reply) == dpr.ReplyTunnelled:
		return fmt.Errorf("Reply is %v, and that of %q %v: give all %v services direct or all tunnelled answers",
			s.Reply, o.Name, o.Reply, s.Proto)
	case s.Proto == o.Proto && s.has(port) && o.has(port) && s.sharesAddr(o):
		return fmt.Errorf("port %d is one of %q at the same address, too: give others", port, o.Name)
	}
	return nil
}

func (s *Service) sharesAddr(o *Service) bool {
	return slices.ContainsFunc(s.Addrs, func(a netip.Addr) bool {
		return slices.ContainsFunc(o.Addrs, func(b netip.Addr) bool { return a.Unmap() == b.Unmap() })
	})
}
