package sim

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/stat"
)

func TestServices(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace")
	require.NoError(t, os.WriteFile(file, []byte("# seconds\n1\n\n3\n"), 0o600))
	tests := []struct {
		spec           string
		variance, diff float64
	}{
		{"exp", 1, 0.03},
		{"fixed", 0, 0},
		{"pareto:alpha=4", 1.0 / 8, 0.02},
		{"bimodal:share=0.1,ratio=10", 10.9/(1.9*1.9) - 1, 0.03},
		{"trace:" + file, 0.25, 1e-4},
	}
	for _, tt := range tests {
		t.Run(tt.spec, func(t *testing.T) {
			draw, err := parseService(tt.spec)
			require.NoError(t, err)
			r, times := rand.New(rand.NewPCG(1, 1)), make([]float64, 400_000)
			for i := range times {
				times[i] = draw(r)
			}
			mean, variance := stat.MeanVariance(times, nil)
			require.InDelta(t, 1, mean, 0.01)
			require.InDelta(t, tt.variance, variance, tt.diff)
		})
	}
}

func TestBadTraces(t *testing.T) {
	for text, says := range map[string]string{
		"":         "has no times",
		"1\n2 s\n": `:2: "2 s" is not a time`,
		"1\n-1\n":  `:2: "-1" is not a time`,
		"NaN\n":    `:1: "NaN" is not a time`,
		"+Inf\n":   `:1: "+Inf" is not a time`,
	} {
		file := filepath.Join(t.TempDir(), "trace")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		_, err := parseService("trace:" + file)
		require.ErrorContains(t, err, says)
	}
}

func TestEntries(t *testing.T) {
	for spec, want := range map[string][]float64{
		"uniform":   {1. / 4, 1. / 4, 1. / 4, 1. / 4},
		"one":       {1, 0, 0, 0},
		"zipf":      {12. / 25, 6. / 25, 4. / 25, 3. / 25},
		"zipf:s=2":  {144. / 205, 36. / 205, 16. / 205, 9. / 205},
		"zipf:s=0":  {1. / 4, 1. / 4, 1. / 4, 1. / 4},
		"zipf:s=50": {1, 0, 0, 0},
	} {
		draw, err := parseEntry(spec, 4)
		require.NoError(t, err)
		r, got := rand.New(rand.NewPCG(1, 1)), make([]float64, 4)
		for range 100_000 {
			got[draw(r)] += 1e-5
		}
		require.InDeltaSlice(t, want, got, 0.01, spec)
	}
}

// FuzzSpec looks for specs of services and entries that are taken and then draw
// what is none.
func FuzzSpec(f *testing.F) {
	for _, s := range []string{"exp", "pareto:alpha=1.1", "bimodal:share=1,ratio=1e300", "zipf:s=-1", "zipf:s=NaN", "pareto:alpha=Inf"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r := rand.New(rand.NewPCG(1, 1))
		if len(text) >= 5 && text[:5] == "trace" {
			return
		}
		if draw, err := parseService(text); err == nil {
			require.GreaterOrEqual(t, draw(r), 0.0)
		}
		if draw, err := parseEntry(text, 3); err == nil {
			require.Contains(t, []int{0, 1, 2}, draw(r))
		}
	})
}
