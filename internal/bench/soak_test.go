package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
)

func TestSoakLeavesNothing(t *testing.T) {
	s, err := newSoak()
	require.NoError(t, err)
	defer s.engine.Close()
	marked := 0
	require.NoError(t, s.run(t.Context(), 50_000, func() { marked++ }))
	require.Equal(t, 1, marked)
	require.Zero(t, s.entries())
	require.Zero(t, s.open())
	require.Positive(t, s.most)
	require.LessOrEqual(t, s.most, soakMost)

	stats := s.engine.Stats()
	require.Zero(t, stats.TableFull)
	require.Positive(t, stats.PeerGone)
	require.Positive(t, s.denied)
	require.Positive(t, stats.Drops[dpr.FragmentLost])
	require.Positive(t, stats.Services["tcp"].Refused)
	require.Positive(t, stats.Services["udp"].RedirectedOut)
	require.Positive(t, stats.Services["udp"].RedirectedIn)
}

// The soak would be worth nothing if it could not see what is left.
func TestSoakSeesWhatIsLeft(t *testing.T) {
	s, err := newSoak()
	require.NoError(t, err)
	defer s.engine.Close()
	for step := range 100 {
		s.step(step, 100)
	}
	require.Positive(t, s.entries())
	require.Positive(t, s.open())
	s.engine.Tick(s.now.Add(time.Minute))
	require.Positive(t, s.entries(), "established flows live longer")
}
