//go:build !race

package dpr_test

const raceDetector = false
