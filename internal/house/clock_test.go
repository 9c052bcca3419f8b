package house

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// clockless lists the packages that get the time as an argument, so that a test
// or a simulator decides what time it is. They import package time for Duration.
var clockless = patterns{"./lb/...", "./internal/flowtable", "./internal/header", "./internal/checksum", "./internal/siphash"}

// clocks lists what package time has that reads or waits for the clock.
var clocks = []string{"After", "AfterFunc", "NewTicker", "NewTimer", "Now", "Since", "Sleep", "Tick", "Until"}

func TestNoClock(t *testing.T) {
	var lines []string
	eachFile(t, 0, func(pkg string, f *ast.File) {
		if !clockless.match(pkg) {
			return
		}
		for _, use := range clockUses(f) {
			lines = append(lines, fmt.Sprintf("%s must not use time.%s: time is an argument there", pkg, use))
		}
	})
	report(t, lines)
}

func TestClockUses(t *testing.T) {
	tests := []struct {
		name, src string
		want      []string
	}{
		{"durations only", `import "time"; const d = time.Second; func f(time.Duration) {}`, nil},
		{"a call", `import "time"; var t = time.Now()`, []string{"Now"}},
		{"a value", `import "time"; var now = time.Since`, []string{"Since"}},
		{"another name", `import clock "time"; func f() { clock.Sleep(1) }`, []string{"Sleep"}},
		{"another package", `import "example.com/time"; var t = time.Now()`, nil},
		{"a dot import", `import . "time"`, []string{"*"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\n"+tt.src, 0)
			require.NoError(t, err)
			require.Equal(t, tt.want, clockUses(f))
		})
	}
}

// clockUses returns what the file uses of clocks, "*" where a dot import hides
// it.
func clockUses(f *ast.File) (uses []string) {
	name := ""
	for _, spec := range f.Imports {
		switch {
		case spec.Path.Value != `"time"`:
		case spec.Name == nil:
			name = "time"
		case spec.Name.Name == ".":
			return []string{"*"}
		default:
			name = spec.Name.Name
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == name && slices.Contains(clocks, sel.Sel.Name) {
				uses = append(uses, sel.Sel.Name)
			}
		}
		return true
	})
	return uses
}
