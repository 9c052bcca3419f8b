package node_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/node"
	"github.com/carom-dpr/carom/lb"
	"github.com/carom-dpr/carom/loadinfo"
)

// What would panic once the node runs is refused when it is made.
func TestNewRefuses(t *testing.T) {
	tests := map[string]struct {
		spoil func(*node.Config, *node.Host)
		want  string
	}{
		"no devices":   {func(_ *node.Config, h *node.Host) { h.Devices = nil }, "Host.Devices is empty"},
		"nil device":   {func(_ *node.Config, h *node.Host) { h.Devices = append(h.Devices, nil) }, "Host.Devices[1] is nil"},
		"nil uplink":   {func(_ *node.Config, h *node.Host) { h.Uplinks = []dpr.Device{nil} }, "Host.Uplinks[0] is nil"},
		"no reports":   {func(_ *node.Config, h *node.Host) { h.Reports = nil }, "Host.Reports is nil"},
		"no peers":     {func(_ *node.Config, h *node.Host) { h.SetPeers = nil }, "Host.SetPeers is nil"},
		"no aliases":   {func(_ *node.Config, h *node.Host) { h.SetAliases = nil }, "Host.SetAliases is nil"},
		"negative MTU": {func(_ *node.Config, h *node.Host) { h.MTU = -1 }, "Host.MTU is -1"},
		"small MTU":    {func(_ *node.Config, h *node.Host) { h.MTU = 67 }, "Host.MTU is 67"},
		"great MTU":    {func(_ *node.Config, h *node.Host) { h.MTU = math.MaxInt }, "Host.MTU is"},
		"no transport": {func(c *node.Config, _ *node.Host) {
			c.Report = nil
			c.Transport = func(*loadinfo.Board, *loadinfo.Keyring) (loadinfo.Transport, error) { return nil, nil }
		}, "Transport returned nil"},
		"policy": {func(c *node.Config, _ *node.Host) { c.Services[0].Policy = &lb.SlowStart{} }, "Policy: lb: SlowStart.Policy"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cfg, host := alone()
			test.spoil(&cfg, &host)
			_, err := node.New(cfg, host)
			require.ErrorContains(t, err, test.want)
		})
	}
}

func TestValidateRefusesPolicies(t *testing.T) {
	for want, policy := range map[string]lb.Policy{
		"nil *lb.RoundRobin": (*lb.RoundRobin)(nil),
		"SlowStart.Policy":   &lb.SlowStart{},
		"SlowStart.Settled":  &lb.SlowStart{Policy: lb.Stay{}, Settled: (*lb.Ring)(nil)},
		"nil *lb.Maglev":     &lb.SlowStart{Policy: &lb.SlowStart{Policy: (*lb.Maglev)(nil)}},
	} {
		cfg, _ := alone()
		cfg.Services[0].Policy = policy
		err := cfg.Validate()
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, `Services[0] "web": Policy`)
	}
}

func TestValidateRefusesNumbers(t *testing.T) {
	for want, spoil := range map[string]func(*node.Config){
		"MaxFlows is":                func(c *node.Config) { c.MaxFlows = math.MaxInt },
		`Services[0] "web": Reply 9`: func(c *node.Config) { c.Services[0].Reply = 9 },
	} {
		cfg, host := alone()
		spoil(&cfg)
		require.ErrorContains(t, cfg.Validate(), want)
		_, err := node.New(cfg, host)
		require.ErrorContains(t, err, want)
	}
}
