package main

import (
	"fmt"
	"io"
	"os"
	"time"
)

// progress shows on a terminal how far the work is; elsewhere it is silent.
type progress struct {
	w     io.Writer
	began time.Time
	shown int // per cent
}

func newProgress(w io.Writer) *progress {
	p := &progress{began: time.Now(), shown: -1}
	if f, ok := w.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			p.w = w
		}
	}
	return p
}

func (p *progress) set(done float64) {
	percent := int(100 * done)
	if p.w == nil || percent == p.shown {
		return
	}
	p.shown = percent
	took := time.Since(p.began)
	left := time.Duration(float64(took) * (1 - done) / max(done, 1e-6))
	if percent < 1 {
		left = 0
	}
	fmt.Fprintf(p.w, "\r%3d %%, %v, %v left \x1b[K", percent, took.Round(time.Second), left.Round(time.Second))
}

func (p *progress) end() {
	if p.w != nil {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
