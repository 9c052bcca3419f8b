package gossip

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// However much had to be sent at once, there is something for reports a second later.
func TestBudgetForgivesDebts(t *testing.T) {
	b := &budget{perSecond: 1000}
	require.True(t, b.open(start))
	b.spend(1500, start)
	require.False(t, b.open(start.Add(400*time.Millisecond)), "what was sent counts")
	require.True(t, b.open(start.Add(600*time.Millisecond)))
	b.spend(1_000_000, start.Add(time.Second))
	require.False(t, b.open(start.Add(1900*time.Millisecond)))
	require.True(t, b.open(start.Add(2100*time.Millisecond)))
}
