package node_test

import (
	"context"
	"io"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/internal/header"
	"github.com/carom-dpr/carom/lb"
	"github.com/carom-dpr/carom/loadinfo"
)

// trio is three hosts in memory and a client. a hands all to b, b to c, and c to a.
type trio struct {
	t       *testing.T
	network *dprtest.Network
	hosts   map[string]*changing
	dial    func(to *changing) *connection
}

func newTrio(t *testing.T) *trio {
	ctx, cancel := context.WithCancel(context.Background())
	p := &trio{t: t, network: dprtest.NewNetwork(1), hosts: make(map[string]*changing)}
	client := newStack(p.network, "client", netip.MustParseAddr("198.18.0.101"), nil)
	parts := []func(context.Context) error{client.Run}
	for i, name := range []string{"a", "b", "c"} {
		h := newChanging(t, p.network, name, byte(i+1), 3)
		h.echo(t, 80)
		p.hosts[name] = h
		parts = append(parts, h.stack.Run, h.node.Run)
	}
	var running sync.WaitGroup
	for _, run := range parts {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() { cancel(); running.Wait(); p.network.Close() })
	p.dial = func(to *changing) *connection {
		conn, err := client.Dial(ctx, netip.AddrPort{}, netip.AddrPortFrom(to.addrs[0], 80))
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		name := make([]byte, 1)
		_, err = io.ReadFull(conn, name)
		require.NoError(t, err)
		return &connection{conn, t, string(name)}
	}
	p.settle()
	return p
}

func (p *trio) await(what string, condition func() bool) {
	p.t.Helper()
	require.Eventually(p.t, condition, time.Minute, time.Millisecond, what)
}

// settle waits until all know each other, and gives each host its policy.
func (p *trio) settle() {
	for _, h := range p.hosts {
		p.await("all are up", func() bool { return h.knows("a") && h.knows("b") && h.knows("c") })
	}
	for from, to := range map[string]string{"a": "b", "b": "c", "c": "a"} {
		h := p.hosts[from]
		h.cfg.Services = slices.Clone(h.cfg.Services)
		h.cfg.Services[0].Policy = lb.Policy(handTo(to))
		require.NoError(p.t, h.node.Reconfigure(h.cfg))
	}
}

// loaded is a connection whose client sends all the time, and gets all back.
type loaded struct {
	*connection
	rounds chan struct{}
	failed chan error
}

// load opens a connection to a host, and loads it in both directions.
func (p *trio) load(to, served string) *loaded {
	c := &loaded{p.dial(p.hosts[to]), make(chan struct{}, 1), make(chan error, 1)}
	require.Equal(p.t, served, c.served)
	go func() { c.failed <- c.run() }()
	return c
}

// read opens connections whose clients say nothing and wait.
func (p *trio) read(to, served string) (list []*loaded) {
	for range 5 {
		c := &loaded{connection: p.dial(p.hosts[to]), failed: make(chan error, 1)}
		require.Equal(p.t, served, c.served)
		go func() { _, err := c.Read(make([]byte, 1)); c.failed <- err }()
		list = append(list, c)
	}
	return list
}

// run sends and gets rounds of 64 KiB until that fails. It leaves the machine time.
func (c *loaded) run() error {
	sent, got := make([]byte, 64<<10), make([]byte, 64<<10)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		written := make(chan error, 1)
		go func() { _, err := c.Write(sent); written <- err }()
		if _, err := io.ReadFull(c, got); err != nil {
			c.Close()
			<-written
			return err
		}
		if err := <-written; err != nil {
			return err
		}
		select {
		case c.rounds <- struct{}{}:
		default:
		}
	}
	return nil
}

// A host falls off the network in the midst of transfers. The clients of what it served
// are reset, and those of what others serve for it; the others notice nothing.
func TestKilledHost(t *testing.T) {
	p := newTrio(t)
	var served, entered, others []*loaded
	for range 5 {
		served = append(served, p.load("a", "b"))
		entered = append(entered, p.load("b", "c"))
		others = append(others, p.load("c", "a"))
	}
	for _, c := range slices.Concat(served, entered, others) {
		<-c.rounds
	}
	reading := p.read("a", "b")
	dead := p.hosts["b"]
	p.network.SetFilter(func(from, to *dprtest.Endpoint, _ []byte) bool {
		return !owns(from, dead) && !owns(to, dead)
	})
	for _, name := range []string{"a", "c"} {
		p.await("b is down", func() bool { return stateOf(p.hosts[name], "b") == loadinfo.Down })
	}
	for _, c := range slices.Concat(served, entered, reading) {
		require.ErrorContains(t, <-c.failed, "reset")
	}
	require.NotZero(t, p.hosts["a"].node.Status().Engine.Resets)
	p.await("c has counted them", func() bool { return p.hosts["c"].node.Status().Aborted == uint64(len(entered)) })
	require.Zero(t, p.hosts["a"].node.Status().Aborted)
	for _, c := range others {
		for range 3 {
			select {
			case <-c.rounds:
			case err := <-c.failed:
				require.NoError(t, err)
			}
		}
	}
}

// A host that hears nobody for a while takes it for the network's fault: what it serves
// for others goes on when it hears them again.
func TestDeafHost(t *testing.T) {
	p := newTrio(t)
	c := p.load("a", "b")
	<-c.rounds
	deaf := p.hosts["b"]
	p.network.SetFilter(func(_, to *dprtest.Endpoint, pkt []byte) bool {
		return !owns(to, deaf) || !isReport(pkt)
	})
	for _, name := range []string{"a", "c"} {
		p.await("b takes all others for dead", func() bool { return deaf.node.Engine().PeerID(name) == 0 })
	}
	p.network.SetFilter(nil)
	p.await("b hears them again", func() bool { return deaf.knows("a") && deaf.knows("c") })
	for range 3 {
		select {
		case <-c.rounds:
		case err := <-c.failed:
			require.NoError(t, err)
		}
	}
	require.Zero(t, deaf.node.Status().Aborted)
}

func isReport(pkt []byte) bool {
	var h header.Packet
	return h.Parse(pkt) == header.OK && h.Proto == header.ProtoUDP && h.DstPort == 6082
}

// owns reports whether an endpoint is one of the host's.
func owns(e *dprtest.Endpoint, h *changing) bool {
	return slices.ContainsFunc(e.Addrs(), func(a netip.Addr) bool { return a == h.addrs[0] || a == h.cfg.Addr })
}

func stateOf(h *changing, other string) loadinfo.State {
	members := h.node.Status().Members
	return members[slices.IndexFunc(members, func(m loadinfo.Member) bool { return m.ID == other })].State
}
