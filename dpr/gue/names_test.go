package gue_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr/gue"
)

func TestUnknownNames(t *testing.T) {
	for want, value := range map[string]fmt.Stringer{
		"refused":   gue.Refused,
		"replayed":  gue.NumReasons - 1,
		"reason 20": gue.NumReasons,
		"reason 99": gue.Reason(99),
	} {
		require.Equal(t, want, value.String())
	}
}
