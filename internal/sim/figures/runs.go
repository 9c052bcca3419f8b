package figures

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/carom-dpr/carom/internal/sim"
)

// runs makes each experiment once: some figures are other sides of one, and stand
// in several tables.
type runs struct {
	mu   sync.Mutex
	made map[string]*outcome
}

type outcome struct {
	once sync.Once
	measured
	err error
}

// of returns what the experiment of that name gave, and makes it if nobody has.
// Who asks for it meanwhile waits.
func (r *runs) of(name string, make func() (measured, error)) (measured, error) {
	r.mu.Lock()
	if r.made == nil {
		r.made = map[string]*outcome{}
	}
	o := r.made[name]
	if o == nil {
		o = new(outcome)
		r.made[name] = o
	}
	r.mu.Unlock()
	o.once.Do(func() { o.measured, o.err = make() })
	return o.measured, o.err
}

// queues plays a scenario.
func (r *runs) queues(ctx context.Context, sc sim.Scenario) (sim.Result, error) {
	name, err := json.Marshal(sc)
	if err != nil {
		return sim.Result{}, err
	}
	m, err := r.of(string(name), func() (m measured, err error) {
		m.result, err = sim.Run(ctx, sc, nil)
		m.result.Series = nil
		return m, err
	})
	return m.result, err
}

// jobs returns the loads of the fullest hosts.
func (r *runs) jobs(ctx context.Context, j sim.Jobs, trials int, seed uint64) (measured, error) {
	p := j.Policy()
	name := fmt.Sprintf("%T%+v %d %d %v %d %d", p, p, j.Hosts, j.Conns, j.Moving, trials, seed)
	return r.of(name, func() (measured, error) {
		return measured{maxLoads: sim.MaxLoad(j, trials, seed)}, ctx.Err()
	})
}
