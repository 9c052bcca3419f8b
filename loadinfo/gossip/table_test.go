package gossip

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/loadinfo"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func filled(hosts, length int) *table {
	t := newTable()
	for i := range hosts {
		t.put(&loadinfo.Report{ID: fmt.Sprint(i), Boot: 1}, make([]byte, length), start.Add(time.Duration(i)), false)
	}
	return t
}

// A69: whatever news of members leaves, reports have their half of a datagram, and
// take turns: a thousand of 40 bytes are through in a thousand over those that fit.
func TestA69ReportsHaveTheirShare(t *testing.T) {
	const hosts, length, reserved, overhead = 1000, 40, defaultMaxDatagram / 2, 3
	table := filled(hosts, length)
	perDatagram := reserved / (length + maxAge + overhead)
	seen := map[string]int{}
	for range (hosts + perDatagram - 1) / perDatagram {
		msgs := table.take(start, overhead, reserved, 16)
		bytes := 0
		for _, m := range msgs {
			bytes += len(m) + overhead
		}
		require.LessOrEqual(t, bytes, reserved)
		require.GreaterOrEqual(t, len(msgs), min(perDatagram, hosts-len(seen)))
		for id, e := range table.hosts {
			if e.sent > 0 {
				seen[id] = e.sent
			}
		}
	}
	require.Len(t, seen, hosts)
	for _, n := range seen {
		require.LessOrEqual(t, n, 2, "in turn")
	}
}

func TestTableOrder(t *testing.T) {
	table := filled(3, 10)
	room := 10 + maxAge
	table.put(&loadinfo.Report{ID: "large"}, make([]byte, 500), start.Add(time.Hour), false)
	taken := func() (id string) {
		before := map[string]int{}
		for id, e := range table.hosts {
			before[id] = e.sent
		}
		require.Len(t, table.take(start, 0, room, 2), 1)
		for i, e := range table.hosts {
			if e.sent > before[i] {
				id = i
			}
		}
		return id
	}
	require.Equal(t, "2", taken(), "the youngest that fits")
	require.Equal(t, "1", taken())
	table.put(&loadinfo.Report{ID: "1"}, make([]byte, 10), start.Add(-1), false)
	require.Equal(t, "0", taken())
	require.Equal(t, "1", taken(), "a new version is news")
	require.Equal(t, "2", taken())
	require.Equal(t, "0", taken())
	require.Equal(t, "1", taken())
	require.Empty(t, table.take(start, 0, room, 2), "all have been sent twice")
}

// That a host drains goes first and more often: it may be its last word.
func TestTableLastWord(t *testing.T) {
	table, sent := filled(3, 10), []string(nil)
	table.put(&loadinfo.Report{ID: "1", State: loadinfo.Draining}, []byte("last word "), start, false)
	for range 3*2 + lastWord {
		msgs := table.take(start, 0, 10+maxAge, 2)
		require.Len(t, msgs, 1)
		sent = append(sent, string(msgs[0][len(msgs[0])-10:]))
	}
	for i := range lastWord {
		require.Equal(t, "last word ", sent[i])
	}
	require.Equal(t, 2, strings.Count(strings.Join(sent[lastWord:], ""), "last word "))
	require.Empty(t, table.take(start, 0, 10+maxAge, 2))
}

func TestA69NothingIsKept(t *testing.T) {
	table, now := newTable(), start
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range 100_000 {
		r := loadinfo.Report{ID: fmt.Sprint("u", i), Boot: uint64(i)}
		table.put(&r, make([]byte, 60), now, false)
		if i%1000 == 0 { // exchanges of all that there is come all the time
			now = now.Add(time.Second)
			table.all(now, nil)
		}
		require.LessOrEqual(t, len(table.hosts), 12_000)
	}
	require.Empty(t, table.all(now.Add(time.Minute), nil))
	hosts, length := table.size()
	require.Zero(t, hosts)
	require.Zero(t, length)
	require.Empty(t, table.heap)
	runtime.GC()
	runtime.ReadMemStats(&after)
	require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(8<<20))
	runtime.KeepAlive(table)

	var l lost
	for i := range 10_000 {
		l.add(addrOf(i), "x")
	}
	require.Len(t, l.addrs, maxLost)
}

func BenchmarkTake(b *testing.B) {
	for _, n := range []int{10, 1000, 10_000} {
		b.Run(fmt.Sprint("n=", n), func(b *testing.B) {
			table := filled(n, 60)
			for i := 0; b.Loop(); i++ {
				table.take(start, 3, 1350, 1<<30)
			}
		})
	}
}

// A report is known by what it says until another of its host comes, or it is too old
// to be sent on; this host's own is for the board to judge.
func TestTableHas(t *testing.T) {
	table, first, second, own := newTable(), []byte("first"), []byte("second"), []byte("own")
	table.put(&loadinfo.Report{ID: "1"}, first, start, false)
	table.put(&loadinfo.Report{ID: "2"}, own, start, true)
	require.True(t, table.has(first))
	require.False(t, table.has(second))
	require.False(t, table.has(own))
	table.put(&loadinfo.Report{ID: "1"}, second, start, false)
	require.False(t, table.has(first))
	require.True(t, table.has(second))
	table.all(start.Add(time.Hour), nil)
	require.False(t, table.has(second))
	require.Empty(t, table.heard)
	table.put(&loadinfo.Report{ID: "1"}, first, start, false)
	table.take(start.Add(time.Hour), 0, 1000, 1)
	require.Empty(t, table.heard)
}

// Reports that do not fit beside the news of a storm wait until it is over, and nobody
// else's do.
func TestA69LargeReportsDelayThemselves(t *testing.T) {
	table := filled(100, 60)
	for i := range 20 {
		table.put(&loadinfo.Report{ID: string(rune('a' + i))}, make([]byte, 1000), start.Add(time.Second), false)
	}
	sent := 0
	for range 100 {
		sent += len(table.take(start.Add(time.Second), 3, defaultMaxDatagram/2, 8))
	}
	require.Equal(t, 100*8, sent, "all that fit, as often as any report")
	require.Len(t, table.take(start.Add(time.Second), 3, defaultMaxDatagram, 8), 1, "and then the large ones")
}
