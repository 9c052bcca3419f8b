package dpr_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/lb"
)

func TestSetSnapshotRefuses(t *testing.T) {
	e, err := dpr.New(dpr.Config{MaxFlows: 64})
	require.NoError(t, err)
	defer e.Close()
	require.ErrorContains(t, e.SetSnapshot("web", nil, new(lb.Snapshot)), "policy is nil")
	require.ErrorContains(t, e.SetSnapshot("web", (*lb.Ring)(nil), new(lb.Snapshot)), "nil *lb.Ring")
	require.ErrorContains(t, e.SetSnapshot("web", lb.Stay{}, nil), "snapshot is nil")
	require.ErrorContains(t, e.SetSnapshot("web", lb.Stay{}, new(lb.Snapshot)), "no service")
}
