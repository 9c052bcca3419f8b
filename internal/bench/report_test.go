package main

import (
	"bytes"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		samples samples
		want    float64
	}{{samples{3}, 3}, {samples{9, 1, 2}, 2}, {samples{4, 1, 2, 3}, 2.5}} {
		require.Equal(t, c.want, c.samples.median())
	}
	require.True(t, math.IsNaN(samples(nil).median()))
}

func TestTargets(t *testing.T) {
	for _, c := range []struct {
		target   target
		got, met string
	}{
		{atLeast("x", 2, 1.5), "2.00", "met"},
		{atLeast("x", 1.4, 1.5), "1.40", "not met"},
		{atMost("x", 0, 0), "0", "met"},
		{atMost("x", 0.01, 0), "0.01", "not met"},
		{atMost("x", math.NaN(), 1), "–", "not measured"},
		{reported("x", 123.4), "123", ""},
	} {
		require.Equal(t, c.got, c.target.Got)
		require.Equal(t, c.met, c.target.Met)
	}
}

// A machine that slows down from round to round does not show in a ratio.
func TestRatioIsOfRounds(t *testing.T) {
	tab := newTable("t", []string{"upload", "download", "echo"}, []string{"µ", "b"})
	for i, v := range []float64{8, 4, 2} {
		tab.add("upload", "µ", v)
		tab.add("upload", "b", v/[]float64{1, 2, 8}[i])
	}
	tab.add("echo", "b", 1)
	require.Equal(t, 2.0, tab.ratio("upload", "µ", "b"))
	require.True(t, math.IsNaN(tab.ratio("download", "µ", "b")), "no samples")
	require.True(t, math.IsNaN(tab.ratio("upload", "µ", "no such")))
	require.True(t, math.IsNaN(tab.ratio("echo", "µ", "b")), "a round is missing")
}

func TestReportGoesIntoItsSection(t *testing.T) {
	tab := newTable("t", []string{"upload", "download"}, []string{"µ", "b"})
	tab.add("upload", "µ", 1)
	tab.add("upload", "µ", 3)
	tab.add("upload", "b", 8)
	r := &report{Name: "lab", Command: "c", Time: "now", Tables: []*table{tab}, Targets: []target{atLeast("x", 2, 1)}}
	doc, err := r.into([]byte("a\n<!-- lab: begin -->\nold\n<!-- lab: end -->\nz\n"))
	require.NoError(t, err)
	text := string(doc)
	require.NotContains(t, text, "old")
	require.Contains(t, text, "| t        |    µ |    b |\n| -------- | ---: | ---: |\n| upload   | 2.00 | 8.00 |\n| download |    – |    – |\n")
	require.Contains(t, text, "| x      | ≥ 1.00 |     2.00 | met |\n")

	again, err := r.into(doc)
	require.NoError(t, err)
	require.True(t, bytes.Equal(doc, again), "writing it twice changes nothing")

	_, err = r.into([]byte("<!-- lab: begin -->\n"))
	require.ErrorContains(t, err, "lab: end")
	_, err = r.into(nil)
	require.ErrorContains(t, err, "lab: begin")
}

func TestWants(t *testing.T) {
	require.True(t, wants("", "upload"))
	require.True(t, wants("download, Upload", "upload"))
	require.False(t, wants("download", "upload"))
}
