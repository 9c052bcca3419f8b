//go:build race

package node_test

// The race detector makes all of this ten times as slow.
const raceDetector = true
