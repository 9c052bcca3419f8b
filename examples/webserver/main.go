// Command webserver is a web server that balances itself with its siblings: each runs
// on a host of its own, clients may dial any of them, and whoever is dialled hands
// the connection to a sibling that has clearly fewer. On each host, as root:
//
//	webserver -addr 10.0.0.1 -peer 10.0.0.2:6082 -peer 10.0.0.3:6082
//
// When it is told to end it drains: new connections go to the siblings, and it stays
// until those that it has have ended.
//
// The siblings trust everybody on their network; where others are on it, give all of
// them a key in node.Config.Keys.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"syscall"

	"github.com/carom-dpr/carom/dpr/node"
)

func main() {
	cfg := node.Config{Services: []node.Service{{Name: "web", Port: 80}}}
	flag.TextVar(&cfg.Addr, "addr", netip.Addr{}, "this host's address, for clients and siblings")
	flag.Func("peer", "a sibling's address and report port, once for each", func(s string) error {
		peer, err := netip.ParseAddrPort(s)
		cfg.Report = append(cfg.Report, peer)
		return err
	})
	flag.Parse()

	ln, err := net.Listen("tcp", ":80") // all addresses: siblings hand over what was dialled at theirs
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(hello)}

	n, err := node.Open(cfg)
	if err != nil {
		log.Fatal(err)
	}
	go server.Serve(n.Wrap("web", ln))
	ctx, cancel := context.WithCancel(context.Background())
	signals, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(signals, func() {
		stop()                             // a second signal ends the program at once
		n.Drain()                          // the siblings get the new connections
		server.SetKeepAlivesEnabled(false) // and those that are here end
		n.Drained(ctx)
		cancel()
	})
	if err := n.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

func hello(w http.ResponseWriter, r *http.Request) {
	name, _ := os.Hostname()
	fmt.Fprintf(w, "%s asked %v, %s answers\n", r.RemoteAddr, r.Context().Value(http.LocalAddrContextKey), name)
}
