package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carom-dpr/carom/dpr/node"
)

// A router is the running program.
type router struct {
	config  string
	log     *slog.Logger
	node    *node.Node
	metrics *metrics
	ended   atomic.Pointer[error] // why the node has ended; nil while it runs

	reloading sync.Mutex
	policies  map[string]keptPolicy
}

// shutdownTime is how long requests for status may take to end.
const shutdownTime = time.Second

// serve runs a router until ctx is done. open makes the node.
func serve(ctx context.Context, o options, open opener, reload <-chan os.Signal, errs io.Writer) error {
	ln, err := net.Listen("tcp", o.listen.String())
	if err != nil {
		return fmt.Errorf("-listen %v: %w: choose another address or port", o.listen, err)
	}
	defer ln.Close()
	r, err := newRouter(o, open, o.logger(errs))
	if err != nil {
		return err
	}
	r.log.Info("router runs", "id", r.node.Status().ID, "http", ln.Addr())
	err = r.run(ctx, ln, reload)
	if err != nil {
		return err // which main tells
	}
	r.log.Info("router has ended")
	return nil
}

// An opener makes a node, as node.Open does.
type opener func(node.Config) (*node.Node, error)

// newRouter returns a router whose node is open, or an error that leaves nothing open.
func newRouter(o options, open opener, log *slog.Logger) (*router, error) {
	s, err := readSettings(o.config)
	if err != nil {
		return nil, err
	}
	r := &router{config: o.config, log: log, metrics: newMetrics()}
	s.Logger = log
	r.policies = s.keep(nil, r.metrics.decisions)
	if r.node, err = open(s.Config); err != nil {
		return nil, s.locate(err)
	}
	r.metrics.reloaded(nil)
	r.metrics.follow(r.node)
	return r, nil
}

// run returns when the node has ended, because ctx is done or by an error, and all
// else with it.
func (r *router) run(ctx context.Context, ln net.Listener, reload <-chan os.Signal) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := &http.Server{Handler: r.handler(), ReadHeaderTimeout: shutdownTime}
	var others sync.WaitGroup
	others.Go(func() { _ = server.Serve(ln) }) // ends by Shutdown
	others.Go(func() { r.reloadOn(ctx, reload) })
	err := r.node.Run(ctx)
	r.ended.Store(&err)
	cancel()
	quick, done := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
	defer done()
	if server.Shutdown(quick) != nil {
		server.Close()
	}
	others.Wait()
	return err
}

// reloadOn reads the configuration again at each signal until ctx is done.
func (r *router) reloadOn(ctx context.Context, signals <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
		}
		if err := r.reload(); err != nil {
			r.log.Error("configuration not changed", "file", r.config, "err", err)
			continue
		}
		r.log.Info("configuration changed", "file", r.config)
	}
}

// reload applies the configuration file. On an error the old configuration stays in
// force.
func (r *router) reload() (err error) {
	r.reloading.Lock()
	defer r.reloading.Unlock()
	defer func() { r.metrics.reloaded(err) }()
	s, err := readSettings(r.config)
	if err != nil {
		return err
	}
	policies := s.keep(r.policies, r.metrics.decisions)
	if err := r.node.Reconfigure(s.Config); err != nil {
		return s.locate(err)
	}
	r.policies = policies
	return nil
}

// health returns nil while the router works.
func (r *router) health() error {
	if err := r.ended.Load(); err != nil {
		return errors.Join(errors.New("the router has ended"), *err)
	}
	return nil
}
