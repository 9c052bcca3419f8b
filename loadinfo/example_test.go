package loadinfo_test

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/carom-dpr/carom/lb"
	"github.com/carom-dpr/carom/loadinfo"
)

// Two hosts, and between them what a Broadcaster does: a report goes out as bytes,
// comes in, and is on the other's board.
func Example() {
	a := loadinfo.NewBoard(loadinfo.BoardConfig{})
	err := a.SetSelf(loadinfo.Self{
		ID:       "web-1",
		Node:     netip.MustParseAddrPort("10.0.0.1:6080"),
		Services: []loadinfo.OwnService{{Name: "www"}},
	})
	if err != nil {
		panic(err)
	}
	a.Counter("www").Add(3) // three connections came

	b := loadinfo.NewBoard(loadinfo.BoardConfig{Blackout: loadinfo.NoBlackout})
	err = b.SetSelf(loadinfo.Self{
		ID:       "web-2",
		Node:     netip.MustParseAddrPort("10.0.0.2:6080"),
		Services: []loadinfo.OwnService{{Name: "www"}},
	})
	if err != nil {
		panic(err)
	}
	b.Counter("www").Add(9)

	keys, err := loadinfo.NewKeyring(loadinfo.Key{ID: 1, Secret: []byte("of all hosts of this cluster")})
	if err != nil {
		panic(err)
	}
	now := time.Now()
	own, _ := a.Report(now)
	msg, err := own.Append(nil, keys)
	if err != nil {
		panic(err)
	}
	heard, err := loadinfo.ParseReport(msg, keys)
	if err != nil {
		panic(err)
	}
	if err := b.Receive(heard, now); err != nil {
		panic(err)
	}

	s := b.Snapshot("www", now)
	for i := range s.Hosts {
		fmt.Println(s.Hosts[i].ID, s.Hosts[i].Estimate())
	}
	c := lb.HomeOrOther{}.Build(s).Pick(lb.Flow{Conn: 1}, 0)
	fmt.Println("the next connection goes to", s.Hosts[c.Host].ID)
	fmt.Println(b.Receive(heard, now))
	// Output:
	// web-1 3
	// web-2 9
	// the next connection goes to web-1
	// loadinfo: report replayed or out of order
}
