//go:build race

package gossip

import "runtime"

// The timers of a synctest bubble that run on two processors at once break the race
// detector's own memory, now and then: https://go.dev/issue/78156. On one processor races
// are still found, by what is ordered and not by what happens at once.
func init() { runtime.GOMAXPROCS(1) }
