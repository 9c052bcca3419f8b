package house

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A rule says what packages may import. Packages of this module are written as
// "./lb"; see patterns for the rest.
type rule struct {
	pkgs  patterns // whom the rule binds
	only  patterns // what they may import themselves; nil: whatever is not barred
	never patterns // what they may not reach, through other packages either
	why   string
}

// heavy lists the modules that serve some programs and all of the tests. Whoever
// imports the library must not have to build them.
var heavy = patterns{
	"gvisor.dev/gvisor/...",
	"gonum.org/v1/...",
	"github.com/hashicorp/...",
	"github.com/miekg/dns/...",
	"github.com/prometheus/...",
	"github.com/stretchr/testify/...",
	"github.com/google/gopacket/...",
	"go.uber.org/goleak/...",
	"pgregory.net/rapid/...",
	"testing/...",
}

var rules = []rule{
	{
		pkgs: patterns{"./..."}, never: patterns{"C"},
		why: "the tree cross-compiles without a C compiler",
	},
	{
		pkgs: patterns{"./lb/..."}, only: patterns{"std", "!syscall", "./lb/..."}, never: patterns{"net/..."},
		why: "policies run unchanged in a router, a test and a simulator, so they see no network",
	},
	{
		pkgs: patterns{"./loadinfo/..."}, never: patterns{"./dpr/..."},
		why: "load reports serve programs that rewrite no packets; dpr/node joins the two",
	},
	{
		pkgs:  patterns{"./dpr"},
		only:  patterns{"std", "!syscall", "./lb", "./internal/beat", "./internal/checksum", "./internal/flowtable", "./internal/header", "./internal/siphash"},
		never: patterns{"net/...", "!net/netip", "./loadinfo/...", "./dpr/..."},
		why:   "the engine decides and rewrites; devices, sockets and reports reach it through its interfaces",
	},
	{
		pkgs: patterns{"./dpr/tun", "./dpr/gue", "./dpr/ipip", "./dpr/confirm"}, never: patterns{"./loadinfo/...", "./dpr/hostnet", "./dpr/node"},
		why: "a device carries packets and knows nothing of what is decided about them",
	},
	{
		// x/sys maps the slab.
		pkgs: patterns{"./internal/flowtable"}, only: patterns{"std", "./internal/siphash", "golang.org/x/sys/unix"}, never: patterns{"net/..."},
		why: "the table knows neither packets nor hosts",
	},
	{
		pkgs: patterns{"./internal/header", "./internal/checksum", "./internal/siphash"},
		only: patterns{"std", "!syscall", "./internal/checksum"}, never: patterns{"net/...", "!net/netip"},
		why: "these are functions of bytes",
	},
	{
		pkgs:  patterns{"./lb/...", "./loadinfo", "./dpr", "./dpr/node", "./dpr/tun", "./dpr/gue", "./dpr/ipip", "./dpr/confirm", "./dpr/hostnet"},
		never: append(heavy, "./internal/bench/...", "./internal/lab/...", "./internal/sim/...", "./dpr/dprtest/..."),
		why:   "importers of the library must not inherit what only tests and some programs need",
	},
}

// planned lists packages that a rule names already and that do not exist yet.
var planned = patterns{"./dpr/gue", "./dpr/hostnet", "./dpr/ipip", "./dpr/node", "./dpr/tun"}

func TestImports(t *testing.T) {
	g := readTree(t)
	report(t, violations(g, rules))
	for _, r := range rules {
		for _, p := range r.pkgs {
			require.True(t, g.has(p) || planned.match(p), "a rule binds %s, which does not exist: was it renamed?", p)
		}
	}
}

// TestRules breaks each kind of rule in a small tree of its own.
func TestRules(t *testing.T) {
	tests := []struct {
		name  string
		graph graph
		rule  rule
		want  []string
	}{
		{
			name:  "clean",
			graph: graph{"./a": {"./a/b", "fmt", "net/netip"}, "./a/b": {"sort"}},
			rule:  rule{pkgs: patterns{"./a/..."}, only: patterns{"std", "./a/..."}, never: patterns{"net/...", "!net/netip"}},
		},
		{
			name:  "not on the list",
			graph: graph{"./a": {"fmt", "example.com/x"}},
			rule:  rule{pkgs: patterns{"./a"}, only: patterns{"std"}, why: "because"},
			want:  []string{"./a must not import example.com/x: because"},
		},
		{
			name:  "barred below a pattern",
			graph: graph{"./a": {"net/http"}},
			rule:  rule{pkgs: patterns{"./a"}, never: patterns{"net/...", "!net/netip"}, why: "because"},
			want:  []string{"./a must not import net/http: because"},
		},
		{
			name:  "barred through others",
			graph: graph{"./a": {"./b"}, "./b": {"example.com/x"}, "example.com/x": {"example.com/heavy/y"}},
			rule:  rule{pkgs: patterns{"./a"}, never: patterns{"example.com/heavy/..."}, why: "because"},
			want:  []string{"./a must not import example.com/heavy/y (through ./b, example.com/x): because"},
		},
		{
			name:  "a cycle ends",
			graph: graph{"./a": {"./b"}, "./b": {"./a"}},
			rule:  rule{pkgs: patterns{"./a"}, never: patterns{"net"}},
		},
		{
			name:  "a name that only begins alike",
			graph: graph{"./ab": {"network"}},
			rule:  rule{pkgs: patterns{"./a/...", "./ab"}, only: patterns{"std"}, never: patterns{"net/..."}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, violations(tt.graph, []rule{tt.rule}))
		})
	}
}

// violations returns one line for each import that breaks a rule.
func violations(g graph, rules []rule) (lines []string) {
	for _, pkg := range g.packages() {
		for _, r := range rules {
			if r.pkgs.match(pkg) {
				lines = append(lines, r.check(g, pkg)...)
			}
		}
	}
	return lines
}

// check returns one line for each import by which pkg breaks the rule.
func (r *rule) check(g graph, pkg string) (lines []string) {
	for _, imp := range g[pkg] {
		if r.only != nil && !r.only.match(imp) && !r.never.match(imp) {
			lines = append(lines, fmt.Sprintf("%s must not import %s: %s", pkg, imp, r.why))
		}
	}
	for _, chain := range g.chains(pkg, r.never) {
		last := len(chain) - 1
		line := fmt.Sprintf("%s must not import %s", pkg, chain[last])
		if last > 1 {
			line += " (through " + strings.Join(chain[1:last], ", ") + ")"
		}
		lines = append(lines, line+": "+r.why)
	}
	return lines
}

// chains returns, for each import that pkg reaches and that is barred, a
// shortest chain of imports from pkg to it.
func (g graph) chains(pkg string, barred patterns) (chains [][]string) {
	seen := map[string]bool{pkg: true}
	for queue := [][]string{{pkg}}; len(queue) > 0; queue = queue[1:] {
		chain := queue[0]
		for _, imp := range g[chain[len(chain)-1]] {
			if seen[imp] {
				continue
			}
			seen[imp] = true
			next := append(slices.Clone(chain), imp)
			if barred.match(imp) {
				chains = append(chains, next)
			} else {
				queue = append(queue, next)
			}
		}
	}
	return chains
}

// patterns is a list of packages. "std" stands for the standard library, "x/..."
// for x and all below it, and "!" before a pattern takes back what an earlier
// one matched.
type patterns []string

func (ps patterns) match(pkg string) (ok bool) {
	for _, p := range ps {
		if p, not := strings.CutPrefix(p, "!"); matches(p, pkg) {
			ok = !not
		}
	}
	return ok
}

func matches(pattern, pkg string) bool {
	if pattern == "std" {
		first, _, _ := strings.Cut(pkg, "/")
		return !strings.Contains(first, ".")
	}
	if parent, below := strings.CutSuffix(pattern, "/..."); below {
		return pkg == parent || strings.HasPrefix(pkg, parent+"/")
	}
	return pkg == pattern
}

// report fails the test with all lines, each on its own.
func report(t *testing.T, lines []string) {
	t.Helper()
	require.Empty(t, lines, "rules broken:\n%s", strings.Join(lines, "\n"))
}
