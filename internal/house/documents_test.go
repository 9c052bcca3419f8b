package house

import (
	"fmt"
	"go/ast"
	"go/parser"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	require.NoError(t, err)
	return string(b)
}

// The README's program is the example that it says it is.
func TestEmbedding(t *testing.T) {
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(read(t, "README.md"), -1)
	require.Len(t, blocks, 1)
	_, program, ok := strings.Cut(read(t, "examples/webserver/main.go"), "\npackage main\n")
	require.True(t, ok)
	require.Equal(t, "package main\n"+program, blocks[0][1], "copy examples/webserver/main.go into README.md")
}

// What the README says carom adds to a web server is as short as it says.
func TestEmbeddingIsShort(t *testing.T) {
	text := read(t, "README.md")
	_, added, ok := strings.Cut(text, "\n\tn, err := node.Open(cfg)\n")
	require.True(t, ok)
	added, _, ok = strings.Cut(added, "\n}\n")
	require.True(t, ok)
	lines := strings.Count(added, "\n") + 2 // the first and the last one
	require.LessOrEqual(t, lines, 20)
	require.Contains(t, text, fmt.Sprintf("the third is what carom adds: %d lines.", lines))
}

// Each example has one sentence in the README, and each public package one row.
func TestReadmeListsAll(t *testing.T) {
	text, list := read(t, "README.md"), tracked(t)
	entries := func(pattern string) (names []string) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			names = append(names, m[1])
		}
		slices.Sort(names)
		return names
	}
	examples := slices.DeleteFunc(slices.Clone(list), func(dir string) bool { return !strings.HasPrefix(dir, "examples/") })
	require.Equal(t, examples, entries("(?m)^- `(examples/[a-z]+)`: [^.]+[^ ]*\\.$"), "- `examples/NAME`: one sentence.")
	packages := slices.DeleteFunc(list, func(dir string) bool {
		return strings.HasPrefix(dir, "examples/") || strings.HasPrefix(dir, "internal/")
	})
	require.Equal(t, packages, entries("(?m)^\\| `([a-z/]+)` \\| .+ \\|$"), "| `PACKAGE` | what it is |")
}

// tracked returns the directories of packages, sorted, without those that nobody has
// committed.
func tracked(t *testing.T) (dirs []string) {
	t.Helper()
	committed := func(string) bool { return true }
	if out, err := gitFiles(); err == nil {
		committed = func(dir string) bool { return strings.Contains(string(out), dir+"/") }
	}
	eachFile(t, parser.PackageClauseOnly, func(pkg string, _ *ast.File) {
		if dir := strings.TrimPrefix(pkg, "./"); committed(dir) {
			dirs = append(dirs, dir)
		}
	})
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// Links within the tree lead somewhere, and no text names a place that only its
// writer has.
func TestDocuments(t *testing.T) {
	documents := []string{"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "NOTICE"}
	found, err := os.ReadDir(filepath.Join(root, "docs"))
	require.NoError(t, err)
	for _, f := range found {
		documents = append(documents, "docs/"+f.Name())
	}
	link := regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	for _, name := range documents {
		text := read(t, name)
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			_, err := os.Stat(filepath.Join(root, filepath.Dir(name), m[1]))
			require.NoError(t, err, "%s links to %s", name, m[1])
		}
		for _, place := range []string{"home", "root", "tmp"} {
			require.NotContains(t, text, "/"+place+"/", name)
		}
	}
}
