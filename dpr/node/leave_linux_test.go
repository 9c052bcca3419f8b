package node_test

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// When Run has returned, host and process are as they were before Open, and the
// host's own connections go on.
func TestNothingIsLeft(t *testing.T) {
	eachFamily(t, func(t *testing.T, v6 bool) {
		w := newWorld(t, v6, "a", "b")
		hosts := []*host{w.hosts["a"], w.hosts["b"]}
		var before [2][]string
		for i, h := range hosts {
			h.serve(t, port)
			before[i] = dump(t, h.Host)
		}
		held := kernelObjects(t)
		for _, h := range hosts {
			cfg := h.role("b").config()
			cfg.Services[0].Addrs = []netip.Addr{h.Addr4(), h.Addr6()}
			cfg.Queues = 2
			h.open(t, cfg)
		}
		w.await(t)
		servedBy(t, w.client, netip.AddrPortFrom(hosts[0].Addr4(), port), "b").download(t, mebibyte)
		servedBy(t, w.client, netip.AddrPortFrom(hosts[0].Addr6(), port), "b").download(t, mebibyte)
		local := servedBy(t, w.client, hosts[1].at(port), "b")
		for i, h := range hosts {
			require.NotEqual(t, before[i], dump(t, h.Host))
			h.stop()
			requireSame(t, before[i], dump(t, h.Host), h.Name())
		}
		require.Equal(t, held, kernelObjects(t))
		local.download(t, mebibyte)
	})
}

// kernelObjects counts this process's BPF programs, maps and links and its TUN
// queues.
func kernelObjects(t *testing.T) map[string]int {
	t.Helper()
	count := make(map[string]int)
	files, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, f := range files {
		to, err := os.Readlink("/proc/self/fd/" + f.Name())
		if err == nil && (strings.Contains(to, "bpf") || strings.Contains(to, "tun")) {
			count[to]++
		}
	}
	return count
}
