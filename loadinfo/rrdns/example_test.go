package rrdns_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/carom-dpr/carom/loadinfo"
	"github.com/carom-dpr/carom/loadinfo/rrdns"
)

// Clients that look up the cluster's name find the hosts that are up.
func Example() {
	// As an example has it, no host is heard a second time: reports are an hour apart.
	board := loadinfo.NewBoard(loadinfo.BoardConfig{Period: time.Hour, Blackout: loadinfo.NoBlackout})
	err := board.SetSelf(loadinfo.Self{ID: "web-1", Dialled: []netip.Addr{netip.MustParseAddr("192.0.2.1")}})
	if err != nil {
		panic(err)
	}
	for i, state := range []loadinfo.State{loadinfo.Up, loadinfo.Draining} { // a Transport brings these
		err := board.Receive(loadinfo.Report{
			ID: fmt.Sprint("web-", i+2), Seq: 1, Weight: 100, State: state,
			Dialled: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 2)})},
		}, time.Now())
		if err != nil {
			panic(err)
		}
	}

	s, err := rrdns.New(rrdns.Config{Board: board, Name: "www.example.org"})
	if err != nil {
		panic(err)
	}
	conn, listener, err := rrdns.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, conn, listener) }()

	client := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, listener.Addr().String())
	}}
	addrs, err := client.LookupHost(context.Background(), "www.example.org.")
	if err != nil {
		panic(err)
	}
	for _, a := range addrs {
		fmt.Println(a)
	}
	cancel()
	if err := <-done; err != nil {
		panic(err)
	}
	// Unordered output:
	// 192.0.2.1
	// 192.0.2.2
}
