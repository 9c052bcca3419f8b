package house

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// topLevel is all that may stand at the top of the tree.
var topLevel = []string{
	"dpr", "lb", "loadinfo", "examples", "internal", // code
	"docs", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "NOTICE",
	"go.mod", "go.sum", ".ci", "staticcheck.conf", ".gitignore",
}

func TestTopLevel(t *testing.T) {
	names := topNames(t)
	require.Contains(t, names, "go.mod")
	var lines []string
	for _, name := range names {
		if !slices.Contains(topLevel, name) {
			lines = append(lines, name+" must not stand at the top level: readers meet the three packages there first")
		}
	}
	report(t, lines)
}

// topNames returns the names at the top of the tree that git tracks; outside of
// a clone, such as in the module cache, all of them.
func topNames(t *testing.T) (names []string) {
	t.Helper()
	if out, err := gitFiles(); err == nil {
		for path := range strings.SplitSeq(string(bytes.TrimRight(out, "\x00")), "\x00") {
			name, _, _ := strings.Cut(path, "/")
			names = append(names, name)
		}
		slices.Sort(names)
		return slices.Compact(names)
	}
	entries, err := os.ReadDir(root)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// gitFiles returns the paths of all tracked files, each with a zero byte behind.
func gitFiles() ([]byte, error) {
	if _, err := os.Stat(root + "/.git"); err != nil {
		return nil, err
	}
	cmd := exec.Command("git", "ls-files", "-z")
	cmd.Dir = root
	return cmd.Output()
}
