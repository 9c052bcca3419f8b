package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"time"

	gvisorlog "gvisor.dev/gvisor/pkg/log"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/dpr/dprtest/netstack"
	"github.com/carom-dpr/carom/dpr/gue"
	"github.com/carom-dpr/carom/dpr/node"
	"github.com/carom-dpr/carom/internal/header"
	"github.com/carom-dpr/carom/loadinfo"
	"github.com/carom-dpr/carom/loadinfo/gossip"
)

// A memoryCluster has a TCP stack of gVisor's for every host and client, joined by
// a network in memory.
type memoryCluster struct {
	o       options
	network *dprtest.Network
	hosts   []*memoryHost
	clients []*memoryClient

	nodes, stacks parts // nodes end first: they use the stacks
}

// parts are goroutines that end together.
type parts struct {
	ctx    context.Context
	cancel context.CancelFunc
	ended  sync.WaitGroup

	mu  sync.Mutex
	err error
}

func (p *parts) begin(ctx context.Context) { p.ctx, p.cancel = context.WithCancel(ctx) }

// run runs a part, which ends when p.ctx does, and keeps its error.
func (p *parts) run(part func(context.Context) error) {
	p.ended.Go(func() {
		if err := part(p.ctx); err != nil {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.err = errors.Join(p.err, err)
		}
	})
}

// end ends all parts and returns what went wrong with them.
func (p *parts) end() error {
	p.cancel()
	p.ended.Wait()
	return p.err
}

type memoryHost struct {
	name string
	addr netip.Addr
	node *node.Node
	web  *web
}

type memoryClient struct {
	load *load
	wire *checkedWire
}

// mtu is that of the network in memory, Ethernet's.
const mtu = 1500

// perfectLink is a host's connection to the network where a test wants no worse.
var perfectLink = dprtest.Link{MTU: mtu, Queue: 4096}

func newMemoryCluster(ctx context.Context, o options) (cluster, error) {
	gvisorlog.SetTarget(gvisorlog.GoogleEmitter{Writer: &gvisorlog.Writer{Next: io.Discard}}) // it reports lost handshakes
	c := &memoryCluster{o: o, network: dprtest.NewNetwork(1)}
	c.nodes.begin(context.WithoutCancel(ctx))
	c.stacks.begin(context.WithoutCancel(ctx))
	if err := c.build(ctx); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *memoryCluster) build(ctx context.Context) error {
	var reports []netip.AddrPort
	for i := range c.o.Hosts {
		reports = append(reports, netip.AddrPortFrom(address(c.o.IPv6, hosts, i), reportPort))
	}
	for i := range c.o.Hosts {
		if err := c.addHost(i, reports); err != nil {
			return err
		}
	}
	for i := range min(maxClients, c.o.Concurrency, c.o.Requests) {
		if err := c.addClient(i); err != nil {
			return err
		}
	}
	return c.awaitUp(ctx)
}

// addHost adds a host with two interfaces: one that clients dial, with the stack
// behind it, and one for the tunnel.
func (c *memoryCluster) addHost(i int, reports []netip.AddrPort) error {
	h := &memoryHost{name: fmt.Sprintf("h%d", i+1), addr: address(c.o.IPv6, hosts, i), web: &web{serviceTime: c.o.ServiceTime}}
	tunnel := address(c.o.IPv6, tunnels, i)
	overhead := gue.Overhead(c.o.IPv6, false)
	stack, err := c.stack(h.name, h.addr, overhead, func(d dpr.Device) dpr.Device { return d })
	if err != nil {
		return err
	}
	c.stacks.run(stack.Run)
	under, err := c.network.Join(c.o.link, tunnel)
	if err != nil {
		return err
	}
	uplink, err := gue.NewOverIP(gue.Config{Listen: []netip.AddrPort{netip.AddrPortFrom(tunnel, gue.Port)}}, under)
	if err != nil {
		return err
	}
	conn, err := stack.ListenPacket(netip.AddrPortFrom(h.addr, reportPort))
	if err != nil {
		return err
	}
	transport, err := c.transport(h, stack, udpConn{conn}, reports)
	if err != nil {
		return err
	}
	to := reports
	if transport != nil {
		to = nil
	}
	policy, err := c.o.policy()
	if err != nil {
		return err
	}
	h.node, err = node.New(node.Config{
		ID:       h.name,
		Addr:     tunnel,
		Services: []node.Service{{Name: serviceName, Port: servicePort, Addrs: []netip.Addr{h.addr}, Policy: policy, Reply: c.o.reply()}},
		Report:   to, Transport: transport,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}, node.Host{
		Devices:    []dpr.Device{stack.TUN()},
		Uplinks:    []dpr.Device{uplink},
		Replies:    stack.Sender(),
		Reports:    udpConn{conn},
		MTU:        mtu - overhead,
		SetAliases: stack.SetAliases,
		SetPeers: func(peers []node.Peer) error {
			list := make([]gue.Peer, len(peers))
			for i, p := range peers {
				list[i] = gue.Peer{ID: p.ID, Addr: p.Addr}
			}
			return uplink.SetPeers(list)
		},
	})
	if err != nil {
		return err
	}
	c.hosts = append(c.hosts, h)
	c.nodes.run(h.node.Run)
	if err := c.answer(h, stack); err != nil {
		return err
	}
	return c.serve(h, stack)
}

// A transport is what node.Config calls so.
type transport = func(*loadinfo.Board, *loadinfo.Keyring) (loadinfo.Transport, error)

// transport returns how reports travel; nil for broadcast.
func (c *memoryCluster) transport(h *memoryHost, stack *netstack.Host, conn loadinfo.PacketConn, peers []netip.AddrPort) (transport, error) {
	if c.o.Gossip != "memberlist" {
		return nil, nil
	}
	ln, err := stack.Listen(reportPort)
	if err != nil {
		return nil, err
	}
	return gossiping(gossip.Config{
		Conn: conn, Listener: ln, Advertise: netip.AddrPortFrom(h.addr, reportPort), Seeds: seeds(peers),
		Dial: func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			return stack.Dial(ctx, netip.AddrPort{}, to)
		},
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	}), nil
}

// answer starts the host's name server if there is to be one.
func (c *memoryCluster) answer(h *memoryHost, stack *netstack.Host) error {
	if !c.o.DNS {
		return nil
	}
	conn, err := stack.ListenPacket(netip.AddrPortFrom(h.addr, dnsPort))
	if err != nil {
		return err
	}
	ln, err := stack.Listen(dnsPort)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	c.nodes.run(func(ctx context.Context) error { return answer(ctx, h.node.Board(), conn, ln) })
	return nil
}

// stack makes a host's stack on the network; wrap may put something before its
// network card.
func (c *memoryCluster) stack(name string, addr netip.Addr, overhead int, wrap func(dpr.Device) dpr.Device) (*netstack.Host, error) {
	wire, err := c.network.Join(c.o.link, addr)
	if err != nil {
		return nil, err
	}
	return netstack.New(netstack.Config{
		Name:     name,
		Addrs:    []netip.Prefix{prefix(addr)},
		MTU:      mtu,
		Overhead: overhead,
		Wire:     wrap(wire),
		Capture:  isService,
		Bypass:   true,

		Tunnelled: c.o.reply() == dpr.ReplyTunnelled,
	})
}

// isService reports whether a packet is for the web service, as the capture
// program of a real host does.
func isService(pkt []byte) bool {
	var h header.Packet
	return h.Parse(pkt) == header.OK && h.Proto == header.ProtoTCP && h.DstPort == servicePort
}

func (c *memoryCluster) serve(h *memoryHost, stack *netstack.Host) error {
	ln, err := stack.Listen(servicePort)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: h.web}
	c.nodes.run(func(ctx context.Context) error {
		context.AfterFunc(ctx, func() { server.Close() })
		if err := server.Serve(h.node.Wrap(serviceName, ln)); ctx.Err() == nil {
			return err
		}
		return nil
	})
	return nil
}

func (c *memoryCluster) addClient(i int) error {
	client := &memoryClient{}
	addr := address(c.o.IPv6, clients, i)
	stack, err := c.stack(fmt.Sprintf("c%d", i+1), addr, 0, func(d dpr.Device) dpr.Device {
		client.wire = &checkedWire{Device: d, dialled: make(map[dial]bool)}
		return client.wire
	})
	if err != nil {
		return err
	}
	c.stacks.run(stack.Run)
	n := min(maxClients, c.o.Concurrency, c.o.Requests)
	client.load = &load{
		dial: func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			return stack.Dial(ctx, netip.AddrPort{}, to)
		},
		targets:     c.o.targets(i),
		requests:    share(c.o.Requests, n, i),
		concurrency: share(c.o.Concurrency, n, i),
	}
	if servers := c.o.nameServers(i); servers != nil {
		// By TCP whatever it asks for: this stack's connections are streams.
		client.load.finder = newFinder(servers, func(ctx context.Context, _ string, to netip.AddrPort) (net.Conn, error) {
			return stack.Dial(ctx, netip.AddrPort{}, to)
		})
	}
	client.load.prepare()
	c.clients = append(c.clients, client)
	return nil
}

// awaitUp waits until every host knows that all are up.
func (c *memoryCluster) awaitUp(ctx context.Context) error {
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	timeout := time.After(startTimeout)
	for {
		up := 0
		for _, h := range c.hosts {
			if hostsUp(h.node) == c.o.Hosts {
				up++
			}
		}
		if up == c.o.Hosts {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errInterrupted
		case <-timeout:
			return fmt.Errorf("hosts do not know each other after %v", startTimeout)
		}
	}
}

// hostsUp returns how many hosts the node knows to be up.
func hostsUp(n *node.Node) (up int) {
	for _, m := range n.Status().Members {
		if m.State == loadinfo.Up {
			up++
		}
	}
	return up
}

func (c *memoryCluster) start(ctx context.Context) <-chan error {
	done := make(chan error, 1)
	var running sync.WaitGroup
	for _, client := range c.clients {
		running.Go(func() { client.load.run(ctx) })
	}
	go func() {
		running.Wait()
		select {
		case <-time.After(3 * reportEvery): // for the counts to settle
		case <-ctx.Done():
		}
		done <- ctx.Err()
	}()
	return done
}

func (c *memoryCluster) progress() (done int) {
	for _, client := range c.clients {
		done += int(client.load.done.Load())
	}
	return done
}

func (c *memoryCluster) result() result {
	r := result{Net: "memory"}
	for _, h := range c.hosts {
		s := h.node.Status()
		flows := s.Engine.Services[serviceName]
		r.Hosts = append(r.Hosts, hostResult{
			Name: h.name, Addr: h.addr.String(), Served: int(h.web.served.Load()),
			RedirectedOut: int(flows.RedirectedOut), RedirectedIn: int(flows.RedirectedIn),
			established: s.Services[serviceName].Conns,
		})
	}
	var all []time.Duration
	for i, client := range c.clients {
		r.add(client.load.state(client.wire.strange()), i)
		all = append(all, client.load.took()...)
	}
	r.LatencyMS = summarize(all)
	return r
}

func (c *memoryCluster) enter() string {
	return "It is in this process's memory: there is nothing to enter."
}

func (c *memoryCluster) close() error {
	return errors.Join(c.nodes.end(), c.stacks.end(), c.network.Close())
}

// udpConn gives a packet connection the two methods that reports need.
type udpConn struct{ net.PacketConn }

func (c udpConn) ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error) {
	n, from, err := c.ReadFrom(b)
	if err != nil {
		return n, netip.AddrPort{}, err
	}
	return n, from.(*net.UDPAddr).AddrPort(), nil
}

func (c udpConn) WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error) {
	return c.WriteTo(b, net.UDPAddrFromAddrPort(to))
}

// A checkedWire is a client's network card that counts SYN-ACKs from addresses
// that were not dialled.
type checkedWire struct {
	dpr.Device
	mu      sync.Mutex
	dialled map[dial]bool
	wrong   int
}

func (w *checkedWire) Write(pkts []dpr.Packet) (int, error) {
	w.look(pkts, header.SYN, func(h *header.Packet) {
		w.dialled[dial{h.SrcPort, netip.AddrFrom16(h.Dst).Unmap()}] = true
	})
	return w.Device.Write(pkts)
}

func (w *checkedWire) Read(pkts []dpr.Packet) (int, error) {
	n, err := w.Device.Read(pkts)
	if err == nil {
		w.look(pkts[:n], header.SYN|header.ACK, func(h *header.Packet) {
			if !w.dialled[dial{h.DstPort, netip.AddrFrom16(h.Src).Unmap()}] {
				w.wrong++
			}
		})
	}
	return n, err
}

// look calls f for each TCP packet with exactly these of SYN and ACK.
func (w *checkedWire) look(pkts []dpr.Packet, flags uint8, f func(*header.Packet)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range pkts {
		var h header.Packet
		if h.Parse(pkts[i].Bytes()) == header.OK && h.Proto == header.ProtoTCP && h.TCPFlags&(header.SYN|header.ACK) == flags {
			f(&h)
		}
	}
}

func (w *checkedWire) strange() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.wrong
}
