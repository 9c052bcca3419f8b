package node

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
)

// endpointSet is the slow oracle: every pair of address and port, one by one.
func endpointSet(list []dpr.Service) map[string]bool {
	set := make(map[string]bool)
	for _, s := range list {
		for port := int(s.Port); port <= int(max(s.Port, s.PortEnd)); port++ {
			for _, a := range s.Addrs {
				set[fmt.Sprint(s.Proto, a, port)] = true
			}
		}
	}
	return set
}

func TestWithout(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 2))
	service := func(name string) dpr.Service {
		first := uint16(1 + dice.IntN(12))
		s := dpr.Service{Name: name, Proto: dpr.TCP, Port: first, PortEnd: first + uint16(dice.IntN(6))}
		if dice.IntN(4) == 0 {
			s.Proto = dpr.UDP
		}
		for i := range byte(3) {
			if dice.IntN(2) == 0 {
				s.Addrs = append(s.Addrs, netip.AddrFrom4([4]byte{10, 0, 0, i}))
			}
		}
		return s
	}
	for range 2000 {
		s := service("old")
		var list []dpr.Service
		for range dice.IntN(4) {
			list = append(list, service("new"))
		}
		want := endpointSet([]dpr.Service{s})
		for e := range endpointSet(list) {
			delete(want, e)
		}
		rest := without(s, list)
		require.Equal(t, want, endpointSet(rest), "%v without %v", s, list)
		sum := 0
		for _, r := range rest {
			require.True(t, r.Former && r.Name == "old" && r.Proto == s.Proto)
			sum += len(endpointSet([]dpr.Service{r}))
		}
		require.Equal(t, len(want), sum, "each once")
	}
}

func TestCutAtTheEnds(t *testing.T) {
	all := [][2]uint16{{1, 65535}}
	require.Equal(t, [][2]uint16{{1, 65534}}, cut(all, 65535, 65535))
	require.Equal(t, [][2]uint16{{2, 65535}}, cut(all, 1, 1))
	require.Empty(t, cut(all, 1, 65535))
}

func TestEndpointsOfFormerServices(t *testing.T) {
	own, peer := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	web := func(port, end uint16, addrs ...netip.Addr) Service {
		return Service{Name: "web", Proto: dpr.TCP, Port: port, PortEnd: end, Addrs: addrs}
	}
	s := &setup{Config: Config{Services: []Service{web(85, 95, own)}}, former: []Service{web(80, 90, own), web(88, 99, own)}}
	require.Equal(t, []dpr.Service{
		{Name: "web", Proto: dpr.TCP, Port: 85, PortEnd: 95, Addrs: []netip.Addr{own, peer}},
		{Name: "web", Proto: dpr.TCP, Port: 80, PortEnd: 84, Addrs: []netip.Addr{own, peer}, Former: true},
		{Name: "web", Proto: dpr.TCP, Port: 96, PortEnd: 99, Addrs: []netip.Addr{own, peer}, Former: true},
	}, s.endpoints([]netip.Addr{peer}))
	require.NoError(t, dpr.Config{Services: s.endpoints([]netip.Addr{peer})}.Validate())
}

func TestReportsAreForOthers(t *testing.T) {
	own, peer := netip.MustParseAddrPort("10.0.0.1:6082"), netip.MustParseAddrPort("10.0.0.2:6082")
	mapped := netip.AddrPortFrom(netip.AddrFrom16(own.Addr().As16()), own.Port())
	elsewhere := netip.AddrPortFrom(own.Addr(), 7)
	for want, report := range map[string][]netip.AddrPort{
		"[10.0.0.2:6082]":                 {own, peer},
		"[10.0.0.2:6082 10.0.0.1:7]":      {peer, mapped, elsewhere},
		"[10.0.0.1:6082]":                 {own},
		"[10.0.0.255:6082 10.0.0.2:6082]": {netip.MustParseAddrPort("10.0.0.255:6082"), peer},
	} {
		c := Config{Addr: own.Addr(), ReportPort: own.Port(), Report: report}
		require.Equal(t, want, fmt.Sprint(c.targets()))
	}
}
