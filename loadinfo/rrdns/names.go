package rrdns

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/miekg/dns"
)

// maxDomain is the longest name of a domain, in bytes as it is written, dot and all.
const maxDomain = 254

// validNames says which name cannot be asked for, or cannot be answered with.
func (c *Config) validNames() error {
	if err := validHost("Name", c.Name); err != nil {
		return err
	}
	if longest := len(hostmasterOf + dns.Fqdn(c.Name)); longest > maxDomain {
		return fmt.Errorf("rrdns: Config.Name: %.20q... is %d bytes too long: there are names under it", c.Name, longest-maxDomain)
	}
	zone, seen := dns.CanonicalName(c.Name), map[string]bool{}
	for _, name := range c.NameServers {
		if err := validHost("NameServers", name); err != nil {
			return err
		}
		name = dns.CanonicalName(name)
		switch {
		case seen[name]:
			return fmt.Errorf("rrdns: Config.NameServers: %q is there twice", name)
		case dns.IsSubDomain(zone, name) && name != zone && name != serverOf+zone:
			return fmt.Errorf("rrdns: Config.NameServers: %q is under the name itself, where only %q has an address", name, serverOf+zone)
		}
		seen[name] = true
	}
	switch _, ok := dns.IsDomainName(c.Hostmaster); {
	case c.Hostmaster == "":
	case !ok:
		return fmt.Errorf("rrdns: Config.Hostmaster: %q is not the name of a domain", c.Hostmaster)
	case strings.Contains(c.Hostmaster, "@"):
		return fmt.Errorf("rrdns: Config.Hostmaster: %q: write a dot in place of the @", c.Hostmaster)
	}
	return nil
}

// validHost says what is wrong with the name of a host, or of several: RFC 1123, section
// 2.1, and underscores, which some use.
func validHost(field, name string) error {
	if _, err := netip.ParseAddr(name); err == nil {
		return fmt.Errorf("rrdns: Config.%s: %q is an address: give a name", field, name)
	}
	if _, ok := dns.IsDomainName(name); !ok || strings.Trim(name, ".") == "" || strings.ContainsFunc(name, notInHosts) {
		return fmt.Errorf("rrdns: Config.%s: %q is not the name of a domain: letters, digits and hyphens between dots", field, name)
	}
	return nil
}

func notInHosts(r rune) bool {
	return r != '.' && r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
}
