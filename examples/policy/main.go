// Command policy shows a policy of one's own: it packs connections onto as few hosts
// as can take them, so that the others can sleep, and runs through a day with it in
// memory, without a network.
//
// A policy sees no packet and no clock, so what chooses here chooses in a router too:
// give it to node.Service.Policy, or to dpr.Engine.SetSnapshot.
package main

import (
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"

	"github.com/carom-dpr/carom/lb"
)

// Pack gives each connection to the first host, by ID, that has fewer than Full
// connections, and when all are full to whom Then chooses.
type Pack struct {
	Full int64
	Then lb.Policy
}

// Build implements lb.Policy.
func (p Pack) Build(s *lb.Snapshot) lb.Picker { return &packer{p.Full, s, p.Then.Build(s)} }

type packer struct {
	full int64
	s    *lb.Snapshot
	then lb.Picker
}

// Pick implements lb.Picker: it neither blocks nor allocates.
func (p *packer) Pick(f lb.Flow, now time.Duration) lb.Choice {
	for i := range p.s.Hosts {
		switch h := &p.s.Hosts[i]; {
		case !h.Eligible() || h.Estimate() >= p.full:
		case i == p.s.Self:
			return lb.Choice{Do: lb.Serve}
		default:
			return lb.Choice{Do: lb.Send, Host: i}
		}
	}
	return p.then.Pick(f, now)
}

func main() {
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "policy: %q: there are no arguments\n", flag.Arg(0))
		os.Exit(2)
	}
	day(os.Stdout, Pack{Full: 20, Then: lb.HomeOrOther{}})
}

// day writes how many connections each of four hosts has in the course of a day, when
// all are dialled at the second.
func day(w io.Writer, policy lb.Policy) {
	fmt.Fprintln(w, "hour     a    b    c    d")
	hosts := make([]lb.Host, 4)
	for i := range hosts {
		hosts[i] = lb.Host{ID: string(rune('a' + i)), Weight: 1, Live: new(atomic.Int32)}
	}
	hosts[1].Flags = lb.Local
	picker := policy.Build(&lb.Snapshot{Hosts: hosts, Self: 1})
	random := rand.New(rand.NewPCG(1, 2))
	var open []*lb.Host // by connection
	for hour, want := range []int{5, 15, 40, 70, 100, 60, 25, 5} {
		for len(open) > want { // any of them ends
			i := random.IntN(len(open))
			open[i].Live.Add(-1)
			open[i], open = open[len(open)-1], open[:len(open)-1]
		}
		for len(open) < want {
			h := &hosts[1]
			if c := picker.Pick(lb.Flow{Conn: random.Uint64()}, 0); c.Do == lb.Send {
				h = &hosts[c.Host]
			}
			h.Live.Add(1)
			open = append(open, h)
		}
		fmt.Fprintf(w, "%02d:00", 6+2*hour)
		for i := range hosts {
			fmt.Fprintf(w, "%5d", hosts[i].Estimate())
		}
		fmt.Fprintln(w)
	}
}
