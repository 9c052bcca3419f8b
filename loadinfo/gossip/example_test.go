package gossip_test

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/carom-dpr/carom/loadinfo"
	"github.com/carom-dpr/carom/loadinfo/gossip"
)

// Two hosts find each other, though only the second knows of the first, and hear of each
// other's connections.
func Example() {
	keys, err := loadinfo.NewKeyring(loadinfo.Key{ID: 1, Secret: []byte("of all hosts of this cluster")})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	var seeds []string
	var boards []*loadinfo.Board
	for _, id := range []string{"web-1", "web-2"} {
		board := loadinfo.NewBoard(loadinfo.BoardConfig{})
		err := board.SetSelf(loadinfo.Self{ID: id, Services: []loadinfo.OwnService{{Name: "www"}}})
		if err != nil {
			panic(err)
		}
		conn, listener, err := gossip.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
		if err != nil {
			panic(err)
		}
		g, err := gossip.New(gossip.Config{Board: board, Conn: conn, Listener: listener, Seeds: seeds, Keys: keys})
		if err != nil {
			panic(err)
		}
		running.Go(func() {
			if err := g.Run(ctx); err != nil {
				panic(err)
			}
		})
		seeds, boards = append(seeds, conn.LocalAddr().String()), append(boards, board)
	}
	boards[0].Counter("www").Add(3)

	changes, unsubscribe := boards[1].Subscribe()
	defer unsubscribe()
	for range changes {
		s := boards[1].Snapshot("www", time.Now())
		if len(s.Hosts) == 2 && s.Hosts[0].Estimate() == 3 {
			fmt.Println(s.Hosts[0].ID, "has", s.Hosts[0].Estimate(), "connections")
			break
		}
	}
	cancel()
	running.Wait()
	// Output: web-1 has 3 connections
}
