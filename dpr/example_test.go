package dpr_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/lb"
)

// An engine without any device: packets go in, verdicts come out, and services and
// peers come and go meanwhile.
func ExampleEngine() {
	here := netip.MustParseAddr("192.0.2.1")
	www := dpr.Service{Name: "www", Proto: dpr.TCP, Port: 80, Addrs: []netip.Addr{here}}
	engine, err := dpr.New(dpr.Config{Services: []dpr.Service{www}, TrackLocal: true})
	if err != nil {
		panic(err)
	}
	defer engine.Close()

	// judge shows the engine a packet from one of the client's ports to one of ours.
	judge := func(clientPort, port uint16, flags dprtest.Flags) {
		client := netip.AddrPortFrom(netip.MustParseAddr("198.51.100.7"), clientPort)
		pkts := dpr.NewPackets(1, dpr.MaxPacket)
		data := dprtest.TCP(client, netip.AddrPortFrom(here, port), dprtest.Options{Flags: flags})
		pkts[0].Len = copy(pkts[0].Buf[pkts[0].Off:], data)
		engine.Process(pkts, time.Now())
		fmt.Println(clientPort, "to", port, "-", pkts[0].Verdict)
	}
	judge(1001, 80, dprtest.SYN) // no snapshot, no peers: served here
	judge(1002, 25, dprtest.SYN) // not a service: the kernel's business

	// A peer appears that has nothing to do.
	err = engine.SetPeers([]dpr.Peer{{ID: "idle"}})
	if err != nil {
		panic(err)
	}
	live := engine.Live("idle", "www")
	snapshot := &lb.Snapshot{Self: 1, Hosts: []lb.Host{
		{ID: "idle", Weight: 100, Live: live, LiveThen: live.Load()},
		{ID: "self", Weight: 100, Conns: 30, Flags: lb.Local},
	}}
	if err := engine.SetSnapshot("www", lb.HomeOrOther{}, snapshot); err != nil {
		panic(err)
	}
	judge(1003, 80, dprtest.SYN)
	judge(1003, 80, dprtest.ACK)
	judge(1001, 80, dprtest.ACK) // a flow keeps the host that it began with

	// A second service is added; it has no snapshot yet.
	smtp := dpr.Service{Name: "smtp", Proto: dpr.TCP, Port: 25, Addrs: []netip.Addr{here}}
	if err := engine.SetServices([]dpr.Service{www, smtp}); err != nil {
		panic(err)
	}
	judge(1004, 25, dprtest.SYN)

	// The peer goes, and with it the connections that it served: their clients are
	// answered with a reset.
	if err := engine.SetPeers(nil); err != nil {
		panic(err)
	}
	judge(1003, 80, dprtest.ACK)
	judge(1005, 80, dprtest.SYN)
	// Output:
	// 1001 to 80 - local
	// 1002 to 25 - pass
	// 1003 to 80 - forward
	// 1003 to 80 - forward
	// 1001 to 80 - local
	// 1004 to 25 - local
	// 1003 to 80 - reply
	// 1005 to 80 - local
}

// A router between any two things that carry packets: here pipes, with the client's
// end of one and the peer's end of the other in the example's hands.
func ExampleRouter() {
	here := netip.MustParseAddrPort("192.0.2.1:80")
	engine, err := dpr.New(dpr.Config{
		Services:   []dpr.Service{{Name: "www", Proto: dpr.TCP, Port: 80, Addrs: []netip.Addr{here.Addr()}}},
		TrackLocal: true,
	})
	if err != nil {
		panic(err)
	}
	defer engine.Close()
	if err := engine.SetPeers([]dpr.Peer{{ID: "peer"}}); err != nil {
		panic(err)
	}
	hosts := []lb.Host{{ID: "peer", Weight: 1}, {ID: "self", Flags: lb.Local | lb.Draining}}
	if err := engine.SetSnapshot("www", lb.HomeOrOther{}, &lb.Snapshot{Self: 1, Hosts: hosts}); err != nil {
		panic(err)
	}

	client, device := net.Pipe()
	peer, uplink := net.Pipe()
	router := &dpr.Router{
		Engine:  engine,
		Devices: []dpr.Device{dpr.FromReadWriter(device)},
		Uplinks: []dpr.Device{dpr.FromReadWriter(uplink)},
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- router.Run(ctx) }()

	syn := dprtest.TCP(netip.MustParseAddrPort("198.51.100.7:1001"), here, dprtest.Options{Flags: dprtest.SYN})
	if _, err := client.Write(syn); err != nil {
		panic(err)
	}
	packet := make([]byte, dpr.MaxPacket)
	n, err := peer.Read(packet)
	fmt.Println("the peer got:", dprtest.Describe(packet[:n]), err)
	cancel()
	fmt.Println("the router ended:", <-done)
	// Output:
	// the peer got: 198.51.100.7 > 192.0.2.1 ttl 63 id 0x0, TCP 1001 > 80 S seq 0 ack 0 win 65535 payload 0, 40 bytes <nil>
	// the router ended: <nil>
}
