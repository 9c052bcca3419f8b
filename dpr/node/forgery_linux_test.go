package node_test

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/dpr/gue"
	"github.com/carom-dpr/carom/dpr/node"
	"github.com/carom-dpr/carom/internal/lab"
	"github.com/carom-dpr/carom/loadinfo"
)

// Who does not know the key cannot become a member, nor speak for one.
func TestForgedReports(t *testing.T) {
	w := cluster(t, false, map[string]string{"a": "", "b": ""})
	a, b := w.hosts["a"], w.hosts["b"]
	mallory := loadinfo.Report{
		ID: "mallory", Boot: uint64(time.Now().UnixNano()), Seq: 1, Weight: 100,
		Node:     netip.AddrPortFrom(w.evil.Addr4(), gue.Port),
		Dialled:  []netip.Addr{w.evil.Addr4()},
		Services: []loadinfo.ServiceReport{{ID: loadinfo.HashService(service), Weight: 100, Healthy: true}},
	}
	drained := mallory // in the name of b, which would get no more connections
	drained.ID, drained.Node, drained.State = "b", b.at(gue.Port), loadinfo.Draining
	old := drained
	old.Boot = 1

	for _, c := range []struct {
		name   string
		report loadinfo.Report
		key    *loadinfo.Key
		count  func(loadinfo.Stats) uint64
	}{
		{"new host, wrong key", mallory, &loadinfo.Key{ID: 1, Secret: make([]byte, 32)}, func(s loadinfo.Stats) uint64 { return s.BadTag }},
		{"new host, unknown key", mallory, &loadinfo.Key{ID: 2, Secret: secret}, func(s loadinfo.Stats) uint64 { return s.UnknownKey }},
		{"new host, no key", mallory, nil, func(s loadinfo.Stats) uint64 { return s.UnknownKey }},
		{"member, wrong key", drained, &loadinfo.Key{ID: 1, Secret: make([]byte, 32)}, func(s loadinfo.Stats) uint64 { return s.BadTag }},
		{"member, recorded in a former life", old, &loadinfo.Key{ID: 1, Secret: secret}, func(s loadinfo.Stats) uint64 { return s.Replayed }},
	} {
		t.Run(c.name, func(t *testing.T) {
			var ring *loadinfo.Keyring
			if c.key != nil {
				var err error
				ring, err = loadinfo.NewKeyring(*c.key)
				require.NoError(t, err)
			}
			msg, err := c.report.Append(nil, ring)
			require.NoError(t, err)
			before := a.node.Status().Reports
			sendUDP(t, w.evil, a.at(6082), msg)
			eventually(t, "it is counted", func() bool { return c.count(a.node.Status().Reports) > c.count(before) })
			require.Zero(t, member(a.node, "mallory"))
			require.NotEqual(t, loadinfo.Draining, member(a.node, "b").State)
		})
	}
	t.Logf("reports: %+v", a.node.Status().Reports)
}

func sendUDP(t *testing.T, from *lab.Host, to netip.AddrPort, msg []byte) {
	t.Helper()
	c, err := from.ListenPacket("udp", netip.AddrPortFrom(from.Addr4(), 0).String())
	require.NoError(t, err)
	defer c.Close()
	_, err = c.WriteTo(msg, net.UDPAddrFromAddrPort(to))
	require.NoError(t, err)
}

// sshPort stands for what a host serves to itself, and a firewall would keep from
// the network.
const sshPort = 22

// Who does not know the key gets nothing through the tunnel, even from a peer's
// address, and who does, only to the services.
func TestForgedTunnelPackets(t *testing.T) {
	w := cluster(t, false, map[string]string{"a": "", "b": ""})
	a, b := w.hosts["a"], w.hosts["b"]
	a.serve(t, sshPort)
	right := gue.Key{ID: 1, Secret: node.TunnelSecret(secret)}
	peer := b.at(gue.Port)

	syn := func(to uint16) []byte {
		from := netip.AddrPortFrom(w.client.Addr4(), 40000)
		return dprtest.TCP(from, a.at(to), dprtest.Options{Flags: dprtest.SYN, Seq: 1})
	}
	for _, c := range []struct {
		name   string
		keys   []gue.Key
		from   netip.AddrPort
		packet []byte
		count  func(node.Status) uint64
	}{
		{"no tag", nil, peer, syn(port), dropped(gue.NoTag)},
		{"wrong key", []gue.Key{{ID: 1, Secret: [16]byte{1}}}, peer, syn(port), dropped(gue.BadTag)},
		{"unknown key", []gue.Key{{ID: 2, Secret: right.Secret}}, peer, syn(port), dropped(gue.UnknownKey)},
		{"right key, no peer", []gue.Key{right}, netip.AddrPortFrom(w.evil.Addr4(), gue.Port), syn(port), dropped(gue.UnknownPeer)},
		{"right key, no service's port", []gue.Key{right}, peer, syn(sshPort), notService},
		{"right key, no service's protocol", []gue.Key{right}, peer,
			dprtest.UDP(w.reports[1], a.at(port), dprtest.Options{}), notService},
		{"right key, echo request", []gue.Key{right}, peer, dprtest.ICMP(w.client.Addr4(), a.addr, 8, 0, 0, dprtest.Options{}), notService},
	} {
		t.Run(c.name, func(t *testing.T) {
			before, heard := a.node.Status(), tcpReceived(t, a.Host)
			w.forge(t, tunnelled(t, c.from, a.at(gue.Port), c.packet, c.keys...))
			eventually(t, "it is counted", func() bool { return c.count(a.node.Status()) > c.count(before) })
			require.Zero(t, a.since(before).engine[dpr.Local])
			require.Equal(t, heard, tcpReceived(t, a.Host), "the kernel has not got it")
		})
	}
	t.Run("right key, service", func(t *testing.T) { // shows that the forgeries fail for the right reason
		before, heard := a.node.Status(), tcpReceived(t, a.Host)
		w.forge(t, tunnelled(t, peer, a.at(gue.Port), syn(port), right))
		eventually(t, "the kernel has got it", func() bool { return tcpReceived(t, a.Host) > heard })
		require.EqualValues(t, 1, a.since(before).engine[dpr.Local])
	})
	t.Logf("tunnel: %v, engine: not-service %d", a.node.Status().Tunnel, a.node.Status().Engine.Drops[dpr.NotService])
}

func dropped(why gue.Reason) func(node.Status) uint64 {
	return func(s node.Status) uint64 { return s.Tunnel.Dropped[why.String()] }
}

func notService(s node.Status) uint64 { return s.Engine.Drops[dpr.NotService] }

// tunnelled returns the packet as a peer with those keys sends it.
func tunnelled(t *testing.T, from, to netip.AddrPort, packet []byte, keys ...gue.Key) []byte {
	t.Helper()
	codec, err := gue.NewCodec(keys...)
	require.NoError(t, err)
	p := dpr.Packet{Buf: append(make([]byte, dpr.Headroom), packet...), Off: dpr.Headroom, Len: len(packet)}
	require.Equal(t, gue.OK, codec.Encap(&p, &gue.Outer{Src: from, Dst: to}))
	return p.Bytes()
}

// tcpReceived returns how many TCP segments the host's kernel has received.
func tcpReceived(t *testing.T, h *lab.Host) uint64 {
	t.Helper()
	for line := range strings.Lines(readNetwork(t, h, "snmp")) {
		// Tcp: RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens PassiveOpens
		// AttemptFails EstabResets CurrEstab InSegs
		words := strings.Fields(line)
		if words[0] == "Tcp:" && words[10] != "InSegs" {
			n, err := strconv.ParseUint(words[10], 10, 64)
			require.NoError(t, err)
			return n
		}
	}
	require.FailNow(t, "no line about TCP")
	return 0
}
