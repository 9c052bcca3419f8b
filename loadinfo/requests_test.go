package loadinfo

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRequests(t *testing.T) {
	q := new(Requests)
	require.Zero(t, q.Latency(), "unknown")
	run := func(n int, took time.Duration) {
		var list []*Request
		for range n {
			list = append(list, q.Begin(at(0)))
		}
		require.Equal(t, uint32(n), q.InFlight())
		for _, r := range list {
			r.End(at(took))
		}
	}
	for range 20 {
		run(1, 10*time.Millisecond)
	}
	run(40, 400*time.Millisecond)
	require.Zero(t, q.InFlight())
	require.Equal(t, 10*time.Millisecond, q.Latency(), "alone it would be fast")
	for range 39 {
		q.Begin(at(0))
	}
	require.Equal(t, 400*time.Millisecond, q.Latency(), "one of forty would not")
}

func TestA54RequestsEndOnce(t *testing.T) {
	q := new(Requests)
	r, other := q.Begin(at(0)), q.Begin(at(0))
	for range 3 {
		r.End(at(-time.Second))
	}
	require.Equal(t, uint32(1), q.InFlight())
	require.Equal(t, time.Duration(1), q.Latency(), "a clock that goes back makes no negative latency")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { other.End(at(0)); q.Latency() })
	}
	wg.Wait()
	require.Zero(t, q.InFlight())
}

func TestA54CountsAreNeverNegative(t *testing.T) {
	b := withSelf(t, BoardConfig{}, serving)
	count := b.Counter("www")
	for _, by := range []int32{-1, 1, -1, -1, 1, 1} { // ends that come first and twice
		count.Add(by)
		r, _ := b.Report(at(0))
		require.Equal(t, uint32(max(count.Load(), 0)), r.Services[0].Conns)
		s := b.Snapshot("www", at(0))
		require.Equal(t, int64(max(count.Load(), 0)), s.Hosts[0].Estimate())
	}
	require.Zero(t, count.Load())
}

func TestRequestsReachPeers(t *testing.T) {
	self := serving
	q := new(Requests)
	self.Services = []OwnService{{Name: "www", Requests: q}}
	b := withSelf(t, BoardConfig{}, self)
	q.Begin(at(0)).End(at(1500 * time.Microsecond))
	q.Begin(at(0))
	own, _ := b.Report(at(time.Second))
	heard, err := ParseReport(encode(t, own, nil), nil)
	require.NoError(t, err)
	peer := NewBoard(BoardConfig{})
	require.NoError(t, peer.Receive(heard, at(0)))
	h := peer.Snapshot("www", at(time.Second)).Hosts[0]
	require.Equal(t, uint32(1), h.InFlight)
	require.Equal(t, 1500*time.Microsecond, h.Latency)
	require.Equal(t, time.Millisecond+time.Second, h.Since)
	h = b.Snapshot("www", at(time.Second)).Hosts[0]
	require.Equal(t, uint32(1), h.InFlight)
	require.Equal(t, 1500*time.Microsecond, h.Latency)
	require.Equal(t, time.Duration(1), h.Since, "it was not asked before")
}

func BenchmarkRequest(b *testing.B) {
	q := new(Requests)
	for b.Loop() {
		q.Begin(start).End(start)
	}
}
