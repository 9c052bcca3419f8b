package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whatever users of the library can name has a comment: their editors show it, and
// nothing else. A comment may stand for the names of one declaration, and in a group
// of constants or variables for all of it.
func TestAllIsCommented(t *testing.T) {
	var lines []string
	eachFile(t, parser.ParseComments, func(pkg string, f *ast.File) {
		if strings.HasPrefix(pkg, "./internal/") || strings.HasPrefix(pkg, "./examples/") || ast.IsGenerated(f) {
			return
		}
		for _, name := range uncommented(f) {
			lines = append(lines, pkg+": "+name+" has no comment")
		}
	})
	slices.Sort(lines)
	report(t, slices.Compact(lines)) // what each platform has is there several times
}

// uncommented returns the exported names of a file that have no comment.
func uncommented(f *ast.File) (names []string) {
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if of, ok := receiver(d); ok && d.Doc == nil && d.Name.IsExported() {
				names = append(names, of+d.Name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				names = append(names, uncommentedIn(spec, d.Doc != nil)...)
			}
		}
	}
	return names
}

// receiver returns the type of a method and a point, nothing for a function; ok is
// false if nobody can name the type.
func receiver(d *ast.FuncDecl) (of string, ok bool) {
	if d.Recv == nil {
		return "", true
	}
	expr := d.Recv.List[0].Type
	if star, ok := expr.(*ast.StarExpr); ok {
		expr = star.X
	}
	if generic, ok := expr.(*ast.IndexExpr); ok {
		expr = generic.X
	}
	name, ok := expr.(*ast.Ident)
	return name.Name + ".", ok && name.IsExported()
}

func uncommentedIn(spec ast.Spec, group bool) (names []string) {
	switch s := spec.(type) {
	case *ast.ValueSpec:
		for _, name := range s.Names {
			if name.IsExported() && !group && s.Doc == nil && s.Comment == nil {
				names = append(names, name.Name)
			}
		}
	case *ast.TypeSpec:
		if !s.Name.IsExported() {
			return nil
		}
		if !group && s.Doc == nil {
			names = append(names, s.Name.Name)
		}
		ast.Inspect(s.Type, func(n ast.Node) bool {
			list, ok := n.(*ast.FieldList)
			if !ok {
				_, isFunc := n.(*ast.FuncType)
				return !isFunc // its parameters are no fields
			}
			for _, field := range list.List {
				for _, name := range field.Names {
					if name.IsExported() && field.Doc == nil && field.Comment == nil {
						names = append(names, s.Name.Name+"."+name.Name)
					}
				}
			}
			return true
		})
	}
	return names
}

// The check finds what it is to find.
func TestUncommented(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "f.go", `package p

// T is commented.
type T struct {
	A, B int
	// C is commented.
	C int
	D int // is commented
	e int
	F struct{ G int }
}

type I interface{ M(X int) }

func (t *T) N() {}
func (t t) O()  {}
func P()        {}

// A group.
const (
	Q = iota
)

var R, s int
`, parser.ParseComments)
	require.NoError(t, err)
	require.Equal(t, []string{"T.A", "T.B", "T.F", "T.G", "I", "I.M", "T.N", "P", "R"}, uncommented(f))
}
