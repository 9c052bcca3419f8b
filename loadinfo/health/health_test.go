package health

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/loadinfo"
)

func TestVerdict(t *testing.T) {
	for _, tt := range []struct {
		name, results, want string // . no change, U up, D down
	}{
		{"the first is a verdict", "1", "U"},
		{"the first is one, for worse", "0", "D"},
		{"three failures in a row", "1000", "U..D"},
		{"two are none", "1001001", "U......"},
		{"two successes in a row", "011", "D.U"},
		{"one is none", "0101011", "D.....U"},
		{"back and forth", "1000" + "11" + "000", "U..D.U..D"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v, got := verdict{fall: 3, rise: 2}, ""
			for _, r := range tt.results {
				switch changed := v.add(r == '1'); {
				case !changed:
					got += "."
				case v.healthy:
					got += "U"
				default:
					got += "D"
				}
			}
			require.Equal(t, tt.want, got)
		})
	}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestChecker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		board := loadinfo.NewBoard(loadinfo.BoardConfig{})
		require.NoError(t, board.SetSelf(loadinfo.Self{ID: "a", Services: []loadinfo.OwnService{{Name: "www", Unhealthy: true}}}))
		healthy := func() bool {
			s := board.Snapshot("www", time.Now())
			return s.Hosts[0].Eligible()
		}
		var down, hang atomic.Bool
		var mu sync.Mutex
		var times []time.Time
		c := Checker{Report: board.SetHealthy, Logger: quiet(), Services: []Service{{Name: "www", Check: func(ctx context.Context) error {
			mu.Lock()
			times = append(times, time.Now())
			mu.Unlock()
			if hang.Load() {
				<-ctx.Done()
			}
			if down.Load() {
				return errors.New("refused")
			}
			return nil
		}}}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		synctest.Wait()
		require.True(t, healthy(), "at once")
		change := func(f *atomic.Bool, to bool, least, most time.Duration) {
			was, begin := healthy(), time.Now()
			f.Store(to)
			for healthy() == was {
				<-time.After(10 * time.Millisecond)
				require.Less(t, time.Since(begin), most)
			}
			require.Greater(t, time.Since(begin), least)
		}
		change(&down, true, 1800*time.Millisecond, 3400*time.Millisecond)
		change(&down, false, 900*time.Millisecond, 2300*time.Millisecond)
		change(&hang, true, 2*time.Second, 5*time.Second)
		change(&hang, false, time.Second, 4*time.Second)
		<-time.After(time.Minute)
		cancel()
		require.NoError(t, <-done)
		least, most := time.Hour, time.Duration(0)
		for i := len(times) - 50; i < len(times); i++ {
			gap := times[i].Sub(times[i-1])
			least, most = min(least, gap), max(most, gap)
		}
		require.GreaterOrEqual(t, least, 900*time.Millisecond)
		require.LessOrEqual(t, most, 1100*time.Millisecond)
		require.Greater(t, most-least, 50*time.Millisecond, "hosts do not fall into step")
	})
}

func TestNothingToCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		c := Checker{Report: func(string, bool) {}}
		require.NoError(t, c.Run(ctx))
		require.Error(t, ctx.Err(), "not before")
	})
}

func TestBrokenOffCheckIsNoVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Checker{Logger: quiet(), Report: func(string, bool) { t.Error("a verdict") }, Services: []Service{{
			Name: "www", Check: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		}}}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		require.NoError(t, c.Run(ctx))
	})
}

func TestTCP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	check := TCP(l.Addr().String())
	require.NoError(t, check(t.Context()))
	require.NoError(t, check(t.Context()))
	l.Close()
	require.Error(t, check(t.Context()))
}

func TestHTTP(t *testing.T) {
	var conns atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/moved":
			http.Redirect(w, r, "/broken", http.StatusFound)
		case "/broken":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/endless":
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		}
	}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	for path, want := range map[string]string{"/": "", "/moved": "", "/broken": "status 503", "/endless": ""} {
		before := conns.Load()
		err := HTTP(server.URL + path)(t.Context())
		require.Equal(t, before+1, conns.Load(), "a connection of its own")
		if want == "" {
			require.NoError(t, err, path)
		} else {
			require.ErrorContains(t, err, want)
		}
	}
	require.Error(t, HTTP("http://127.0.0.1:1/")(t.Context()))
	require.Error(t, HTTP(":")(t.Context()))
	done, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, HTTP(server.URL)(done), context.Canceled)
}

func TestErrors(t *testing.T) {
	check := func(context.Context) error { return nil }
	report := func(string, bool) {}
	for want, c := range map[string]Checker{
		"Report is nil":                     {},
		"without a Name":                    {Report: report, Services: []Service{{Check: check}}},
		`"www" is there twice`:              {Report: report, Services: []Service{{Name: "www", Check: check}, {Name: "www", Check: check}}},
		`Check of service "www" is nil`:     {Report: report, Services: []Service{{Name: "www"}}},
		`Timeout 2s of service "www" is ab`: {Report: report, Services: []Service{{Name: "www", Check: check, Timeout: 2 * time.Second}}},
	} {
		err := c.Run(t.Context())
		require.ErrorContains(t, err, want)
		require.True(t, strings.HasPrefix(err.Error(), "health: "))
	}
}
