package beat

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWait(t *testing.T) {
	beat := time.Unix(1_700_000_000, 0).Add(-phase) // one that is
	const ms = time.Millisecond
	for _, tt := range []struct{ since, d, want time.Duration }{
		{0, Period, Period},
		{1, Period, Period - 1},
		{Period - 1, Period, 1},
		{0, 300 * ms, Period},
		{100 * ms, 300 * ms, 150 * ms},
		{249 * ms, 300 * ms, 251 * ms},
		{0, time.Second, time.Second},
		{30 * ms, time.Second, 970 * ms},
		{0, 50 * ms, 50 * ms},
		{200 * ms, 50 * ms, 50 * ms},
		{199 * ms, 50 * ms, 50 * ms},
		{210 * ms, 50 * ms, 40 * ms},
	} {
		require.Equal(t, tt.want, Wait(beat.Add(tt.since), tt.d), "%v after a beat, at most %v", tt.since, tt.d)
	}
}

// Loops that began at any time and have periods that are multiples wake together.
func TestLoopsFallTogether(t *testing.T) {
	begin := time.Now()
	var at [2]time.Time
	for i, period := range []time.Duration{Period, 5 * Period} {
		at[i] = begin.Add(time.Duration(i+1) * 17 * time.Millisecond)
		for at[i].Before(begin.Add(time.Minute)) {
			at[i] = at[i].Add(Wait(at[i], period))
		}
	}
	require.Zero(t, at[1].Sub(at[0])%Period)
}
