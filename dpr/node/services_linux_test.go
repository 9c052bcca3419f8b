package node_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/node"
	"github.com/carom-dpr/carom/internal/lab"
	"github.com/carom-dpr/carom/lb"
	"github.com/carom-dpr/carom/loadinfo"
)

// A host whose server does not listen gets no connections from peers, until it does.
func TestServerThatDoesNotListen(t *testing.T) {
	for _, c := range []struct {
		policy lb.Policy
		served string // who serves those that dial the host; nobody if empty
	}{
		{lb.Stay{}, ""},
		{lb.HomeOrOther{}, "a"},
	} {
		t.Run(fmt.Sprintf("%T", c.policy), func(t *testing.T) {
			w := newWorld(t, false, "a", "b")
			a, b := w.hosts["a"], w.hosts["b"]
			a.serve(t, port)
			server := b.serve(t, port)
			a.open(t, a.role("b").config())
			cfg := b.role("").config()
			cfg.Services[0].Policy = c.policy
			b.open(t, cfg)
			w.await(t)
			servedBy(t, w.client, a.at(port), "b")

			server.close()
			eventually(t, "b says that its server does not listen", func() bool {
				return !b.node.Status().Services[service].Healthy
			})
			servedBy(t, w.client, a.at(port), "a")
			before := a.node.Status().Engine.Services[service].RedirectedOut
			for range 20 {
				require.Equal(t, "a", mustDial(t, w.client, a.at(port)).served)
			}
			require.Equal(t, before, a.node.Status().Engine.Services[service].RedirectedOut)
			if c.served == "" {
				_, err := dial(w.client, b.at(port))
				require.ErrorIs(t, err, unix.ECONNREFUSED)
			} else {
				servedBy(t, w.client, b.at(port), c.served)
			}

			b.serve(t, port)
			servedBy(t, w.client, a.at(port), "b")
			servedBy(t, w.client, b.at(port), "b")
		})
	}
}

// A host that drains hands new connections to peers and keeps those that it has.
func TestDrain(t *testing.T) {
	w := newWorld(t, false, "a", "b")
	a, b := w.hosts["a"], w.hosts["b"]
	for _, h := range []*host{a, b} {
		h.serve(t, port)
		cfg := h.role("").config()
		cfg.Services[0].Policy = lb.HomeOrOther{}
		h.open(t, cfg)
	}
	w.await(t)
	local := servedBy(t, w.client, a.at(port), "a")

	a.node.Drain()
	eventually(t, "b knows", func() bool { return member(b.node, "a").State == loadinfo.Draining })
	eventually(t, "b keeps its connections", func() bool { // its picker follows what it knows
		for range 10 {
			if c := mustDial(t, w.client, b.at(port)); c.served != "b" {
				c.Close() // or it would be left at a
				return false
			}
		}
		return true
	})
	fromPeer := a.node.Status().Engine.Services[service].RedirectedIn
	for range 10 {
		servedBy(t, w.client, a.at(port), "b")
		require.Equal(t, "b", mustDial(t, w.client, b.at(port)).served)
	}
	require.Equal(t, fromPeer, a.node.Status().Engine.Services[service].RedirectedIn)
	require.NoError(t, local.echo())
	eventually(t, "one connection is left", func() bool { return a.node.Status().Services[service].Conns == 1 })

	a.node.Undrain()
	servedBy(t, w.client, a.at(port), "a")
	require.NoError(t, local.echo())
}

// member returns what a node knows of a host.
func member(n *node.Node, id string) loadinfo.Member {
	for _, m := range n.Status().Members {
		if m.ID == id {
			return m
		}
	}
	return loadinfo.Member{}
}

// Services differ in protocol, ports and policy, and each goes its own way.
func TestSeveralServices(t *testing.T) {
	eachFamily(t, func(t *testing.T, v6 bool) {
		w := newWorld(t, v6, "a", "b")
		a, b := w.hosts["a"], w.hosts["b"]
		for _, h := range []*host{a, b} {
			for _, p := range []uint16{port, 8000, 8003, 8004} {
				h.serve(t, p)
			}
			h.serveUDP(t, 5001)
			h.serveUDP(t, 5003)
			cfg := h.role("").config()
			cfg.Services = []node.Service{
				{Name: service, Port: port, Policy: lb.Stay{}},
				{Name: "range", Port: 8000, PortEnd: 8003, Policy: sendTo("b")},
				{Name: "datagrams", Proto: dpr.UDP, Port: 5000, PortEnd: 5003, Policy: sendTo("b")},
			}
			h.open(t, cfg)
		}
		w.await(t)
		servedBy(t, w.client, a.at(8000), "b")
		servedBy(t, w.client, a.at(8003), "b")
		require.Equal(t, "a", mustDial(t, w.client, a.at(port)).served)
		require.Equal(t, "a", mustDial(t, w.client, a.at(8004)).served, "no service")
		_, err := dial(w.client, a.at(8001))
		require.ErrorIs(t, err, unix.ECONNREFUSED, "redirected to a port without a listener")
		for _, at := range []netip.AddrPort{a.at(5001), a.at(5003), b.at(5003)} {
			for range 3 {
				eventually(t, "answered by b", func() bool { return askUDP(t, w.client, at) == "b" })
			}
		}
		out, in := a.node.Status().Engine.Services, b.node.Status().Engine.Services
		require.Zero(t, out[service].RedirectedOut)
		require.EqualValues(t, 6, out["datagrams"].RedirectedOut)
		require.EqualValues(t, 6, in["datagrams"].RedirectedIn)
		require.EqualValues(t, 3, in["datagrams"].Served)
	})
}

// serveUDP answers each datagram with the host's name, from the address that it
// came to, as node.Service asks of servers.
func (h *host) serveUDP(t *testing.T, port uint16) {
	t.Helper()
	network, level, option := "udp4", unix.SOL_IP, unix.IP_PKTINFO
	if h.addr.Is6() {
		network, level, option = "udp6", unix.SOL_IPV6, unix.IPV6_RECVPKTINFO
	}
	c, err := h.ListenPacket(network, fmt.Sprintf(":%d", port))
	require.NoError(t, err)
	conn := c.(*net.UDPConn)
	raw, err := conn.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), level, option, 1)
		if err == nil && h.addr.Is6() {
			err = unix.SetsockoptInt(int(fd), level, unix.IPV6_FREEBIND, 1)
		}
	}))
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		var in, control [256]byte
		for {
			_, n, _, from, err := conn.ReadMsgUDPAddrPort(in[:], control[:])
			if err != nil {
				return
			}
			_, _, err = conn.WriteMsgUDPAddrPort([]byte(h.Name()), sourceOf(control[:n]), from)
			if err != nil {
				t.Errorf("%s: answer to %v: %v", h.Name(), from, err)
			}
		}
	}()
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
}

// sourceOf makes what says where a datagram came to into what says where its answer
// comes from: by any interface.
func sourceOf(control []byte) []byte {
	hdr, data, _, err := unix.ParseOneSocketControlMessage(control)
	if err != nil {
		return nil
	}
	if hdr.Level == unix.SOL_IP { // struct in_pktinfo: interface, local address, destination
		copy(data[4:8], data[8:12])
		data = data[:4]
	} else { // struct in6_pktinfo: address, interface
		data = data[16:20]
	}
	binary.NativeEndian.PutUint32(data, 0)
	return control
}

// askUDP sends a datagram from a new port and returns the answer, which must come
// from the address that was asked.
func askUDP(t *testing.T, from *lab.Host, to netip.AddrPort) string {
	t.Helper()
	c, err := from.DialContext(t.Context(), "udp", to.String())
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(limit/3)))
	_, err = c.Write([]byte("who?"))
	require.NoError(t, err)
	var answer [16]byte
	n, err := c.Read(answer[:])
	require.NoError(t, err)
	return string(answer[:n])
}
