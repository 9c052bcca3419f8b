package node_test

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/node"
	"github.com/carom-dpr/carom/loadinfo/health"
)

// plainAt is where c listens, a host without a node.
var plainAt = netip.MustParseAddrPort("198.18.0.3:8080")

// A plainHost is one whose server says its name and then what the client says.
type plainHost struct {
	down atomic.Bool // for those who check
}

// withPlain gives a pair a third host that runs no node, and has a hand all to it.
func withPlain(t *testing.T) (*pair, *plainHost) {
	p := newPair(t)
	c := new(plainHost)
	stack := newStack(p.network, "c", plainAt.Addr(), nil)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- stack.Run(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-ended) })
	ln, err := stack.Listen(plainAt.Port())
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if _, err := io.WriteString(conn, "c"); err == nil {
					io.Copy(conn, conn)
				}
			}()
		}
	}()
	p.a.cfg.Servers = []node.Server{c.server()}
	p.a.cfg.Services[0].Policy = handTo("c")
	p.reconfigure(p.a)
	return p, c
}

func (c *plainHost) server() node.Server {
	return node.Server{
		ID: "c", Services: map[string][]netip.AddrPort{"web": {plainAt}},
		Check: func(string, netip.AddrPort) health.Check {
			return func(context.Context) error {
				if c.down.Load() {
					return errors.New("it is down")
				}
				return nil
			}
		},
	}
}

// servedBy connects to a, again and again until the host serves.
func (p *pair) servedBy(host string) (c *connection) {
	p.t.Helper()
	p.await("served by "+host, func() bool {
		c = p.connect(p.a.addrs[0], 80)
		if c.served != host {
			c.Close()
		}
		return c.served == host
	})
	return c
}

func (p *pair) server() node.ServerService {
	for _, s := range p.a.node.Status().Servers {
		if s.ID == "c" {
			return s.Services["web"]
		}
	}
	return node.ServerService{}
}

func TestPlainServer(t *testing.T) {
	p, c := withPlain(t)
	open := p.servedBy("c")
	open.works()
	require.Equal(t, node.ServerService{Proto: dpr.TCP, Endpoints: []netip.AddrPort{plainAt}, Healthy: true, Conns: 1}, p.server())
	var flow dpr.Flow
	for f := range p.a.node.Engine().Flows(time.Now()) {
		if f.State == dpr.Established {
			flow = f
		}
	}
	require.Equal(t, "c", flow.Peer)
	require.Equal(t, plainAt, flow.Server)
	require.Equal(t, p.a.addrs[0], flow.Source.Addr())

	c.down.Store(true)
	p.servedBy("a").works()
	require.False(t, p.server().Healthy)
	open.works() // what it has goes on
	c.down.Store(false)
	p.servedBy("c").works()
	require.NoError(t, open.Close())
}

func TestReconfigureServers(t *testing.T) {
	p, c := withPlain(t)
	open := p.servedBy("c")
	p.a.cfg.Servers = nil
	p.reconfigure(p.a)
	open.works()
	p.servedBy("a").works()
	captured := func() bool {
		return slices.ContainsFunc(p.a.services(), func(s dpr.Service) bool { return s.Name == "" })
	}
	require.True(t, captured(), "what it says still comes here")
	require.Len(t, p.a.node.Status().Servers, 1)
	p.a.cfg.Servers = []node.Server{c.server()} // back again
	p.reconfigure(p.a)
	open.works()
	p.servedBy("c").works()
	p.a.cfg.Servers[0].Weight = -1
	p.reconfigure(p.a)
	p.servedBy("a").works()
	require.Zero(t, p.a.node.Status().Servers[0].Weight)
	open.works()
	p.a.cfg.Servers = nil
	p.reconfigure(p.a)
	require.Len(t, p.a.node.Status().Servers, 1)
	require.NoError(t, open.Close())
}

func TestServerErrors(t *testing.T) {
	at := func(list ...string) map[string][]netip.AddrPort {
		m := map[string][]netip.AddrPort{"web": {}}
		for _, s := range list {
			m["web"] = append(m["web"], netip.MustParseAddrPort(s))
		}
		return m
	}
	for want, list := range map[string][]node.Server{
		`Servers[0] "": ID: give 1 to`:           {{Services: at("192.0.2.3:8080")}},
		`"a": ID is this host's own`:             {{ID: "a", Services: at("192.0.2.3:8080")}},
		`Servers[1] "c": ID is there twice`:      {{ID: "c", Services: at("192.0.2.3:8080")}, {ID: "c", Services: at("192.0.2.4:8080")}},
		"Weight 65536: give at most 65535":       {{ID: "c", Weight: 65536, Services: at("192.0.2.3:8080")}},
		"Services is empty":                      {{ID: "c"}},
		`service "other": is none of Services`:   {{ID: "c", Services: map[string][]netip.AddrPort{"other": {plainAt}}}},
		`service "web": has no endpoint`:         {{ID: "c", Services: at()}},
		"192.0.2.3:0: give the unicast address":  {{ID: "c", Services: at("192.0.2.3:0")}},
		"127.0.0.1:80: give the unicast address": {{ID: "c", Services: at("127.0.0.1:80")}},
		"192.0.2.1:8080 is this host's own":      {{ID: "c", Services: at("192.0.2.1:8080")}},
		"no address of its family":               {{ID: "c", Services: at("[2001:db8::3]:8080")}},
		`Servers[1] "d": service "web": 192.0.2.3:8080 is an endpoint of "c", too`: {
			{ID: "c", Services: at("192.0.2.3:8080")}, {ID: "d", Services: at("192.0.2.3:8080")},
		},
		"there is another of its family": {{ID: "c", Services: at("192.0.2.3:8080", "192.0.2.3:8081")}},
	} {
		cfg := node.Config{
			ID: "a", Addr: netip.MustParseAddr("192.0.2.1"), Services: []node.Service{{Name: "web", Port: 80}},
			Report: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.2:6082")}, Servers: list,
		}
		require.ErrorContains(t, cfg.Validate(), want)
	}
	cfg := node.Config{
		ID: "a", Addr: netip.MustParseAddr("192.0.2.1"), Services: []node.Service{{Name: "web", Port: 60000, PortEnd: 62000}},
		Report: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.2:6082")}, Servers: []node.Server{{ID: "c", Services: at("192.0.2.3:8080")}},
	}
	require.ErrorContains(t, cfg.Validate(), `NAT: connections to Servers leave from ports 61000 to 65534, which are service "web"'s, too: give others`)
	cfg.NAT.First = 62001
	require.NoError(t, cfg.Validate())
	_, err := node.New(cfg, node.Host{})
	require.ErrorContains(t, err, "give it Host.Replies")
	cfg.NAT.Last = 62000
	require.ErrorContains(t, cfg.Validate(), "NAT.First 62001 lies behind Last 62000")
}
