package lb

import "time"

// Random gives each connection to a random eligible host, the own one included,
// in proportion to the weights.
//
// It wins over nothing but [Stay], when clients crowd at few entry hosts, and it
// is the measure of the others: it needs no reports beyond who is there, and
// reports that are some forty connection lifetimes old are no better than none.
// It loses to any policy that knows loads: at load 0.9 the mean response is 10
// service times, and it redirects all but one connection in n.
type Random struct{}

// Build implements [Policy].
func (Random) Build(s *Snapshot) Picker {
	all := ready(s)
	weights := make([]float64, len(all))
	for k, i := range all {
		weights[k] = float64(s.Hosts[i].Weight)
	}
	return &random{newAlias(all, weights), s.Self}
}

type random struct {
	hosts alias
	self  int
}

func (p *random) Pick(f Flow, _ time.Duration) Choice {
	if len(p.hosts) == 0 {
		return Choice{}
	}
	d := draws(f.Conn)
	return to(p.hosts.at(d.next()), p.self)
}

// ready lists the eligible hosts, the own one included, in the snapshot's order.
func ready(s *Snapshot) []int32 {
	all := make([]int32, 0, len(s.Hosts))
	for i := range s.Hosts {
		if s.Hosts[i].Eligible() {
			all = append(all, int32(i))
		}
	}
	return all
}
