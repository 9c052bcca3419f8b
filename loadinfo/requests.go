package loadinfo

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Requests measures the requests of one service that a server of this process
// works on: how many are in flight, and how long they take. It is one of the
// meters whose numbers go into reports; see OwnService. Its zero value is ready
// for use, and all methods may be called by several goroutines.
//
// The latency is that of Prequal (Wydrowski and others, NSDI 2024, section 4.1): a
// median of late, and not of all requests but of those that came when about as
// many were in flight as are now, since it is to tell how long the next one will
// take.
type Requests struct {
	inFlight atomic.Int32

	mu   sync.Mutex
	ring [requestSamples]requestSample
	next int // where in the ring
	have int // how many of it are set
}

// Of the last requestSamples requests the nearestSamples that came under the most
// similar load count. Few make a nervous median, many an old one.
const (
	requestSamples = 64
	nearestSamples = 15
)

type requestSample struct {
	inFlight int32 // when the request came, itself included
	took     time.Duration
}

// A Request is one request that is being worked on.
type Request struct {
	of       *Requests
	began    time.Time
	inFlight int32
	ended    atomic.Bool
}

// Begin notes that the work on a request begins, at now.
func (q *Requests) Begin(now time.Time) *Request {
	return &Request{of: q, began: now, inFlight: q.inFlight.Add(1)}
}

// End notes that the work ended, at now. The second call and later ones do nothing.
func (r *Request) End(now time.Time) {
	if r.ended.Swap(true) {
		return
	}
	q := r.of
	q.inFlight.Add(-1)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ring[q.next] = requestSample{r.inFlight, age(r.began, now)}
	q.next = (q.next + 1) % requestSamples
	q.have = min(q.have+1, requestSamples)
}

// InFlight returns the number of requests that have begun and not ended.
func (q *Requests) InFlight() uint32 { return uint32(max(q.inFlight.Load(), 0)) }

// Latency returns the median time that requests took of late, with about as many
// in flight as now. 0 means that none has ended yet.
func (q *Requests) Latency() time.Duration {
	q.mu.Lock()
	samples := slices.Clone(q.ring[:q.have])
	q.mu.Unlock()
	if len(samples) == 0 {
		return 0
	}
	now := q.inFlight.Load() + 1 // as the next one would find it
	distance := func(s requestSample) int32 { return max(s.inFlight, now) - min(s.inFlight, now) }
	slices.SortFunc(samples, func(a, b requestSample) int { return int(distance(a) - distance(b)) })
	samples = samples[:min(len(samples), nearestSamples)]
	slices.SortFunc(samples, func(a, b requestSample) int { return int(a.took - b.took) })
	return max(samples[len(samples)/2].took, 1) // 0 would mean unknown
}
