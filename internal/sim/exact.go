package sim

import (
	"github.com/carom-dpr/carom/lb"
	"github.com/carom-dpr/carom/loadinfo"
)

// exact is the view of choosers that see the counts themselves.
type exact struct {
	*simulation
	hosts   []lb.Host
	version uint64
}

func newExact(s *simulation) *exact {
	v := &exact{simulation: s}
	for i := range s.hosts {
		s.hosts[i].board = s.newBoard(int32(i), loadinfo.BoardConfig{})
	}
	v.moved(0, up)
	return v
}

func (v *exact) moved(int32, state) {
	v.hosts, v.version = make([]lb.Host, 0, len(v.simulation.hosts)), v.version+1
	for i := range v.simulation.hosts {
		h := &v.simulation.hosts[i]
		x := lb.Host{ID: h.id, Weight: uint16(v.sc.weight(i)), Live: &h.conns}
		switch h.state {
		case gone:
			x.Flags = lb.Unhealthy
		case draining:
			x.Flags = lb.Draining
		}
		v.hosts = append(v.hosts, x)
	}
}

func (v *exact) pick(c *chooser, f lb.Flow) (int32, bool) {
	if c.sight.built != v.version {
		c.snapshot = &lb.Snapshot{
			Hosts: v.hosts, Self: int(c.home), Members: lb.HashMembers(v.hosts), Taken: origin + v.now,
		}
		c.picker, c.sight.built = c.policy.Build(c.snapshot), v.version
	}
	return v.choose(c, f)
}

func (v *exact) change(*chooser, int32, int32)            {}
func (v *exact) hearers(int32) ([]int32, bool)            { return nil, true }
func (v *exact) receive(hearer int32, r *loadinfo.Report) {}
