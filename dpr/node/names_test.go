package node_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr/node"
)

func TestUnknownNames(t *testing.T) {
	for want, value := range map[string]fmt.Stringer{
		"ipip":      node.IPIP,
		"method 2":  node.IPIP + 1,
		"method 99": node.Method(99),
	} {
		require.Equal(t, want, value.String())
	}
}
