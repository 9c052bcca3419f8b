package node_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/dpr/dprtest/netstack"
	"github.com/carom-dpr/carom/dpr/gue"
	"github.com/carom-dpr/carom/dpr/node"
	"github.com/carom-dpr/carom/loadinfo"
)

// Nodes made of parts: a TCP stack in memory for the kernel, and links in memory for
// the network. It runs on any system and without privileges. Clients dial one of two
// hosts only, and stay connected.
func ExampleNew() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	network := dprtest.NewNetwork(1)
	defer network.Close()
	a, b := newMemoryHost(network, "a", 1), newMemoryHost(network, "b", 2)
	done := make(chan error)
	go func() { done <- a.run(ctx) }()
	go func() { done <- b.run(ctx) }()
	for tick := time.Tick(10 * time.Millisecond); !a.knows("b") || !b.knows("a"); {
		<-tick
	}

	client := newStack(network, "client", netip.MustParseAddr("198.18.0.101"), nil)
	go client.Run(ctx)
	served := make(map[string]int)
	for len(served) < 2 { // a host whose reports are late gets none meanwhile
		c, err := client.Dial(ctx, netip.AddrPort{}, netip.MustParseAddrPort("198.18.0.1:80"))
		if err != nil {
			panic(err)
		}
		name := make([]byte, 1)
		if _, err := io.ReadFull(c, name); err != nil {
			panic(err)
		}
		served[string(name)]++
	}
	fmt.Println("a and b serve, of those who dialled a:", served["a"] > 0, served["b"] > 0)
	fmt.Println("a handed over what b serves:", a.node.Status().Engine.Services["web"].RedirectedOut == uint64(served["b"]))

	client.Close()
	cancel()
	fmt.Println(errors.Join(<-done, <-done))
	// Output:
	// a and b serve, of those who dialled a: true true
	// a handed over what b serves: true
	// <nil>
}

type memoryHost struct {
	stack *netstack.Host
	node  *node.Node
}

// newMemoryHost makes a host whose server says the host's name, one letter.
func newMemoryHost(network *dprtest.Network, name string, number byte) *memoryHost {
	addr, tunnel := netip.AddrFrom4([4]byte{198, 18, 0, number}), netip.AddrFrom4([4]byte{198, 18, 1, number})
	stack := newStack(network, name, addr, func(pkt []byte) bool { return true })
	under, err := network.Join(dprtest.Link{MTU: 1500}, tunnel)
	if err != nil {
		panic(err)
	}
	uplink, err := gue.NewOverIP(gue.Config{Listen: []netip.AddrPort{netip.AddrPortFrom(tunnel, gue.Port)}}, under)
	if err != nil {
		panic(err)
	}
	conn, err := stack.ListenPacket(netip.AddrPortFrom(addr, 6082))
	if err != nil {
		panic(err)
	}
	n, err := node.New(node.Config{
		ID:       name,
		Addr:     tunnel,
		Services: []node.Service{{Name: "web", Port: 80, Addrs: []netip.Addr{addr}}},
		Report:   []netip.AddrPort{netip.MustParseAddrPort("198.18.0.1:6082"), netip.MustParseAddrPort("198.18.0.2:6082")},
		Period:   100 * time.Millisecond,
	}, node.Host{
		Devices: []dpr.Device{stack.TUN()},
		Uplinks: []dpr.Device{uplink},
		Replies: stack.Sender(),
		Reports: reportConn{conn},
		MTU:     1500 - gue.Overhead(false, false),
		SetPeers: func(peers []node.Peer) error {
			list := make([]gue.Peer, len(peers))
			for i, p := range peers {
				list[i] = gue.Peer{ID: p.ID, Addr: p.Addr}
			}
			return uplink.SetPeers(list)
		},
		SetAliases: stack.SetAliases,
	})
	if err != nil {
		panic(err)
	}
	return &memoryHost{stack, n}
}

// newStack makes a TCP stack on the network.
func newStack(network *dprtest.Network, name string, addr netip.Addr, capture func([]byte) bool) *netstack.Host {
	wire, err := network.Join(dprtest.Link{MTU: 1500}, addr)
	if err != nil {
		panic(err)
	}
	stack, err := netstack.New(netstack.Config{
		Name: name, Addrs: []netip.Prefix{netip.PrefixFrom(addr, 16)}, Wire: wire, Capture: capture, Bypass: true,
	})
	if err != nil {
		panic(err)
	}
	return stack
}

// run serves until ctx is done.
func (h *memoryHost) run(ctx context.Context) error {
	ln, err := h.stack.Listen(80)
	if err != nil {
		return err
	}
	go h.stack.Run(ctx)
	go func() {
		for ln := h.node.Wrap("web", ln); ; {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.WriteString(c, h.node.Status().ID)
				io.Copy(io.Discard, c) // until the client ends
			}()
		}
	}()
	defer ln.Close()
	defer h.stack.Close()
	return h.node.Run(ctx)
}

// knows reports whether the other host is known to be up.
func (h *memoryHost) knows(other string) bool {
	for _, m := range h.node.Status().Members {
		if m.ID == other && m.State == loadinfo.Up {
			return h.node.State() == loadinfo.Up
		}
	}
	return false
}

// A reportConn gives a packet connection the methods that reports need.
type reportConn struct{ net.PacketConn }

func (c reportConn) ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error) {
	n, from, err := c.ReadFrom(b)
	if err != nil {
		return n, netip.AddrPort{}, err
	}
	return n, from.(*net.UDPAddr).AddrPort(), nil
}

func (c reportConn) WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error) {
	return c.WriteTo(b, net.UDPAddrFromAddrPort(to))
}
