package sim

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
)

// Sweep plays scenarios, as many at a time as there are processors, and returns
// their results in order. It calls progress, unless that is nil, with the part of
// all of them that is done, from several goroutines but never two at once. The
// first error ends it.
func Sweep(ctx context.Context, scenarios []Scenario, progress func(done float64)) ([]Result, error) {
	results, part := make([]Result, len(scenarios)), newParts(scenarios, progress)
	err := Each(ctx, len(scenarios), func(ctx context.Context, i int) (err error) {
		results[i], err = Run(ctx, scenarios[i], func(done float64) { part.set(i, done) })
		part.set(i, 1)
		return err
	})
	return results, err
}

// Each calls f with 0 to n-1 from as many goroutines as there are processors, and
// returns when all calls have. After an error, which it returns, or when ctx is
// done, it begins no more.
func Each(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), n) {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := f(ctx, i); err != nil {
					stop(err)
				}
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// parts adds up how far scenarios are, each by the connections it has.
type parts struct {
	mu       sync.Mutex
	progress func(float64)
	weight   []float64
	done     []float64
	sum, all float64
}

func newParts(scenarios []Scenario, progress func(float64)) *parts {
	p := &parts{progress: progress, done: make([]float64, len(scenarios))}
	for _, sc := range scenarios {
		p.weight = append(p.weight, sc.Conns())
		p.all += sc.Conns()
	}
	return p
}

func (p *parts) set(i int, done float64) {
	if p.progress == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sum += (done - p.done[i]) * p.weight[i]
	p.done[i] = done
	p.progress(p.sum / p.all)
}
