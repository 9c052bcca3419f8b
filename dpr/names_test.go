package dpr_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
)

func TestUnknownNames(t *testing.T) {
	for want, value := range map[string]fmt.Stringer{
		"verdict 7":     dpr.Hold + 1,
		"verdict 99":    dpr.Verdict(99),
		"life 4":        dpr.Gone + 1,
		"life 9":        dpr.Life(9),
		"reason 99":     dpr.Reason(99),
		"protocol 99":   dpr.Proto(99),
		"reply mode 99": dpr.ReplyMode(99),
		"state 99":      dpr.State(99),
	} {
		require.Equal(t, want, value.String())
	}
}
