// Command minimal redirects connections to one other host through a TUN interface of
// songgao/water: an engine, a device and an uplink, and nothing else of carom. It
// reads no load, counts no sockets and changes nothing on the host, so the host has
// to be set up by hand, and what package node does shows as what is missing.
//
// Three hosts on one network: a client, an entry host 10.0.0.1 that clients reach the
// service's address through, and a serving host 10.0.0.2 that has this address and a
// web server. Both run this program:
//
//	entry#   minimal -addr 10.0.0.1 -peer 10.0.0.2 -service 192.0.2.80
//	serving# minimal -addr 10.0.0.2 -peer 10.0.0.1 -service 192.0.2.80
//
// The entry host routes the service's address into the TUN; packets for it are not
// its own and so are forwarded there:
//
//	entry#   ip link set tun0 up
//	entry#   ip route add 192.0.2.80 dev tun0
//	entry#   sysctl -w net.ipv4.ip_forward=1
//
// The serving host has the address, on an interface that nobody asks for it, and
// takes packets for it from the TUN, from where no route leads back to their senders:
//
//	serving# ip address add 192.0.2.80 dev lo
//	serving# ip link set tun0 up
//	serving# ip address add 192.0.0.8 dev tun0
//	serving# sysctl -w net.ipv4.conf.tun0.rp_filter=2
//
// And the client asks by way of the entry host; the answer comes without it:
//
//	client#  ip route add 192.0.2.80 via 10.0.0.1
//	client#  curl http://192.0.2.80/
//
// Not seen to: requests longer than the tunnel's MTU, which need the server to
// announce a smaller segment size (ip route ... advmss).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/netip"
	"os"
	"os/signal"
	"syscall"

	"github.com/songgao/water"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/gue"
	"github.com/carom-dpr/carom/lb"
)

func main() {
	var addr, peer, service netip.Addr
	flag.TextVar(&addr, "addr", netip.Addr{}, "this host's address")
	flag.TextVar(&peer, "peer", netip.Addr{}, "the other host's address")
	flag.TextVar(&service, "service", netip.Addr{}, "the address that clients dial")
	flag.Parse()
	if flag.NArg() > 0 || !addr.IsValid() || !peer.IsValid() || !service.IsValid() {
		fmt.Fprintln(os.Stderr, "minimal: give -addr, -peer and -service, and nothing else")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, addr, peer, service); err != nil {
		log.Fatal(err)
	}
}

// run hands every connection that the TUN brings to the peer, and gives the kernel
// what the peer hands over, until ctx is done.
func run(ctx context.Context, addr, peer, service netip.Addr) error {
	engine, err := newEngine(service)
	if err != nil {
		return err
	}
	defer engine.Close()
	tun, err := water.New(water.Config{DeviceType: water.TUN})
	if err != nil {
		return err
	}
	defer tun.Close()
	uplink, err := gue.Open(gue.Config{Listen: []netip.AddrPort{netip.AddrPortFrom(addr, gue.Port)}})
	if err != nil {
		return err
	}
	defer uplink.Close()
	err = uplink.SetPeers([]gue.Peer{{ID: engine.PeerID("peer"), Addr: netip.AddrPortFrom(peer, gue.Port)}})
	if err != nil {
		return err
	}
	log.Println("interface", tun.Name())
	router := &dpr.Router{
		Engine:  engine,
		Devices: []dpr.Device{dpr.FromReadWriter(tun)},
		Uplinks: []dpr.Device{uplink.Queues[0]},
	}
	return router.Run(ctx)
}

// newEngine returns an engine that finds every connection better served by the peer,
// since this host says that it drains.
func newEngine(service netip.Addr) (*dpr.Engine, error) {
	engine, err := dpr.New(dpr.Config{
		Services:   []dpr.Service{{Name: "web", Proto: dpr.TCP, Port: 80, Addrs: []netip.Addr{service}}},
		TrackLocal: true, // no capture program keeps local flows away
	})
	if err != nil {
		return nil, err
	}
	hosts := []lb.Host{{ID: "here", Flags: lb.Local | lb.Draining}, {ID: "peer", Weight: 1}}
	err = errors.Join(
		engine.SetPeers([]dpr.Peer{{ID: "peer"}}),
		engine.SetSnapshot("web", lb.HomeOrOther{}, &lb.Snapshot{Hosts: hosts}),
	)
	return engine, err
}
