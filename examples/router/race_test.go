//go:build race

package main

// The race detector multiplies memory and time: figures mean nothing under it.
const raceDetector = true
