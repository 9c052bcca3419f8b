package sockmeter

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUnknownNames(t *testing.T) {
	for want, value := range map[string]fmt.Stringer{
		"poll":    Poll,
		"mode 3":  Poll + 1,
		"mode 99": Mode(99),
	} {
		require.Equal(t, want, value.String())
	}
}
