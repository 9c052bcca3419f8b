package lb_test

import (
	"fmt"
	"time"

	"github.com/carom-dpr/carom/lb"
)

// idleFirst keeps a connection at home unless some peer has none at all: a policy
// of one's own is a type with Build, which does the work that depends on the
// hosts alone, and one with Pick.
type idleFirst struct{}

func (idleFirst) Build(s *lb.Snapshot) lb.Picker {
	var idle idlePicker
	for i := range s.Hosts {
		if i != s.Self && s.Hosts[i].Eligible() {
			idle.peers = append(idle.peers, i)
		}
	}
	idle.hosts = s.Hosts
	return &idle
}

type idlePicker struct {
	hosts []lb.Host
	peers []int
}

func (p *idlePicker) Pick(f lb.Flow, _ time.Duration) lb.Choice {
	for k := range p.peers {
		// Start at a place that the flow decides, so that not all choosers fill
		// the first idle peer.
		i := p.peers[(f.Conn+uint64(k))%uint64(len(p.peers))]
		if p.hosts[i].Estimate() == 0 {
			return lb.Choice{Do: lb.Send, Host: i}
		}
	}
	return lb.Choice{}
}

func ExamplePolicy() {
	s := &lb.Snapshot{Self: 0, Hosts: []lb.Host{
		{ID: "a", Weight: 1, Conns: 7, Flags: lb.Local},
		{ID: "b", Weight: 1, Conns: 2},
		{ID: "c", Weight: 1},
	}}
	c := idleFirst{}.Build(s).Pick(lb.Flow{Conn: 42}, 0)
	fmt.Println(c.Do == lb.Send, s.Hosts[c.Host].ID)
	// Output: true c
}

func ExampleParse() {
	p, err := lb.Parse("power-of-d:d=3,threshold=1")
	fmt.Printf("%+v %v\n", p, err)
	_, err = lb.Parse("stay:home=yes")
	fmt.Println(err)
	// Output:
	// {D:3 Threshold:1} <nil>
	// lb: policy stay: no parameter "home": it takes slow-start (0s to 24h0m0s, default 0s)
}
