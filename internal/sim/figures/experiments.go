package figures

import (
	"context"
	"fmt"

	"github.com/carom-dpr/carom/internal/sim"
	"github.com/carom-dpr/carom/lb"
)

// supermarkets are means of two choices among exact counts of a hundred hosts.
func supermarkets(loads ...float64) func(context.Context, *runs, uint64) ([]float64, error) {
	return func(ctx context.Context, of *runs, seed uint64) (means []float64, err error) {
		for _, load := range loads {
			sc := methods["d=2"].scenario(100, load, 0, 0)
			sc.Seed, sc.Length = seed, 10_000
			r, err := of.queues(ctx, sc)
			if err != nil {
				return nil, err
			}
			means = append(means, r.Mean)
		}
		return means, nil
	}
}

// tail takes a thousand hosts: of a hundred the limit is too far away.
func tail(ctx context.Context, of *runs, seed uint64) ([]float64, error) {
	sc := methods["d=2"].scenario(1000, 0.9, 0, 0)
	sc.Seed, sc.Length, sc.Samples = seed, 2000, 1000
	r, err := of.queues(ctx, sc)
	if err != nil {
		return nil, err
	}
	return append(r.Tail, 0, 0, 0, 0)[1:5], nil
}

func randomSplit(ctx context.Context, of *runs, seed uint64) ([]float64, error) {
	sc := methods["random"].scenario(100, 0.9, 0, 0)
	sc.Seed, sc.Length = seed+10, 2*sc.Length // other seeds than the table's line
	r, err := of.queues(ctx, sc)
	return []float64{r.Mean}, err
}

func redirects(ctx context.Context, of *runs, seed uint64) (shares []float64, err error) {
	for _, sc := range []sim.Scenario{
		methods["p2"].scenario(10, 0.9, 1, 0), methods["p2"].scenario(100, 0.9, 10, 0),
	} {
		sc.Seed = seed
		r, err := of.queues(ctx, sc)
		if err != nil {
			return nil, err
		}
		shares = append(shares, r.Share)
	}
	return shares, nil
}

// ownCount is how much better two choices get if one of them is the own host, and
// own redirects are counted.
func ownCount(ctx context.Context, of *runs, seed uint64) ([]float64, error) {
	var means []float64
	for _, m := range []string{"p2", "d=2"} {
		sc := methods[m].scenario(100, 0.9, 10, 0)
		sc.Seed = seed
		r, err := of.queues(ctx, sc)
		if err != nil {
			return nil, err
		}
		means = append(means, r.Mean)
	}
	return []float64{means[0] / means[1]}, nil
}

// longestArcs estimates the longest arc of rings with one point per host, from the
// share of keys that the host of the longest arc gets.
func longestArcs(ctx context.Context, _ *runs, seed uint64) (arcs []float64, err error) {
	for _, x := range []struct{ hosts, rings, keys int }{
		{1 << 8, 200, 400}, {1 << 12, 60, 200}, {1 << 16, 8, 100},
	} {
		sum := 0.0
		for i := range x.rings {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			p := &lb.Ring{Points: 1}
			sum += sim.LargestShare(p, x.hosts, x.keys*x.hosts, seed*1000+uint64(i))
		}
		arcs = append(arcs, sum/float64(x.rings)*float64(x.hosts))
	}
	return arcs, nil
}

func maglevMoves(seed uint64) []float64 {
	const keys = 20_000
	var one, needless, ten float64
	const removals = 200
	for i := range uint64(removals) {
		moved, idle := sim.Disruption(new(lb.Maglev), 100, 1, keys, seed*1000+i)
		one, needless = one+moved/removals, needless+idle/removals
		moved, _ = sim.Disruption(new(lb.Maglev), 1000, 10, keys, seed*1000+i)
		ten += moved / removals
	}
	return []float64{one, needless, ten}
}

// Shipped compares the two corrections of old reports, as a table: what was sent
// since the report, which the figures count, and the change of a live count, which
// package lb ships with.
func Shipped(ctx context.Context, seed uint64, progress func(float64)) (rows []Difference, err error) {
	var list []sim.Scenario
	for _, hosts := range []int{10, 100} {
		for _, m := range []string{"low+inc", "p2", "p3"} {
			for _, period := range []float64{1, 5, 10, 50} {
				sc := methods[m].scenario(hosts, 0.9, period, 0)
				sc.Seed, sc.Name = seed, m
				sc.Length = 3e5 / float64(hosts)
				list = append(list, sc)
				sc.Correction = "live"
				list = append(list, sc)
			}
		}
	}
	results, err := sim.Sweep(ctx, list, progress)
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(results); i += 2 {
		sc := results[i].Scenario
		rows = append(rows, Difference{
			What: fmt.Sprintf("n=%d T=%g %s", sc.Hosts, sc.Period, sc.Name),
			Sent: results[i], Live: results[i+1],
		})
	}
	return rows, nil
}

// A Difference is one scenario with both corrections.
type Difference struct {
	What       string
	Sent, Live sim.Result
}

// String returns the difference as a row of a table.
func (d Difference) String() string {
	return fmt.Sprintf("%-24s sent %6.2f (redirected %.2f)   live %6.2f (redirected %.2f)   %+.0f %%",
		d.What, d.Sent.Mean, d.Sent.Share, d.Live.Mean, d.Live.Share, 100*(d.Live.Mean/d.Sent.Mean-1))
}
