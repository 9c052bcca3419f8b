//go:build linux && !race

package flowtable

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// resident returns the memory of this process that is real, in bytes.
func resident(t *testing.T) int {
	b, err := os.ReadFile("/proc/self/statm")
	require.NoError(t, err)
	pages, err := strconv.Atoi(strings.Fields(string(b))[1])
	require.NoError(t, err)
	return pages * os.Getpagesize()
}

func heap() int {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

func TestMemoryOfTenMillionFlows(t *testing.T) {
	if testing.Short() {
		t.Skip("fills 650 MiB")
	}
	const flows, mib = 10_000_000, 1 << 20
	runtime.GC()
	before, heapBefore := resident(t), heap()
	tab := newTable(t, Config{MaxFlows: flows, Shards: 4})
	require.Less(t, resident(t)-before, 64*mib, "an empty table is nearly free")
	for n := range flows {
		require.True(t, insert(tab, key(n), 0, 0))
	}
	used := resident(t) - before
	t.Logf("%d MiB, %.1f bytes per flow", used/mib, float64(used)/flows)
	require.Less(t, used, 800*mib)
	require.LessOrEqual(t, heap()-heapBefore, mib, "the collector does not see it")
	require.NoError(t, tab.Close())
	require.Less(t, resident(t)-before, 64*mib, "Close gives it back")
}

// TestBytesPerFlow looks at sizes that are as bad as can be for powers of two.
func TestBytesPerFlow(t *testing.T) {
	for _, flows := range []int{1 << 20, 1<<20*141/100 + 1, 1<<20*142/100 + 1, 1<<21 - 1} {
		for _, shards := range []int{1, 4, 16} {
			slots, buckets := geometry(flows, shards)
			require.LessOrEqual(t, float64(shards*(slots*entrySize+buckets*bucketSize))/float64(flows), 72.0,
				"%d flows in %d shards", flows, shards)
		}
	}
}
