package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"sync"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/carom-dpr/carom/internal/sim"
	"github.com/carom-dpr/carom/lb"
)

// The range of the scaling experiment: 2^leastBits to 2^mostBits hosts, and as many
// connections, with 1 to mostChoices choices.
const (
	leastBits   = 8
	mostBits    = 20
	mostChoices = 4
)

// A mean is the mean of maximum loads.
type mean struct {
	space      lb.Space
	bits, d    int
	load, diff float64 // diff: the standard error
}

func (m mean) hosts() float64 { return float64(int(1) << m.bits) }

// x is what the theory says that the load grows with.
func (m mean) x() float64 { return math.Log(math.Log(m.hosts())) / math.Log(float64(m.d)) }

var spaceNames = []string{"ring", "torus"}

// scaling measures the maximum load of ring and torus, prints it and plots it.
func scaling(ctx context.Context, file string, out, log io.Writer) error {
	var means []mean
	for bits := mostBits; bits >= leastBits; bits -= 2 { // the longest first
		for d := 1; d <= mostChoices; d++ {
			for _, space := range []lb.Space{lb.OnRing, lb.OnTorus} {
				means = append(means, mean{space: space, bits: bits, d: d})
			}
		}
	}
	p, finished, mu := newProgress(log), 0.0, sync.Mutex{}
	err := sim.Each(ctx, len(means), func(_ context.Context, i int) error {
		means[i].measure()
		mu.Lock()
		defer mu.Unlock()
		finished++
		p.set(finished / float64(len(means)))
		return nil
	})
	p.end()
	if err != nil {
		return err
	}
	printMeans(out, means)
	return plotMeans(file, means)
}

// measure makes as many trials as are two million connections, at least two.
func (m *mean) measure() {
	n := 1 << m.bits
	j := sim.Jobs{Hosts: n, Conns: n, Moving: true, Policy: func() lb.Policy {
		return &lb.Geometric{Space: m.space, D: m.d, Ties: lb.ToAny}
	}}
	var loads []float64
	for _, load := range sim.MaxLoad(j, min(max(1<<21/n, 2), 500), uint64(m.bits*10+m.d)) {
		loads = append(loads, float64(load))
	}
	mean, sd := stat.MeanStdDev(loads, nil)
	m.load, m.diff = mean, stat.StdErr(sd, float64(len(loads)))
}

func printMeans(out io.Writer, means []mean) {
	fmt.Fprintf(out, "Mean maximum load of n connections on n hosts, ties at random (standard error)\n\n")
	fmt.Fprintf(out, "%-6s %5s %14s %14s %14s %14s %18s\n", "space", "n", "d=1", "d=2", "d=3", "d=4", "lnln n/ln 2")
	for s, name := range spaceNames {
		for bits := leastBits; bits <= mostBits; bits += 2 {
			fmt.Fprintf(out, "%-6s 2^%-3d", name, bits)
			for d := 1; d <= mostChoices; d++ {
				for _, m := range means {
					if m.space == lb.Space(s) && m.bits == bits && m.d == d {
						fmt.Fprintf(out, " %7.2f (%.2f)", m.load, m.diff)
					}
				}
			}
			fmt.Fprintf(out, " %18.2f\n", mean{bits: bits, d: 2}.x())
		}
	}
}

// plotMeans draws a panel for each space against ln ln n / ln d, and one for a
// single choice, where there is no such thing, against n.
func plotMeans(file string, means []mean) error {
	var plots []*plot.Plot
	for s, name := range spaceNames {
		p := axes(name+": maximum load, n connections on n hosts", "ln ln n / ln d", "mean maximum load", false, false)
		p.Y.Min = 0
		for d := 2; d <= mostChoices; d++ {
			err := addMeans(p, fmt.Sprintf("d = %d", d), d-2, means, func(m mean) (x float64, ok bool) {
				return m.x(), m.space == lb.Space(s) && m.d == d
			})
			if err != nil {
				return err
			}
		}
		plots = append(plots, p)
	}
	p := axes("one choice", "n", "mean maximum load", true, false)
	p.Y.Min = 0
	for s, name := range spaceNames {
		err := addMeans(p, name, s, means, func(m mean) (x float64, ok bool) {
			return m.hosts(), m.space == lb.Space(s) && m.d == 1
		})
		if err != nil {
			return err
		}
	}
	return save(file, append(plots, p))
}

func addMeans(p *plot.Plot, name string, colour int, means []mean, x func(mean) (float64, bool)) error {
	var points plotter.XYs
	for _, m := range means {
		if at, ok := x(m); ok {
			points = append(points, plotter.XY{X: at, Y: m.load})
		}
	}
	line, dots, err := plotter.NewLinePoints(points)
	if err != nil {
		return err
	}
	line.Color, dots.Color = colours[colour], colours[colour]
	dots.Shape, dots.Radius = draw.CircleGlyph{}, vg.Points(2.5)
	p.Add(line, dots)
	p.Legend.Add(name, line, dots)
	return nil
}
