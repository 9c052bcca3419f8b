package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a killed run left is removed by the next one; what a running one needs stays.
func TestScratch(t *testing.T) {
	parent := t.TempDir()
	killed := filepath.Join(parent, scratchPattern+"1")
	require.NoError(t, os.MkdirAll(filepath.Join(killed, "h1.body"), 0o700))
	other := filepath.Join(parent, "other")
	require.NoError(t, os.Mkdir(other, 0o700))
	first, err := newScratch(parent)
	require.NoError(t, err)
	require.NoDirExists(t, killed)
	require.DirExists(t, other)
	second, err := newScratch(parent)
	require.NoError(t, err)
	require.DirExists(t, first.dir)
	require.NotEqual(t, first.dir, second.dir)
	require.NoError(t, first.close())
	require.NoDirExists(t, first.dir)
	require.NoError(t, second.close())
}
