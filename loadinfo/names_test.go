package loadinfo

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUnknownNames(t *testing.T) {
	for want, value := range map[string]fmt.Stringer{
		"down":     Down,
		"state 5":  Down + 1,
		"state 99": State(99),
	} {
		require.Equal(t, want, value.String())
	}
}
