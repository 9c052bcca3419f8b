package node_test

import (
	"context"
	"log"
	"net"
	"net/http"
	"net/netip"

	"github.com/carom-dpr/carom/dpr/node"
	"github.com/carom-dpr/carom/lb"
	"github.com/carom-dpr/carom/loadinfo"
)

// A host of a cluster with two services and a key, beside or around their servers.
// It needs Linux and its capabilities.
func ExampleOpen() {
	ctx := context.Background()
	n, err := node.Open(node.Config{
		Addr: netip.MustParseAddr("10.0.0.1"),
		Services: []node.Service{
			{Name: "web", Port: 80},
			{Name: "game", Port: 7000, PortEnd: 7099, Policy: lb.PowerOfD{D: 3}},
		},
		Report: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.255:6082")}, // a broadcast address
		Keys:   []loadinfo.Key{{ID: 1, Secret: []byte("thirty-two bytes of randomness..")}},
		// Only these can become addresses that this host answers from.
		AliasPrefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")},
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := n.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

// A server whose connections are counted by its listener, where no kernel does, and
// that keeps new connections away before it ends.
func ExampleNode_Wrap() {
	var n *node.Node // from New or Open, and Run is running
	ln, err := net.Listen("tcp", ":80")
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{}
	go server.Serve(n.Wrap("web", ln))

	n.Drain()
	server.SetKeepAlivesEnabled(false)
	if err := n.Drained(context.Background()); err != nil {
		log.Fatal(err)
	}
}
