package node_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/dpr/gue"
	"github.com/carom-dpr/carom/dpr/node"
	"github.com/carom-dpr/carom/internal/header"
	"github.com/carom-dpr/carom/lb"
	"github.com/carom-dpr/carom/loadinfo"
)

// handTo is a policy that hands every connection to the host of that name.
type handTo string

func (p handTo) Build(s *lb.Snapshot) lb.Picker {
	i := slices.IndexFunc(s.Hosts, func(h lb.Host) bool { return h.ID == string(p) && h.Eligible() })
	if i < 0 || i == s.Self {
		return lb.Stay{}.Build(s)
	}
	return sameHost(i)
}

type sameHost int

func (i sameHost) Pick(lb.Flow, time.Duration) lb.Choice {
	return lb.Choice{Do: lb.Send, Host: int(i)}
}

// changingPeriod is so long that a busy machine does not make the hosts take each other
// for dead.
const changingPeriod = 500 * time.Millisecond

// A changing host is a node in memory whose host captures what SetServices said
// last. It has two addresses.
type changing struct {
	*memoryHost
	cfg    node.Config
	addrs  [2]netip.Addr
	tunnel *gue.OverIP

	mu     sync.Mutex
	served []dpr.Service
	keys   []loadinfo.Key
	refuse error // of the next SetServices
}

// newChanging makes the host of that number among so many.
func newChanging(t *testing.T, network *dprtest.Network, name string, number, hosts byte) *changing {
	t.Helper()
	c := &changing{addrs: [2]netip.Addr{{}, netip.AddrFrom4([4]byte{198, 18, 2, number})}}
	c.addrs[0] = netip.AddrFrom4([4]byte{198, 18, 0, number})
	tunnel := netip.AddrFrom4([4]byte{198, 18, 1, number})
	stack := newStack(network, name, c.addrs[0], c.captures)
	under, err := network.Join(dprtest.Link{MTU: 1500}, tunnel)
	require.NoError(t, err)
	var take func(dpr.PeerID, []byte)
	c.tunnel, err = gue.NewOverIP(gue.Config{
		Listen:  []netip.AddrPort{netip.AddrPortFrom(tunnel, gue.Port)},
		Control: func(from dpr.PeerID, message []byte) { take(from, message) },
	}, under)
	require.NoError(t, err)
	conn, err := stack.ListenPacket(netip.AddrPortFrom(c.addrs[0], 6082))
	require.NoError(t, err)
	c.cfg = node.Config{
		ID:       name,
		Addr:     tunnel,
		Services: []node.Service{{Name: "web", Port: 80, PortEnd: 81, Addrs: c.addrs[:1]}},
		NAT:      dpr.NAT{Sources: c.addrs[:1]},
		Keys:     []loadinfo.Key{{ID: 1, Secret: make([]byte, 32)}},
		Period:   changingPeriod,
	}
	for n := range hosts {
		c.cfg.Report = append(c.cfg.Report, netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, 0, n + 1}), 6082))
	}
	n, err := node.New(c.cfg, node.Host{
		Devices:     []dpr.Device{stack.TUN()},
		Uplinks:     []dpr.Device{c.tunnel},
		Replies:     stack.Sender(),
		Reports:     reportConn{conn},
		MTU:         1500 - gue.Overhead(false, false),
		SetPeers:    c.setPeers,
		SetAliases:  stack.SetAliases,
		SetServices: c.setServices,
		SetKeys:     func(keys []loadinfo.Key) error { c.keys = keys; return nil },
		Control:     c.tunnel.Control,
		TakeControl: func(f func(dpr.PeerID, []byte)) { take = f },
		Lives:       c.lives,
		Abort:       func(lost []netip.Addr) (int, error) { return stack.Abort(lost), nil },
	})
	require.NoError(t, err)
	c.memoryHost = &memoryHost{stack, n}
	c.served = []dpr.Service{{Name: "web", Proto: dpr.TCP, Port: 80, PortEnd: 81, Addrs: c.addrs[:1]}}
	return c
}

func (c *changing) lives(flows []dpr.Question, lives []dpr.Life) error {
	for i, f := range flows {
		if lives[i] = dpr.Gone; c.stack.Connected(f.Dialled, f.Client) {
			lives[i] = dpr.Open
		}
	}
	return nil
}

func (c *changing) setPeers(peers []node.Peer) error {
	list := make([]gue.Peer, len(peers))
	for i, p := range peers {
		list[i] = gue.Peer{ID: p.ID, Addr: p.Addr}
	}
	return c.tunnel.SetPeers(list)
}

func (c *changing) setServices(list []dpr.Service) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.refuse
	c.refuse = nil
	c.served = list // in part, where an error tells
	return err
}

func (c *changing) services() []dpr.Service {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.served
}

func (c *changing) captures(pkt []byte) bool {
	var h header.Packet
	if h.Parse(pkt) != header.OK {
		return false
	}
	dst := netip.AddrFrom16(h.Dst).Unmap()
	return slices.ContainsFunc(c.services(), func(s dpr.Service) bool {
		return dpr.Proto(h.Proto) == s.Proto && s.Port <= h.DstPort && h.DstPort <= max(s.Port, s.PortEnd) && slices.Contains(s.Addrs, dst)
	})
}

// echo serves ports until the test ends: the host's name, then what the client says.
func (c *changing) echo(t *testing.T, ports ...uint16) {
	for _, port := range ports {
		ln, err := c.stack.Listen(port)
		require.NoError(t, err)
		t.Cleanup(func() { ln.Close() })
		go func() {
			for ln := c.node.Wrap("web", ln); ; {
				conn, err := ln.Accept()
				if err != nil {
					return
				}
				go func() {
					defer conn.Close()
					if _, err := io.WriteString(conn, c.cfg.ID); err == nil {
						io.Copy(conn, conn)
					}
				}()
			}
		}()
	}
}

// pair is two hosts, of which a hands all to b, and a client.
type pair struct {
	t       *testing.T
	a, b    *changing
	dial    func(context.Context, netip.AddrPort) (net.Conn, error)
	network *dprtest.Network
}

func newPair(t *testing.T) *pair {
	ctx, cancel := context.WithCancel(context.Background())
	network := dprtest.NewNetwork(1)
	p := &pair{t: t, network: network, a: newChanging(t, network, "a", 1, 2), b: newChanging(t, network, "b", 2, 2)}
	client := newStack(network, "client", netip.MustParseAddr("198.18.0.101"), nil)
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{
		p.a.stack.Run, p.b.stack.Run, client.Run, p.a.node.Run, p.b.node.Run,
	} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() { cancel(); running.Wait(); network.Close() })
	p.a.echo(t, 80, 81, 82, 443)
	p.b.echo(t, 80, 81, 82, 443)
	p.dial = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		return client.Dial(ctx, netip.AddrPort{}, to)
	}
	p.await("both are up", func() bool { return p.a.knows("b") && p.b.knows("a") })
	p.a.cfg.Services[0].Policy, p.b.cfg.Services[0].Policy = handTo("b"), lb.Stay{}
	p.reconfigure(p.a)
	p.reconfigure(p.b)
	return p
}

func (p *pair) await(what string, condition func() bool) {
	p.t.Helper()
	require.Eventually(p.t, condition, time.Minute, time.Millisecond, what)
}

func (p *pair) reconfigure(c *changing) {
	p.t.Helper()
	require.NoError(p.t, c.node.Reconfigure(c.cfg))
}

// connection is one that is open, and who serves it.
type connection struct {
	net.Conn
	t      *testing.T
	served string
}

func (p *pair) connect(to netip.Addr, port uint16) *connection {
	p.t.Helper()
	conn, err := p.dial(p.t.Context(), netip.AddrPortFrom(to, port))
	require.NoError(p.t, err)
	p.t.Cleanup(func() { conn.Close() })
	name := make([]byte, 1)
	require.NoError(p.t, conn.SetDeadline(time.Now().Add(time.Minute)))
	_, err = io.ReadFull(conn, name)
	require.NoError(p.t, err)
	return &connection{conn, p.t, string(name)}
}

// redirected connects to a, again and again until b serves.
func (p *pair) redirected(port uint16) (c *connection) {
	p.t.Helper()
	p.await("served by b", func() bool {
		c = p.connect(p.a.addrs[0], port)
		if c.served != "b" {
			c.Close()
		}
		return c.served == "b"
	})
	return c
}

func (c *connection) works() {
	c.t.Helper()
	_, err := io.WriteString(c, "hello")
	require.NoError(c.t, err)
	got := make([]byte, 5)
	_, err = io.ReadFull(c, got)
	require.NoError(c.t, err)
	require.Equal(c.t, "hello", string(got))
}

// Each change is made on both hosts while a redirected connection is open, which
// goes on; what was given up is forgotten when it ends.
func TestReconfigureKeepsConnections(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(c *changing)
		given  bool // port 80 is given up
	}{
		"port moves":          {func(c *changing) { c.cfg.Services[0].Port, c.cfg.Services[0].PortEnd = 443, 0 }, true},
		"range shrinks":       {func(c *changing) { c.cfg.Services[0].Port = 81 }, true},
		"range grows":         {func(c *changing) { c.cfg.Services[0].PortEnd = 82 }, false},
		"addresses change":    {func(c *changing) { c.cfg.Services[0].Addrs = c.addrs[1:] }, true},
		"addresses come":      {func(c *changing) { c.cfg.Services[0].Addrs = c.addrs[:] }, false},
		"service goes":        {func(c *changing) { c.cfg.Services = []node.Service{{Name: "other", Port: 443, Addrs: c.addrs[:1]}} }, true},
		"service comes":       {func(c *changing) { c.cfg.Services = append(c.cfg.Services, node.Service{Name: "b", Port: 443}) }, false},
		"policy changes":      {func(c *changing) { c.cfg.Services[0].Policy = lb.Stay{} }, false},
		"weight":              {func(c *changing) { c.cfg.Weight = -1 }, false},
		"weight of a service": {func(c *changing) { c.cfg.Services[0].Weight = 7 }, false},
		"timeouts":            {func(c *changing) { c.cfg.Timeouts.Established = time.Hour }, false},
		"reports": {func(c *changing) {
			c.cfg.Report = []netip.AddrPort{netip.MustParseAddrPort("198.18.0.2:6082"), netip.MustParseAddrPort("198.18.0.1:6082")}
		}, false},
		"a key comes":   {func(c *changing) { c.cfg.Keys = append(c.cfg.Keys, loadinfo.Key{ID: 2, Secret: make([]byte, 16)}) }, false},
		"alias allowed": {func(c *changing) { c.cfg.AliasPrefixes = []netip.Prefix{netip.MustParsePrefix("198.18.0.0/16")} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // most of it is waiting for reports
			p := newPair(t)
			open := p.redirected(80)
			for _, c := range []*changing{p.a, p.b} {
				tt.change(c)
				p.reconfigure(c)
				open.works()
			}
			former := func(c *changing) bool {
				return slices.ContainsFunc(c.services(), func(s dpr.Service) bool { return s.Former })
			}
			require.Equal(t, tt.given, former(p.a) && former(p.b))
			if name == "weight" || name == "policy changes" || tt.given {
				p.await("new connections stay", func() bool {
					c := p.connect(p.a.addrs[0], 80)
					c.Close()
					return c.served == "a"
				})
			} else {
				p.redirected(80)
			}
			open.works()
			require.NoError(t, open.Close())
			if tt.given {
				p.await("a has forgotten", func() bool { return !former(p.a) })
			}
		})
	}
}

func TestReconfigureRefuses(t *testing.T) {
	p := newPair(t)
	open := p.redirected(80)
	was := p.a.services()
	key2 := loadinfo.Key{ID: 2, Secret: make([]byte, 16)}
	for want, change := range map[string]func(c *node.Config){
		"ID cannot change from a to z":        func(c *node.Config) { c.ID = "z" },
		"Addr cannot change from 198.18.1.1":  func(c *node.Config) { c.Addr = netip.MustParseAddr("198.18.1.9") },
		"TunnelPort cannot change from 6080":  func(c *node.Config) { c.TunnelPort = 1 },
		"ReportPort cannot change":            func(c *node.Config) { c.ReportPort = 1 },
		"Interface cannot change from  to x":  func(c *node.Config) { c.Interface = "x" },
		"Interfaces cannot change from [] to": func(c *node.Config) { c.Interfaces = []string{"x"} },
		"Period cannot change from 500ms to":  func(c *node.Config) { c.Period = time.Second },
		"NAT cannot change from 61000-65534":  func(c *node.Config) { c.NAT.First = 50000 },
		"Queues cannot change from 1 to 2":    func(c *node.Config) { c.Queues = 2 },
		"MaxFlows cannot change from 0 to 9":  func(c *node.Config) { c.MaxFlows = 9 },
		"Services is empty":                   func(c *node.Config) { c.Services = nil },
		"Report is empty":                     func(c *node.Config) { c.Report = nil },
		"whether there are any cannot change": func(c *node.Config) { c.Keys = nil },
		"from key 1 to key 2 in one step":     func(c *node.Config) { c.Keys = []loadinfo.Key{key2} },
		"add the new key behind the old one":  func(c *node.Config) { c.Keys = []loadinfo.Key{key2, c.Keys[0]} },
		"fewer than 16":                       func(c *node.Config) { c.Keys = append(c.Keys, loadinfo.Key{ID: 2}) },
		"Timeouts.closing is -1ns":            func(c *node.Config) { c.Timeouts.Closing = -1 },
		"give it another name, or restart":    func(c *node.Config) { c.Services[0].Proto = dpr.UDP },
		`"www" would take tcp port 80 from "web", of which peers serve`: func(c *node.Config) {
			c.Services[0].Name = "www"
		},
	} {
		cfg := p.a.cfg
		cfg.Services = slices.Clone(cfg.Services)
		cfg.Keys = slices.Clone(cfg.Keys)
		change(&cfg)
		require.ErrorContains(t, p.a.node.Reconfigure(cfg), want)
		require.Equal(t, was, p.a.services(), want)
		open.works()
		p.redirected(80)
	}
}

// When the host refuses halfway, all goes back to what was.
func TestReconfigureIsAllOrNothing(t *testing.T) {
	p := newPair(t)
	was := p.a.services()
	refused := errors.New("no room")
	p.a.mu.Lock()
	p.a.refuse = refused
	p.a.mu.Unlock()
	cfg := p.a.cfg
	cfg.Services = []node.Service{{Name: "other", Port: 443, Addrs: p.a.addrs[:1]}}
	require.ErrorIs(t, p.a.node.Reconfigure(cfg), refused)
	require.Equal(t, was, p.a.services())
	require.Contains(t, p.a.node.Status().Services, "web")
	p.redirected(80)
	p.reconfigure(p.a)
}

// Drain outlasts a change of the configuration; weights and keys reach their users.
func TestReconfigureTellsTheCluster(t *testing.T) {
	p := newPair(t)
	p.b.node.Drain()
	p.b.cfg.Weight, p.b.cfg.Services[0].Weight = 5, 7
	p.reconfigure(p.b)
	require.Equal(t, loadinfo.Draining, p.b.node.State())
	seen := func() loadinfo.Member {
		members := p.a.node.Status().Members
		return members[slices.IndexFunc(members, func(m loadinfo.Member) bool { return m.ID == "b" })]
	}
	boot := seen().Boot
	p.await("a knows", func() bool {
		m := seen()
		return m.State == loadinfo.Draining && m.Weight == 5 && m.Services[0].Weight == 7
	})
	require.Equal(t, boot, seen().Boot, "it is the same life")
	p.b.node.Undrain()
	for _, ids := range [][]uint8{{1, 2}, {2, 1}, {2}} {
		for _, c := range []*changing{p.a, p.b} {
			c.cfg.Keys = nil
			for _, id := range ids {
				c.cfg.Keys = append(c.cfg.Keys, loadinfo.Key{ID: id, Secret: make([]byte, 30+id)})
			}
			if ids[0] == 1 {
				c.cfg.Keys[0].Secret = make([]byte, 32)
			}
			if len(ids) == 2 && ids[1] == 1 {
				c.cfg.Keys[1].Secret = make([]byte, 32)
			}
			p.reconfigure(c)
			require.Equal(t, c.cfg.Keys, c.keys)
		}
		heard := func(c *changing) uint64 { return c.node.Status().Reports.Accepted }
		ofA, ofB := heard(p.a), heard(p.b)
		p.await("they hear each other", func() bool { return heard(p.a) > ofA+1 && heard(p.b) > ofB+1 })
	}
	require.Zero(t, p.a.node.Status().Reports.UnknownKey)
}

// A peer whose address is outside of the prefixes is followed all the same.
func TestAliasPrefixesChange(t *testing.T) {
	p := newPair(t)
	p.b.cfg.AliasPrefixes = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
	p.reconfigure(p.b)
	dropped := func() uint64 { return p.b.node.Status().Engine.Drops[dpr.NotService] }
	before := dropped()
	p.await("b does not answer for a's address", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		conn, err := p.dial(ctx, netip.AddrPortFrom(p.a.addrs[0], 80))
		if err == nil { // it stayed: b's reports were late
			conn.Close()
		}
		return dropped() > before
	})
	p.b.cfg.AliasPrefixes = nil
	p.reconfigure(p.b)
	p.redirected(80)
}
