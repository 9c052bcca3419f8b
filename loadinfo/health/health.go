// Package health asks a host's own servers whether they answer.
//
// Each host checks its own services and reports the result; peers send no new
// connections to a service that its host reports as unhealthy. A [Checker] runs one
// check of each service time and again, and changes its verdict only after several
// results in a row, so that one lost packet is no verdict and one lucky answer no
// recovery:
//
//	c := health.Checker{Services: []health.Service{
//		{Name: "www", Check: health.HTTP("http://127.0.0.1:80/healthz")},
//		{Name: "db", Check: health.TCP("127.0.0.1:5432")},
//	}, Report: board.SetHealthy}
//	err := c.Run(ctx)
package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"
)

// A Check asks a server whether it answers. It returns nil if so, before the context
// is done, and can be called again when it has returned.
type Check func(ctx context.Context) error

// TCP returns a check that connects to an address, such as 127.0.0.1:80, and hangs up.
func TCP(addr string) Check {
	return func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// maxBody is how much of an answer is read, in bytes, so that a connection that is
// kept can be used again.
const maxBody = 64 << 10

// HTTP returns a check that gets a URL, on a connection of its own each time, since
// the next client has none either. A status from 200 to 399 is an answer; redirects
// are not followed.
func HTTP(url string) Check {
	client := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		req.Header.Set("User-Agent", "carom-health")
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, maxBody)); err != nil {
			return err
		}
		if resp.StatusCode < 200 || resp.StatusCode > 399 {
			return fmt.Errorf("status %s", resp.Status)
		}
		return nil
	}
}

// A Service is one that is checked. Zero fields take the defaults that they state.
type Service struct {
	// Name is the service's name. Required.
	Name string
	// Check asks its server. Required.
	Check Check
	// Period is the time between two checks, give or take a tenth; 0 means 1 s.
	Period time.Duration
	// Timeout is the time for an answer; 0 means half the period.
	Timeout time.Duration
	// Fall is how many checks in a row fail before the service is unhealthy, and Rise
	// how many succeed before it is healthy again; 0 means 3 and 2. The first check of
	// all is a verdict at once.
	Fall, Rise int
}

const (
	defaultPeriod = time.Second
	defaultFall   = 3
	defaultRise   = 2
)

// A Checker checks services. Its fields are not changed once Run has been called.
type Checker struct {
	// Services lists what to check.
	Services []Service
	// Report takes each verdict that is new: the first, and each change. It is called
	// by several goroutines, for one service by one at a time. (*loadinfo.Board).
	// SetHealthy is one. Required.
	Report func(service string, healthy bool)
	// Logger hears of each change and its reason; nil means slog.Default.
	Logger *slog.Logger
}

// Run checks until the context is done, and returns nil then, also where there is nothing
// to check, or at once an error that names a field that is wrong. No goroutine outlives
// it.
func (c *Checker) Run(ctx context.Context) error {
	services, err := c.complete()
	if err != nil {
		return err
	}
	var watching sync.WaitGroup
	for _, s := range services {
		watching.Go(func() { c.watch(ctx, s) })
	}
	<-ctx.Done()
	watching.Wait()
	return nil
}

// complete returns the services with their defaults.
func (c *Checker) complete() ([]Service, error) {
	if c.Report == nil {
		return nil, errors.New("health: Checker.Report is nil: want a function such as a board's SetHealthy")
	}
	names := map[string]bool{}
	var list []Service
	for _, s := range c.Services {
		orElse(&s.Period, defaultPeriod)
		orElse(&s.Timeout, s.Period/2)
		orElse(&s.Fall, defaultFall)
		orElse(&s.Rise, defaultRise)
		switch {
		case s.Name == "":
			return nil, errors.New("health: Checker.Services: a service without a Name")
		case names[s.Name]:
			return nil, fmt.Errorf("health: Checker.Services: %q is there twice", s.Name)
		case s.Check == nil:
			return nil, fmt.Errorf("health: Check of service %q is nil", s.Name)
		case s.Timeout > s.Period:
			return nil, fmt.Errorf("health: Timeout %v of service %q is above its Period %v", s.Timeout, s.Name, s.Period)
		}
		names[s.Name] = true
		list = append(list, s)
	}
	return list, nil
}

func orElse[T ~int | ~int64](field *T, def T) {
	if *field <= 0 {
		*field = def
	}
}

// watch checks one service.
func (c *Checker) watch(ctx context.Context, s Service) {
	logger := c.Logger
	if logger == nil {
		logger = slog.Default()
	}
	v := verdict{fall: s.Fall, rise: s.Rise}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		err := s.run(ctx)
		if ctx.Err() != nil {
			return // the check was broken off
		}
		if v.add(err == nil) {
			c.Report(s.Name, v.healthy)
			if v.healthy {
				logger.Info("the server answers", "service", s.Name)
			} else {
				logger.Warn("the server does not answer", "service", s.Name, "err", err)
			}
		}
		timer.Reset(s.Period - s.Period/10 + rand.N(s.Period/5+1))
	}
}

// run makes one check, within its time.
func (s *Service) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	if err := s.Check(ctx); err != nil {
		return err
	}
	return ctx.Err() // an answer that came too late is none
}

// verdict is what results in a row amount to.
type verdict struct {
	fall, rise int
	some       bool // there is one
	healthy    bool
	against    int // results in a row that speak against it
}

// add takes a result and reports whether the verdict is new.
func (v *verdict) add(ok bool) (changed bool) {
	if !v.some {
		v.some, v.healthy = true, ok
		return true
	}
	if ok == v.healthy {
		v.against = 0
		return false
	}
	v.against++
	if needed := map[bool]int{true: v.rise, false: v.fall}[ok]; v.against < needed {
		return false
	}
	v.healthy, v.against = ok, 0
	return true
}
