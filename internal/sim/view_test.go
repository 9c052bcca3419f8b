package sim

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/lb"
	"github.com/carom-dpr/carom/loadinfo"
)

// spy is a policy that shows what choosers see, and compares it with what they
// should: a host's count at its last report, and their own connections there, kept
// in the plainest way.
type spy struct {
	t      *testing.T
	s      *simulation
	mine   map[[2]int32]int64 // by chooser and host: connections there now
	then   map[[2]int32]int64 // at the host's last report
	posted map[int32]int64
	looked int
}

func (p *spy) look(c *chooser) {
	for i := range c.snapshot.Hosts {
		h := &c.snapshot.Hosts[i]
		n := number(h.ID)
		want := p.posted[n] + p.mine[[2]int32{c.number, n}] - p.then[[2]int32{c.number, n}]
		if n == c.home {
			want = int64(p.s.hosts[n].conns.Load())
			require.Equal(p.t, i, c.snapshot.Self)
		}
		require.Equal(p.t, max(want, 0), h.Estimate(), "host %d as chooser %d sees it at %v", n, c.number, p.s.now)
		p.looked++
	}
}

// TestEstimates checks after every event what all choosers see, in both views that
// go by reports, against the books of a spy.
func TestEstimates(t *testing.T) {
	for _, sc := range []Scenario{
		{View: "shared", Period: 2, Sync: true},
		{View: "shared", Period: 2},
		{View: "shared", Period: 0.5, Routers: 2},
		{View: "boards", Period: 2},
		{View: "boards", Period: 0.5, Routers: 3},
		{View: "boards", Period: 2, Known: 3},
		{View: "shared", Period: 2, Loss: 0.2},
		{View: "partial", Period: 2, Known: 3},
		{View: "partial", Period: 0.5, Routers: 3, Sync: true},
	} {
		sc.Hosts, sc.Length, sc.Policy = 6, 100, "power-of-d:d=3"
		s, err := newSimulation(sc)
		require.NoError(t, err)
		p := &spy{t: t, s: s, mine: map[[2]int32]int64{}, then: map[[2]int32]int64{}, posted: map[int32]int64{}}
		s.view = &watched{s.view, p}
		for s.now < s.length {
			e := s.events.pop()
			s.now = e.at
			s.handle(e)
		}
		require.Greater(t, p.looked, 1000)
	}
}

// watched keeps the spy's books.
type watched struct {
	view
	spy *spy
}

func (w *watched) pick(c *chooser, f lb.Flow) (int32, bool) {
	server, ok := w.view.pick(c, f)
	if w.spy.s.now > lifetimes(10) { // by then all are known
		w.spy.look(c)
	}
	return server, ok
}

func (w *watched) change(c *chooser, host, by int32) {
	w.spy.mine[[2]int32{c.number, host}] += int64(by)
	w.view.change(c, host, by)
}

func (w *watched) receive(hearer int32, r *loadinfo.Report) {
	n := number(r.ID)
	w.spy.posted[n] = int64(r.Services[0].Conns)
	for i := range w.spy.s.choosers {
		key := [2]int32{int32(i), n}
		w.spy.then[key] = w.spy.mine[key]
	}
	w.view.receive(hearer, r)
}
