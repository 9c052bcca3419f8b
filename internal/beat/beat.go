// Package beat has the periodic work of a process fall together. Whatever a process
// does when it wakes, to wake costs an idle one the most: 0.2 to 0.3 ms of a processor
// on a virtual machine. Loops that wait until a common beat share the price.
package beat

import (
	"math/rand/v2"
	"time"
)

// Period is the time between two beats: two of them make a default report period, and
// are what a capture program waits before it takes a router for silent.
const Period = 250 * time.Millisecond

// phase differs between processes, so that hosts whose clocks agree do not work in step.
var phase = rand.N(Period)

// Wait returns how long to wait from now for the last beat that comes within d, which is
// more than d - Period, or d if none comes. It goes by the wall clock, which may be set
// meanwhile: that moves the beat of all loops alike.
func Wait(now time.Time, d time.Duration) time.Duration {
	since := (time.Duration(now.UnixNano()%int64(Period)) + phase) % Period
	if since+d < Period {
		return d
	}
	return d - (since+d)%Period
}
