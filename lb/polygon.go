package lb

import (
	"math"
	"slices"
)

// A polygon is convex; its corners are relative to a site inside it.
type polygon []vector

type vector struct{ x, y float64 }

// square is the whole torus, as seen from a site.
func square() polygon {
	const half = 1 << 31
	return polygon{{-half, -half}, {half, -half}, {half, half}, {-half, half}}
}

// clip returns the part of p that is nearer to the site than to another one at q.
func (p polygon) clip(q vector) polygon {
	beyond := func(v vector) float64 { return v.x*q.x + v.y*q.y - (q.x*q.x+q.y*q.y)/2 }
	if !slices.ContainsFunc(p, func(v vector) bool { return beyond(v) > 0 }) {
		return p
	}
	var out polygon
	for i, v := range p {
		w := p[(i+1)%len(p)]
		b, c := beyond(v), beyond(w)
		if b <= 0 {
			out = append(out, v)
		}
		if b < 0 && c > 0 || b > 0 && c < 0 {
			at := b / (b - c)
			out = append(out, vector{v.x + at*(w.x-v.x), v.y + at*(w.y-v.y)})
		}
	}
	return out
}

// reach is the distance from the site to the farthest corner.
func (p polygon) reach() float64 {
	far := 0.0
	for _, v := range p {
		far = max(far, math.Hypot(v.x, v.y))
	}
	return far
}

func (p polygon) area() float64 {
	sum := 0.0
	for i, v := range p {
		w := p[(i+1)%len(p)]
		sum += v.x*w.y - w.x*v.y
	}
	return sum / 2
}
