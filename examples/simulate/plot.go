package main

import (
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/carom-dpr/carom/internal/sim"
)

// A figure is a plot of a study: a line for each combination of the fields that
// are swept and not X or Panels, of Y along X.
type figure struct {
	// File is where to, an SVG or PNG file by its name.
	File  string `json:"file"`
	Title string `json:"title,omitempty"`
	// X is a swept field, or "at", the time that passes in a run. Y is a column, or
	// along time mean, deviation or max. Panels is a swept field, of which each value
	// gets a panel of its own.
	X      string `json:"x"`
	Y      string `json:"y,omitempty"`
	Panels string `json:"panels,omitempty"`
	// Log has both axes logarithmic, LogX the one along.
	Log  bool `json:"log,omitempty"`
	LogX bool `json:"log_x,omitempty"`
	// Top is the highest value to show; 0 means all. Best marks the lowest line at
	// each place.
	Top  float64 `json:"top,omitempty"`
	Best bool    `json:"best,omitempty"`
}

// A curve is one line of a panel.
type curve struct {
	name   string
	points plotter.XYs
}

// A panel is one system of axes.
type panel struct {
	title  string
	curves []curve
}

// check returns an error if the plot cannot be made of a study's results.
func (f *figure) check(s *study) error {
	if err := drawable(f.File); err != nil {
		return err
	}
	list, err := s.scenarios()
	if err != nil {
		return err
	}
	for i := range list {
		// A result of one point stands for those that are to come.
		if _, err := f.points(&sim.Result{Scenario: list[i].WithDefaults(), Series: make([]sim.Point, 1)}); err != nil {
			return fmt.Errorf("plot %s: %w", f.File, err)
		}
	}
	return nil
}

// drawable returns an error if a file's name is not that of a picture.
func drawable(file string) error {
	if ext := filepath.Ext(file); ext != ".svg" && ext != ".png" {
		return fmt.Errorf("plot %s: the name must end in .svg or .png", file)
	}
	return nil
}

func (f *figure) draw(s *study, results []sim.Result) error {
	panels, err := f.panels(s, results)
	if err != nil {
		return fmt.Errorf("plot %s: %w", f.File, err)
	}
	var plots []*plot.Plot
	for _, p := range panels {
		drawn, err := f.panel(p)
		if err != nil {
			return fmt.Errorf("plot %s: %w", f.File, err)
		}
		plots = append(plots, drawn)
	}
	return save(f.File, plots)
}

// panels sorts results into curves and panels.
func (f *figure) panels(s *study, results []sim.Result) (panels []panel, err error) {
	for i := range results {
		r := &results[i]
		title, name := f.Title, ""
		for _, a := range s.Sweep {
			switch value := valueOf(r.Scenario, a.Field); a.Field {
			case f.X:
			case f.Panels:
				title = fmt.Sprintf("%s: %s %s", f.Title, value, a.Field)
			case "policy":
				name += " " + value
			default:
				name += fmt.Sprintf(" %s %s", a.Field, value)
			}
		}
		points, err := f.points(r)
		if err != nil {
			return nil, err
		}
		panels = place(panels, title, strings.TrimSpace(name), points)
	}
	return panels, nil
}

// place appends points to the curve of a name in the panel of a title.
func place(panels []panel, title, name string, points plotter.XYs) []panel {
	at := slices.IndexFunc(panels, func(p panel) bool { return p.title == title })
	if at < 0 {
		at, panels = len(panels), append(panels, panel{title: title})
	}
	p := &panels[at]
	k := slices.IndexFunc(p.curves, func(c curve) bool { return c.name == name })
	if k < 0 {
		k, p.curves = len(p.curves), append(p.curves, curve{name: name})
	}
	p.curves[k].points = append(p.curves[k].points, points...)
	return panels
}

// points returns what a result adds to its curve.
func (f *figure) points(r *sim.Result) (points plotter.XYs, err error) {
	if f.X != "at" {
		y, err := columnOf(f.y())
		if err != nil {
			return nil, err
		}
		if _, known := usage[f.X]; !known {
			return nil, fmt.Errorf("there is no field %q to plot along", f.X)
		}
		x, err := strconv.ParseFloat(valueOf(r.Scenario, f.X), 64)
		if err != nil {
			return nil, fmt.Errorf("%s is not a number: %w", f.X, err)
		}
		return plotter.XYs{{X: x, Y: y.of(r)}}, nil
	}
	for _, p := range r.Series {
		y, ok := map[string]float64{"mean": p.Mean, "deviation": p.Deviation, "max": p.Max}[f.y()]
		if !ok {
			return nil, fmt.Errorf("along time there is no %q: use mean, deviation, max", f.y())
		}
		points = append(points, plotter.XY{X: p.At, Y: y})
	}
	return points, nil
}

func (f *figure) y() string {
	if f.Y == "" {
		return "mean"
	}
	return f.Y
}

// colours can be told apart by those who do not see all of them (Okabe and Ito).
var colours = []color.RGBA{
	{0, 114, 178, 255}, {213, 94, 0, 255}, {0, 158, 115, 255}, {204, 121, 167, 255},
	{86, 180, 233, 255}, {230, 159, 0, 255}, {0, 0, 0, 255}, {120, 120, 120, 255},
}

func (f *figure) panel(p panel) (*plot.Plot, error) {
	out := axes(p.title, f.X, f.y(), f.Log || f.LogX, f.Log)
	if f.X == "period" {
		out.X.Label.Text = "report period / mean connection lifetime"
	}
	for i, c := range p.curves {
		if f.Top > 0 {
			c.points = below(c.points, f.Top)
		}
		line, err := plotter.NewLine(c.points)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		line.Color, line.Width = colours[i%len(colours)], vg.Points(1.2)
		if i >= len(colours) {
			line.Dashes = []vg.Length{vg.Points(3), vg.Points(2)}
		}
		out.Add(line)
		out.Legend.Add(c.name, line)
	}
	if f.Best {
		return out, f.best(out, p)
	}
	return out, nil
}

// axes makes an empty plot.
func axes(title, x, y string, logX, logY bool) *plot.Plot {
	out := plot.New()
	out.Title.Text, out.X.Label.Text, out.Y.Label.Text = title, x, y
	out.Title.TextStyle.Font.Size = vg.Points(10)
	out.Legend.Top, out.Legend.Left, out.Legend.TextStyle.Font.Size = true, true, vg.Points(8)
	out.Add(plotter.NewGrid())
	if logX {
		out.X.Scale, out.X.Tick.Marker = plot.LogScale{}, logTicks{}
	}
	if logY {
		out.Y.Scale, out.Y.Tick.Marker = plot.LogScale{}, logTicks{}
	}
	return out
}

// logTicks marks 1, 2 and 5 in each decade, and in ranges of many the decades alone.
type logTicks struct{}

// Ticks implements plot.Ticker.
func (logTicks) Ticks(low, high float64) (ticks []plot.Tick) {
	steps := []float64{1, 2, 5}
	if high > 1e3*low {
		steps = steps[:1]
	}
	for decade := math.Pow(10, math.Floor(math.Log10(low))); decade <= high; decade *= 10 {
		for _, step := range steps {
			if x := step * decade; x >= low && x <= high {
				ticks = append(ticks, plot.Tick{Value: x, Label: strconv.FormatFloat(x, 'g', 4, 64)})
			}
		}
	}
	return ticks
}

// below cuts a line where it leaves the picture.
func below(points plotter.XYs, top float64) plotter.XYs {
	var kept plotter.XYs
	for i, p := range points {
		if p.Y <= top {
			kept = append(kept, p)
			continue
		}
		if i > 0 && points[i-1].Y <= top { // up to the edge
			q := points[i-1]
			part := math.Log(top/q.Y) / math.Log(p.Y/q.Y)
			kept = append(kept, plotter.XY{X: q.X * math.Pow(p.X/q.X, part), Y: top})
		}
		break
	}
	return kept
}

// best marks the lowest line at each place.
func (f *figure) best(out *plot.Plot, p panel) error {
	for i, c := range p.curves {
		var points plotter.XYs
		for _, q := range c.points {
			if !slices.ContainsFunc(p.curves, func(o curve) bool { return o.beats(q) }) {
				points = append(points, q)
			}
		}
		if len(points) == 0 {
			continue
		}
		dots, err := plotter.NewScatter(points)
		if err != nil {
			return err
		}
		dots.Shape, dots.Radius, dots.Color = draw.CircleGlyph{}, vg.Points(3), colours[i%len(colours)]
		out.Add(dots)
	}
	return nil
}

// beats reports whether the curve is below a point.
func (c curve) beats(q plotter.XY) bool {
	return slices.ContainsFunc(c.points, func(p plotter.XY) bool { return p.X == q.X && p.Y < q.Y })
}

// The size of a panel.
const (
	width  = 4.6 * vg.Inch
	height = 3.4 * vg.Inch
)

// save draws panels, two in a row, to an SVG or PNG file.
func save(file string, plots []*plot.Plot) error {
	across := min(len(plots), 2)
	down := (len(plots) + across - 1) / across
	w, h := vg.Length(across)*width, vg.Length(down)*height
	var canvas interface {
		vg.CanvasSizer
		vg.CanvasWriterTo
	}
	if filepath.Ext(file) == ".png" {
		canvas = vgimg.PngCanvas{Canvas: vgimg.New(w, h)}
	} else {
		canvas = vgsvg.New(w, h)
	}
	tiles := draw.Tiles{Rows: down, Cols: across, PadX: vg.Points(8), PadY: vg.Points(8)}
	at := draw.New(canvas)
	for i, p := range plots {
		p.Draw(tiles.At(at, i%across, i/across))
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := canvas.WriteTo(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
