package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/carom-dpr/carom/dpr/node"
	"github.com/carom-dpr/carom/loadinfo/resource"
)

// A router is the running program.
type router struct {
	config  string
	log     *slog.Logger
	opened  *settings // those that the router was started with
	node    *node.Node
	dns     *nameServer
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
		return listenError(o.listen, err)
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

// listenError is an error of listening at the address of -listen.
func listenError(at netip.AddrPort, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("-listen %v: %w: another process has it: if that is a router, wait until it has ended; or choose another address or port",
			at, syscall.EADDRINUSE)
	}
	return fmt.Errorf("-listen %v: %w: choose another address or port", at, err)
}

// An opener makes a node, as node.Open does.
type opener func(node.Config) (*node.Node, error)

// newRouter returns a router whose node is open, or an error that leaves nothing open.
func newRouter(o options, open opener, log *slog.Logger) (*router, error) {
	s, err := readSettings(o.config)
	if err != nil {
		return nil, err
	}
	s.warn(log)
	r := &router{config: o.config, log: log, opened: s, metrics: newMetrics()}
	s.Logger, s.Resources = log, resources()
	r.policies = s.keep(nil, r.metrics.decisions)
	if r.dns, err = s.openDNS(); err != nil {
		return nil, err
	}
	if r.node, err = open(s.Config); err != nil {
		return nil, errors.Join(s.locate(err), r.dns.close())
	}
	if err := r.dns.follow(r.node.Board()); err != nil {
		return nil, err // it was validated
	}
	r.metrics.reloaded(nil)
	r.metrics.follow(r.node, r.dns)
	return r, nil
}

// resources are what peers hear of this machine beside its connections. What its
// network could carry a virtual one does not say.
func resources() *resource.Registry {
	r := resource.NewRegistry()
	for name, meter := range map[string]resource.Meter{
		resource.CPU: resource.CPUs(), resource.Memory: resource.UsedMemory(), resource.Disk: resource.BusyDisk(""),
	} {
		_ = r.Add(resource.Resource{Name: name, Meter: meter, Model: &resource.EWMA{}}) // the names are known
	}
	return r
}

// run returns when the node has ended, because ctx is done or by an error, and all
// else with it.
func (r *router) run(ctx context.Context, ln net.Listener, reload <-chan os.Signal) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	server := &http.Server{Handler: r.handler(), ReadHeaderTimeout: shutdownTime}
	var others sync.WaitGroup
	others.Go(func() { _ = server.Serve(ln) }) // ends by Shutdown
	others.Go(func() { r.reloadOn(ctx, reload) })
	others.Go(func() {
		if err := r.dns.run(ctx); err != nil {
			cancel(err)
		}
	})
	err := r.node.Run(ctx)
	if cause := context.Cause(ctx); ctx.Err() != nil && !errors.Is(cause, context.Canceled) {
		err = errors.Join(cause, err)
	}
	r.ended.Store(&err)
	cancel(nil)
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
	s.warn(r.log)
	if err := s.sameDNS(r.opened); err != nil {
		return err
	}
	policies := s.keep(r.policies, r.metrics.decisions)
	if err := r.node.Reconfigure(s.Config); err != nil {
		return s.locate(err)
	}
	r.policies = policies
	if r.opened.gossip == nil {
		return nil
	}
	return r.opened.gossip.SetSeeds(s.seeds)
}

// health returns nil while the router works.
func (r *router) health() error {
	if err := r.ended.Load(); err != nil {
		return errors.Join(errors.New("the router has ended"), *err)
	}
	if gone := r.node.Status().Capture.Missing; len(gone) > 0 {
		return fmt.Errorf("nothing is captured on %s until there is an interface of that name again", strings.Join(gone, ", "))
	}
	return nil
}
