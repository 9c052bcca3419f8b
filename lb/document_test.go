package lb

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The table of parameters is what Parse takes.
func TestParametersAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../docs/POLICIES.md")
	require.NoError(t, err)
	for _, policy := range policies {
		p := params{given: map[string]string{}}
		policy.build(&p)
		usage := strings.Join(p.usage, "; ")
		if usage == "" {
			usage = "none"
		}
		row := "| `" + policy.name + "` | " + usage + " |"
		require.Contains(t, string(doc), row)
	}
}
