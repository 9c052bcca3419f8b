package figures

import (
	"fmt"
	"io"
	"sync"
)

// judge collects what experiments gave and writes their lines in order.
type judge struct {
	w        io.Writer
	checks   []check
	seeds    int
	progress func(float64)

	mu           sync.Mutex
	all          [][]measured
	left         []int // by check: the seeds that are missing
	next         int   // the first check that is not written
	finished     int
	lines, wrong int
}

// done takes what one experiment gave.
func (j *judge) done(check, seed int, m measured) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.all[check][seed] = m
	j.left[check]--
	if j.finished++; j.progress != nil {
		j.progress(float64(j.finished) / float64(len(j.checks)*j.seeds))
	}
	for ; j.next < len(j.checks) && j.left[j.next] == 0; j.next++ {
		for _, l := range j.checks[j.next].judge(j.all[j.next]) {
			j.lines++
			if !l.OK {
				j.wrong++
			}
			if _, err := fmt.Fprintln(j.w, l); err != nil {
				return err
			}
		}
		j.all[j.next] = nil
	}
	return nil
}
