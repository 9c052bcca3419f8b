package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
)

// The yardsticks panic if they do not find or rewrite a packet of a flow.
func TestYardsticksKnowAllFlows(t *testing.T) {
	const flows = 500
	order := randomFlows(flows)
	for _, r := range []runner{newGopacket(flows, false), newGopacket(flows, true), newGvisor(flows), newFloor(flows), newLoads(flows)} {
		for i := range 64 {
			r.run(&order[i])
		}
	}
}

func TestEngineKnowsAllFlows(t *testing.T) {
	const flows = 500
	e, err := newEngine(2*flows, always{})
	require.NoError(t, err)
	defer e.Close()
	e.fill(flows)
	order := randomFlows(flows)
	for _, batch := range []int{1, 32, 64} {
		before := e.Stats()
		r := e.batches(batch, dprtest.ACK)
		for i := range 64 {
			r.run(&order[i])
		}
		after := e.Stats()
		require.Equal(t, uint64(64*32), after.Verdicts[dpr.Forward]-before.Verdicts[dpr.Forward])
		require.Equal(t, flows, after.Flows[dpr.Established])
		require.Zero(t, after.Unknown)
	}
}
