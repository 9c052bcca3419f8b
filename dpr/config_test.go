package dpr_test

import (
	"math"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
)

// Validate finds what New would refuse, in the same words.
func TestValidateIsNew(t *testing.T) {
	web := func(reply dpr.ReplyMode) []dpr.Service {
		return []dpr.Service{{Name: "web", Proto: dpr.TCP, Port: 80, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Reply: reply}}
	}
	for name, test := range map[string]struct {
		cfg  dpr.Config
		want string
	}{
		"no flows":       {dpr.Config{MaxFlows: -1}, "MaxFlows is -1"},
		"too many flows": {dpr.Config{MaxFlows: math.MaxInt}, "MaxFlows is"},
		"reply":          {dpr.Config{Services: web(dpr.ReplyTunnelled + 1)}, "Reply is 3"},
		"errors":         {dpr.Config{ErrorsPerSecond: -1}, "ErrorsPerSecond is -1"},
		"timeout":        {dpr.Config{Timeouts: dpr.Timeouts{UDP: -1}}, "Timeouts.udp is"},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.cfg.Validate()
			require.ErrorContains(t, err, test.want)
			_, fromNew := dpr.New(test.cfg)
			require.EqualError(t, fromNew, err.Error())
		})
	}
	require.NoError(t, dpr.Config{Services: web(dpr.ReplyTunnelled)}.Validate())
}
