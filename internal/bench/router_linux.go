package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/gue"
	"github.com/carom-dpr/carom/dpr/hostnet"
	"github.com/carom-dpr/carom/dpr/node"
	"github.com/carom-dpr/carom/dpr/tun"
	"github.com/carom-dpr/carom/lb"
	"github.com/carom-dpr/carom/loadinfo"
)

// A routerRole is carom's router on a host.
type routerRole struct {
	ID       string
	Addr     netip.Addr
	Peers    []netip.AddrPort // where reports go
	Away     bool             // every connection is for a peer; without it none is
	Plain    bool             // no offload in TUN and tunnel
	MaxFlows int              `json:",omitempty"`
}

const reportPort = 6082

// clusterKey is the cluster's key: what it costs to authenticate is part of what
// carom costs.
var clusterKey = loadinfo.Key{ID: 1, Secret: []byte("a key of the bench's own, 32 byte")}

func (r *routerRole) play(ctx context.Context) error {
	var policy lb.Policy = lb.Stay{}
	if r.Away {
		policy = away{}
	}
	cfg := node.Config{
		ID:   r.ID,
		Addr: r.Addr,
		Services: []node.Service{
			{Name: "tcp", Port: httpPort, PortEnd: bulkPort, Policy: policy},
			{Name: "udp", Proto: dpr.UDP, Port: udpPort, Policy: policy},
		},
		Report:   r.Peers,
		Keys:     []loadinfo.Key{clusterKey},
		MaxFlows: r.MaxFlows,
		Logger:   slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	}
	open := node.Open
	if r.Plain {
		open = openPlain
	}
	n, err := open(cfg)
	if err != nil {
		return err
	}
	say(message{Ready: true})
	return n.Run(ctx)
}

// away sends every connection to the first peer that may have it.
type away struct{}

func (away) Build(s *lb.Snapshot) lb.Picker {
	for i := range s.Hosts {
		if i != s.Self && s.Hosts[i].Eligible() {
			return to(i)
		}
	}
	return lb.Stay{}.Build(s)
}

// to is the index of the host that gets everything.
type to int

func (t to) Pick(lb.Flow, time.Duration) lb.Choice { return lb.Choice{Do: lb.Send, Host: int(t)} }

// openPlain does what node.Open does, without offload: each packet is read from and
// written to the TUN by a system call of its own, and is a datagram of its own in the
// tunnel. Connections are not counted, since the policy does not ask.
func openPlain(cfg node.Config) (*node.Node, error) {
	const mtu = 1500
	keys := []gue.Key{{ID: 1, Secret: [16]byte(clusterKey.Secret)}}
	u, err := gue.Open(gue.Config{
		Listen: []netip.AddrPort{netip.AddrPortFrom(cfg.Addr, gue.Port)}, Keys: keys, NoOffload: true,
	})
	if err != nil {
		return nil, err
	}
	t, err := tun.Open(tun.Config{NoOffload: true})
	if err != nil {
		return nil, errors.Join(err, u.Close())
	}
	overhead := gue.Overhead(false, true)
	n, err := hostnet.Open(hostnet.Config{TUN: t.Name, Services: captured(cfg.Services, cfg.Addr), Overhead: overhead})
	if err != nil {
		return nil, errors.Join(err, u.Close(), t.Close())
	}
	reports, err := loadinfo.Listen(netip.AddrPortFrom(netip.IPv4Unspecified(), reportPort))
	if err != nil {
		return nil, errors.Join(err, n.Close(), u.Close(), t.Close())
	}
	return node.New(cfg, node.Host{
		Devices: []dpr.Device{t.Queues[0]}, Uplinks: []dpr.Device{u.Queues[0]}, Reports: reports,
		MTU:        mtu - overhead,
		SetPeers:   func(peers []node.Peer) error { return u.SetPeers(tunnelPeers(peers)) },
		SetAliases: n.SetAliases,
		Beat:       func(time.Time) { n.Beat() },
		Run:        n.Run,
		Unwire:     n.Close,
	})
}

func tunnelPeers(peers []node.Peer) []gue.Peer {
	list := make([]gue.Peer, len(peers))
	for i, p := range peers {
		list[i] = gue.Peer{ID: p.ID, Addr: p.Addr, MTU: p.MTU}
	}
	return list
}

func captured(services []node.Service, addr netip.Addr) []hostnet.Service {
	list := make([]hostnet.Service, len(services))
	for i, s := range services {
		proto := s.Proto
		if proto == 0 {
			proto = dpr.TCP
		}
		list[i] = hostnet.Service{Protocol: uint8(proto), Port: s.Port, PortEnd: s.PortEnd, Addrs: []netip.Addr{addr}}
	}
	return list
}

// addCarom makes a world's forwarder of a carom router on the entry host and one on
// the server's. What enters at the entry host is served by the other, or, with
// nobody away, by itself.
func addCarom(w *world, away, plain bool, maxFlows int) error {
	var reports []netip.AddrPort
	for _, h := range []*host{w.entry, w.server} {
		reports = append(reports, netip.AddrPortFrom(h.Addr4(), reportPort))
	}
	for i, h := range []*host{w.entry, w.server} {
		c, err := startRole(h.Host, "carom", role{Router: &routerRole{
			ID: fmt.Sprintf("h%d", i+1), Addr: h.Addr4(), Peers: reports, Away: away && i == 0, Plain: plain, MaxFlows: maxFlows,
		}})
		if err != nil {
			return err
		}
		w.forwarder = append(w.forwarder, c)
	}
	for _, c := range w.forwarder {
		if err := c.awaitReady(w.ctx); err != nil {
			return err
		}
	}
	return nil
}
