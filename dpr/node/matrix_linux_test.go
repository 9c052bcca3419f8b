package node_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/node"
	"github.com/carom-dpr/carom/internal/lab"
	"github.com/carom-dpr/carom/loadinfo/health"
)

// A way is a forwarding method and a reply mode: how packets come to the serving host
// and how its answers get the dialled address.
type way struct {
	name string
	set  func(*node.Config)
	// plain says that servers may be bound to their host's own address, and that UDP
	// servers may answer from whatever address they have.
	plain bool
	// nat says that b runs no node, and that its servers listen on ports of their own.
	nat bool
	// families are the versions of IP that it is a way for.
	families map[string]bool
}

var onlyIPv4 = map[string]bool{"IPv4": false} // like families

var ways = []way{
	{name: "GUE, direct", set: func(*node.Config) {}, families: families},
	{name: "GUE, rewritten", set: reply(dpr.ReplyRewritten), plain: true, families: families},
	{name: "IPIP, direct", set: method(node.IPIP), families: families},
	{name: "IPIP, rewritten", set: both(method(node.IPIP), reply(dpr.ReplyRewritten)), plain: true, families: families},
	{name: "IPIP to a host, GUE from it", families: families, set: func(c *node.Config) {
		c.Keys = nil
		if c.ID == "b" {
			c.Method = node.IPIP
		}
	}},
	{name: "GUE, tunnelled", set: reply(dpr.ReplyTunnelled), families: families},
	{name: "IPIP, tunnelled", set: both(method(node.IPIP), reply(dpr.ReplyTunnelled)), families: families},
	{name: "NAT", set: func(*node.Config) {}, plain: true, nat: true, families: families},
	{name: "captured by routing, direct", set: byRouting, families: onlyIPv4},
	{name: "captured by routing, NAT", set: byRouting, plain: true, nat: true, families: onlyIPv4},
	{name: "captured by routing, rewritten", set: both(byRouting, reply(dpr.ReplyRewritten)), plain: true, families: onlyIPv4},
	{name: "captured by routing, tunnelled", set: both(byRouting, reply(dpr.ReplyTunnelled)), families: onlyIPv4},
}

func both(a, b func(*node.Config)) func(*node.Config) { return func(c *node.Config) { a(c); b(c) } }

func byRouting(c *node.Config) { c.CaptureByRouting = true }

func method(m node.Method) func(*node.Config) {
	return func(c *node.Config) { c.Method, c.Keys = m, nil }
}

func reply(m dpr.ReplyMode) func(*node.Config) {
	return func(c *node.Config) {
		for i := range c.Services {
			c.Services[i].Reply = m
		}
	}
}

const (
	httpPort = 8080
	udpPort  = 5000
)

// config is that of a host whose connections b serves.
func (w way) config(h *host) node.Config {
	cfg := h.role("").config()
	policy := sendTo("b")
	cfg.Services = []node.Service{
		{Name: service, Port: port, Policy: policy},
		{Name: "http", Port: httpPort, Policy: policy},
		{Name: "datagrams", Proto: dpr.UDP, Port: udpPort, Policy: policy},
	}
	if w.nat {
		cfg.Servers = []node.Server{w.server(h)}
	}
	w.set(&cfg)
	return cfg
}

// on returns the port that a server of the host listens on.
func (w way) on(h *host, port uint16) uint16 {
	if w.nat && h.Name() == "b" {
		port += 1000
	}
	return port
}

// server is host b without a node, checked from another host.
func (w way) server(from *host) node.Server {
	b := from.w.hosts["b"]
	at := func(port uint16) []netip.AddrPort { return []netip.AddrPort{b.at(w.on(b, port))} }
	return node.Server{
		ID:       "b",
		Services: map[string][]netip.AddrPort{service: at(port), "http": at(httpPort), "datagrams": at(udpPort)},
		Check: func(service string, at netip.AddrPort) health.Check {
			if service == "datagrams" {
				return nil
			}
			return func(ctx context.Context) error {
				conn, err := from.DialContext(ctx, "tcp", at.String())
				if err != nil {
					return err
				}
				return conn.Close()
			}
		},
	}
}

// Each way serves what it says it serves.
func TestEveryWay(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			each(t, way.families, func(t *testing.T, v6 bool) {
				w := newWorld(t, v6, "a", "b")
				for _, h := range w.hosts {
					way.serve(t, h)
					if !way.nat || h.Name() != "b" {
						h.open(t, way.config(h))
					}
				}
				if !way.nat {
					w.await(t)
				}
				a, b := w.hosts["a"], w.hosts["b"]
				for name, client := range map[string]*lab.Host{"client": w.client, "hairpin": b.Host} {
					t.Run(name, func(t *testing.T) { requireServed(t, client, a) })
				}
			})
		})
	}
}

// serve starts the servers that the way allows, as few of them prepared for it as
// possible.
func (w way) serve(t *testing.T, h *host) {
	t.Helper()
	h.serve(t, w.on(h, port))
	at := netip.AddrPortFrom(netip.IPv6Unspecified(), httpPort) // of both families
	if w.plain {
		at = h.at(w.on(h, httpPort))
		h.serveDatagrams(t, w.on(h, udpPort))
	} else {
		h.serveUDP(t, udpPort)
	}
	h.serveHTTP(t, at)
}

// requireServed requires that host b serves a client that dials host a. It asks until b
// does: on a busy machine a's router may be late, and a host whose router is serves.
func requireServed(t *testing.T, client *lab.Host, a *host) {
	t.Helper()
	eventually(t, "b serves HTTP", func() bool { return get(t, client, a.at(httpPort)) == "b" })
	eventually(t, "b serves datagrams", func() bool { return askUDP(t, client, a.at(udpPort)) == "b" })
	size := int64(64 * mebibyte)
	if testing.Short() {
		size = mebibyte
	}
	c := servedBy(t, client, a.at(port), "b")
	c.upload(t, size)
	c.download(t, size)
}

// serveHTTP answers requests with the host's name.
func (h *host) serveHTTP(t *testing.T, at netip.AddrPort) {
	t.Helper()
	ln, err := h.Listen("tcp", at.String())
	require.NoError(t, err)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, h.Name())
	})}
	done := make(chan error, 1)
	go func() { done <- s.Serve(ln) }()
	t.Cleanup(func() {
		s.Close()
		require.ErrorIs(t, <-done, http.ErrServerClosed)
	})
}

func get(t *testing.T, from *lab.Host, to netip.AddrPort) string {
	t.Helper()
	client := http.Client{
		Transport: &http.Transport{DialContext: from.DialContext, DisableKeepAlives: true},
		Timeout:   limit,
	}
	res, err := client.Get("http://" + to.String())
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return string(body)
}

// serveDatagrams answers each datagram with the host's name, on a socket that is on
// all addresses and never asks which of them the datagram came to.
func (h *host) serveDatagrams(t *testing.T, port uint16) {
	t.Helper()
	c, err := h.ListenPacket("udp", ":"+strconv.Itoa(int(port)))
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		answer(c, []byte(h.Name()))
	}()
	t.Cleanup(func() {
		c.Close()
		<-done
	})
}

func answer(c net.PacketConn, with []byte) {
	var b [256]byte
	for {
		_, from, err := c.ReadFrom(b[:])
		if err != nil {
			return
		}
		_, _ = c.WriteTo(with, from)
	}
}
