package house

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// root is the top of the tree, seen from this package.
const root = "../.."

// A graph holds what each package imports. Packages of this module are written
// as "./lb", and their imports are those of all platforms together. Packages of
// the standard library are leaves.
type graph map[string][]string

// packages returns the packages of this module, sorted.
func (g graph) packages() []string {
	own := maps.Keys(g)
	return slices.DeleteFunc(slices.Sorted(own), func(pkg string) bool { return !strings.HasPrefix(pkg, "./") })
}

// has reports whether a pattern matches any package of this module.
func (g graph) has(pattern string) bool {
	return slices.ContainsFunc(g.packages(), func(pkg string) bool { return matches(pattern, pkg) })
}

// readTree returns the imports of this module and of the modules it needs.
func readTree(t *testing.T) graph {
	t.Helper()
	module, g := modulePath(t), graph{}
	eachFile(t, parser.ImportsOnly, func(pkg string, f *ast.File) {
		for _, spec := range f.Imports {
			imp, err := strconv.Unquote(spec.Path.Value)
			require.NoError(t, err)
			if own, ok := strings.CutPrefix(imp, module+"/"); ok {
				imp = "./" + own
			}
			g[pkg] = append(g[pkg], imp)
		}
	})
	require.NotEmpty(t, g)
	addNeeded(t, g, module)
	return g
}

// modulePath returns the module's path as go.mod has it.
func modulePath(t *testing.T) string {
	t.Helper()
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	line, _, _ := strings.Cut(string(mod), "\n")
	path, ok := strings.CutPrefix(line, "module ")
	require.True(t, ok, "go.mod begins with its module line")
	return strings.TrimSpace(path)
}

// eachFile parses the Go files of the tree, without tests, whatever platform
// they are for, and calls fn with each file and the package it belongs to.
func eachFile(t *testing.T, mode parser.Mode, fn func(pkg string, f *ast.File)) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && path != root && (name[0] == '.' || name[0] == '_' || name == "testdata"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, mode|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		fn("./"+filepath.ToSlash(dir), f)
		return err
	}))
}

// addNeeded adds the packages of other modules that this module's need, as they
// are on this platform.
func addNeeded(t *testing.T, g graph, module string) {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-deps", "-json=ImportPath,Imports,Standard", "./...")
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err, "go list shows what other modules import")
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var pkg struct {
			ImportPath string
			Imports    []string
			Standard   bool
		}
		if err := dec.Decode(&pkg); errors.Is(err, io.EOF) {
			return
		} else {
			require.NoError(t, err)
		}
		if !pkg.Standard && !strings.HasPrefix(pkg.ImportPath, module) {
			g[pkg.ImportPath] = pkg.Imports
		}
	}
}
