package ipip

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUnknownNames(t *testing.T) {
	for want, value := range map[string]fmt.Stringer{
		"refused":   NumReasons - 1,
		"reason 9":  NumReasons,
		"reason 99": Reason(99),
	} {
		require.Equal(t, want, value.String())
	}
}
