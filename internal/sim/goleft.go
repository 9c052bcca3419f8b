package sim

import (
	"time"

	"github.com/carom-dpr/carom/lb"
)

// GoLeft is Vöcking's rule over hosts drawn uniformly: the i-th of D draws is from
// the i-th part of the list, and of equals the left-most serves. It is a measure
// for the policies of package lb, which has the rule on a ring, where it is of use.
type GoLeft struct {
	// D is the number of draws.
	D int
}

// Build implements lb.Policy.
func (p GoLeft) Build(s *lb.Snapshot) lb.Picker { return goLeft{p.D, s.Hosts} }

type goLeft struct {
	d     int
	hosts []lb.Host
}

// Pick implements lb.Picker.
func (p goLeft) Pick(f lb.Flow, _ time.Duration) lb.Choice {
	best := 0
	for i := range p.d {
		from, to := i*len(p.hosts)/p.d, (i+1)*len(p.hosts)/p.d
		x := from + int(hash(uint64(i), f.Conn)%uint64(to-from))
		if i == 0 || p.hosts[x].Estimate() < p.hosts[best].Estimate() {
			best = x
		}
	}
	return lb.Choice{Do: lb.Send, Host: best}
}
