package node_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/node"
)

// A host is given back once, however often Run is called, and is left alone from then on.
func TestRunsOnce(t *testing.T) {
	cfg, host := alone()
	closed, changed := 0, 0
	host.Close = func() error { closed++; return nil }
	host.SetServices = func([]dpr.Service) error { changed++; return nil }
	n, err := node.New(cfg, host)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	errs := make([]error, 8)
	var calls sync.WaitGroup
	for i := range errs {
		calls.Go(func() { errs[i] = n.Run(ctx) })
	}
	calls.Wait()
	refused := 0
	for _, err := range append(errs, n.Run(context.Background())) {
		if err != nil {
			require.ErrorContains(t, err, "Run was called already")
			refused++
		}
	}
	require.Equal(t, len(errs), refused, "all but one")
	require.Equal(t, 1, closed)
	cfg.Services[0].Port = 81
	require.ErrorContains(t, n.Reconfigure(cfg), "after Run has ended")
	require.Zero(t, changed)
}
