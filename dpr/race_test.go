//go:build race

package dpr_test

// Under the race detector sync.Pool drops things at random, so allocations mean
// nothing.
const raceDetector = true
