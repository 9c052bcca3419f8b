package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// dialer opens a connection from a client.
type dialer func(ctx context.Context, to netip.AddrPort) (net.Conn, error)

// A load sends requests, one connection each, to the targets in turn.
type load struct {
	dial        dialer
	targets     []netip.AddrPort
	requests    int
	concurrency int
	finder      *finder // where a request goes; nil: to the targets in turn

	next    atomic.Int64
	done    atomic.Int64
	failed  atomic.Int64
	dialled []atomic.Int64 // by target

	mu        sync.Mutex
	latencies []time.Duration
	firstErr  error
}

// requestTimeout is far above any latency that a working cluster shows, so that a
// request that hangs is told from one that is slow.
const requestTimeout = 30 * time.Second

// prepare makes room for the counts; call it before anything else.
func (l *load) prepare() { l.dialled = make([]atomic.Int64, len(l.targets)) }

// run sends all requests and returns when the last has its answer or ctx is done.
func (l *load) run(ctx context.Context) {
	var wg sync.WaitGroup
	for range min(l.concurrency, l.requests) {
		wg.Go(func() { l.worker(ctx) })
	}
	wg.Wait()
}

func (l *load) worker(ctx context.Context) {
	for ctx.Err() == nil {
		n := l.next.Add(1) - 1
		if n >= int64(l.requests) {
			return
		}
		target, err := int(n)%len(l.targets), error(nil)
		start := time.Now()
		if l.finder != nil {
			target, err = l.finder.find(ctx, l.targets)
		}
		if err == nil {
			l.dialled[target].Add(1)
			err = l.request(ctx, l.targets[target])
		}
		l.record(time.Since(start), err)
	}
}

func (l *load) record(took time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.latencies = append(l.latencies, took)
	if err != nil {
		l.failed.Add(1)
		if l.firstErr == nil {
			l.firstErr = err
		}
	}
	l.done.Add(1)
}

func (l *load) request(ctx context.Context, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	conn, err := l.dial(ctx, to)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	deadline, _ := ctx.Deadline()
	conn.SetDeadline(deadline)
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", to); err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s", to, resp.Status)
	}
	return nil
}

// clientDone is how far a client is.
type clientDone struct {
	Done, Failed, WrongSource int
	Dialled                   []int
	FirstError                string          `json:",omitempty"`
	Latencies                 []time.Duration `json:",omitempty"` // at the end
}

// state returns how far the load is.
func (l *load) state(wrong int) *clientDone {
	s := &clientDone{Done: int(l.done.Load()), Failed: int(l.failed.Load()), WrongSource: wrong}
	for i := range l.dialled {
		s.Dialled = append(s.Dialled, int(l.dialled[i].Load()))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.firstErr != nil {
		s.FirstError = l.firstErr.Error()
	}
	return s
}

// took returns how long each request took that has ended.
func (l *load) took() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.latencies)
}

// A web is the built-in web server: it takes its time and counts what it served.
type web struct {
	serviceTime time.Duration
	served      atomic.Int64
}

func (w *web) ServeHTTP(rw http.ResponseWriter, _ *http.Request) {
	time.Sleep(w.serviceTime)
	w.served.Add(1)
	io.WriteString(rw, "served\n")
}
