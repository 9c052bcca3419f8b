package hostnet

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConfigErrors(t *testing.T) {
	one := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	for _, c := range []struct {
		err    string
		change func(*Config)
	}{
		{"", func(*Config) {}},
		{"TUN is missing", func(c *Config) { c.TUN = "" }},
		{"Services is empty", func(c *Config) { c.Services = nil }},
		{"Overhead 501", func(c *Config) { c.Overhead = 501 }},
		{"Table 250", func(c *Config) { c.Table = 250 }},
		{"Table 255", func(c *Config) { c.Table = 255 }},
		{"Table -1", func(c *Config) { c.Table = -1 }},
		{"RulePreference 32766", func(c *Config) { c.RulePreference = 32766 }},
		{"SYNRate 1000000001", func(c *Config) { c.SYNRate = 1_000_000_001 }},
		{"Services[0]: protocol 1 is neither", func(c *Config) { c.Services[0].Protocol = 1 }},
		{"Services[0]: ports 0 to 0", func(c *Config) { c.Services[0].Port = 0 }},
		{"Services[0]: ports 80 to 79", func(c *Config) { c.Services[0].PortEnd = 79 }},
		{"Services[0]: port 80: Addrs is empty", func(c *Config) { c.Services[0].Addrs = nil }},
		{"address invalid IP", func(c *Config) { c.Services[0].Addrs = []netip.Addr{{}} }},
		{"address fe80::1%eth0", func(c *Config) { c.Services[0].Addrs = []netip.Addr{netip.MustParseAddr("fe80::1%eth0")} }},
		{"address 0.0.0.0", func(c *Config) { c.Services[0].Addrs = []netip.Addr{netip.IPv4Unspecified()} }},
	} {
		cfg := Config{TUN: "carom0", Services: []Service{{Protocol: protocolTCP, Port: 80, Addrs: one}}}
		c.change(&cfg)
		got, err := cfg.withDefaults()
		if c.err != "" {
			require.ErrorContains(t, err, c.err)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, defaultTable, got.Table)
		require.Equal(t, defaultPreference, got.RulePreference)
		require.Equal(t, defaultOverhead, got.Overhead)
		require.Equal(t, defaultSYNRate, got.SYNRate)
	}
}

func TestEndpoints(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	set, err := endpoints([]Service{
		{Protocol: protocolTCP, Port: 80, PortEnd: 81, Addrs: []netip.Addr{netip.MustParseAddr("::ffff:192.0.2.1"), v6}},
		{Protocol: protocolUDP, Port: 65535, Addrs: []netip.Addr{v4}},
	})
	require.NoError(t, err)
	require.Equal(t, map[endpoint]bool{
		{v4, protocolTCP, 80, false}: true, {v4, protocolTCP, 81, false}: true,
		{v6, protocolTCP, 80, false}: true, {v6, protocolTCP, 81, false}: true,
		{v4, protocolUDP, 65535, false}: true,
		{v4, protocolTCP, 0, true}:      true, {v4, protocolUDP, 0, true}: true,
		{v6, protocolTCP, 0, true}: true, {v6, protocolDestOpts, 0, true}: true,
	}, set)

	_, err = endpoints([]Service{{Protocol: protocolTCP, Port: 1, PortEnd: 65535, Addrs: []netip.Addr{v4, v6}}, {Protocol: protocolUDP, Port: 1, PortEnd: 2000, Addrs: []netip.Addr{v4}}})
	require.ErrorContains(t, err, "Services[1]: more than 132096 endpoints")
}
