package node

import (
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPortsSharedWithTheKernel(t *testing.T) {
	for _, tt := range []struct {
		local, reserved string
		says            []string // nothing: nothing is wrong
	}{
		{"32768\t60999", "", nil},
		{"32768\t61000", "", []string{"61000 to 65534", "gives 1 to", "32768 to 61000", "ip_local_reserved_ports=61000-65534"}},
		{"1024\t65535", "8080,9000-9010", []string{"gives 4535 to", "1024 to 65535", "ip_local_reserved_ports=8080,9000-9010,61000-65534"}},
		{"1024\t65535", "61000-65534", nil},
		{"1024\t65535", "60000-63000,63001,63002-65535", nil},
		{"1024\t65535", "61000-65533", []string{"gives 1 to"}},
		{"", "", nil}, // not Linux's /proc
	} {
		text := sharedPorts(61000, 65534, tt.local, tt.reserved)
		require.Equal(t, len(tt.says) > 0, text != "", "%+v: %s", tt, text)
		for _, s := range tt.says {
			require.Contains(t, text, s)
		}
	}
}

func TestBroadcastAddress(t *testing.T) {
	var here []net.Addr
	for _, p := range []string{"10.1.2.3/24", "10.2.0.1/31", "10.3.0.1/32", "fd01::1/64"} {
		ip, n, err := net.ParseCIDR(p)
		require.NoError(t, err)
		here = append(here, &net.IPNet{IP: ip, Mask: n.Mask})
	}
	for a, is := range map[string]bool{
		"10.1.2.255": true, "::ffff:10.1.2.255": true, "10.1.2.254": false, "10.1.3.255": false,
		"10.2.0.1": false, "10.3.0.1": false, "fd01::ffff:ffff:ffff:ffff": false,
	} {
		require.Equal(t, is, isBroadcast(netip.MustParseAddr(a), here), a)
	}
}
