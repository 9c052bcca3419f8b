package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/carom-dpr/carom/loadinfo"
)

// handler answers at the address of -listen.
func (r *router) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r.metrics.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", r.serveHealth)
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, newStatus(r.node.Status(), time.Now()))
	})
	mux.HandleFunc("GET /flows", r.serveFlows)
	mux.HandleFunc("POST /drain", r.fromHere(r.node.Drain))
	mux.HandleFunc("POST /undrain", r.fromHere(r.node.Undrain))
	return http.NewCrossOriginProtection().Handler(mux) // a browser on this host drains nothing
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) // the only error is that the client has gone
}

// serveHealth says in words how the router is.
func (r *router) serveHealth(w http.ResponseWriter, _ *http.Request) {
	if err := r.health(); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	s := r.node.Status()
	fmt.Fprintln(w, s.State)
	for name, service := range s.Services {
		if !service.Healthy {
			fmt.Fprintf(w, "service %s: no server listens\n", name)
		}
	}
}

// fromHere has POST requests from this host itself do something.
func (r *router) fromHere(do func()) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		local, _ := req.Context().Value(http.LocalAddrContextKey).(net.Addr)
		if local == nil || !isLoopback(local.String()) || !isLoopback(req.RemoteAddr) {
			http.Error(w, "only from this host itself, by its loopback address", http.StatusForbidden)
			return
		}
		do()
		state := r.node.State()
		r.log.Info("state changed by request", "state", state)
		fmt.Fprintln(w, state)
	}
}

func isLoopback(addr string) bool {
	a, err := netip.ParseAddrPort(addr)
	return err == nil && a.Addr().Unmap().IsLoopback()
}

// A flow is an entry of the connection table, as /flows gives it.
type flow struct {
	Service string         `json:"service"`
	Client  netip.AddrPort `json:"client"`
	Dialled netip.AddrPort `json:"dialled"`
	State   string         `json:"state"`
	Peer    string         `json:"peer,omitempty"`  // that serves it; none: this host
	Lost    bool           `json:"lost,omitempty"`  // that host is gone, and the next packet is answered with a reset
	Source  netip.AddrPort `json:"source,omitzero"` // its ends on the way to a plain server
	Server  netip.AddrPort `json:"server,omitzero"`
	Idle    float64        `json:"idle_seconds"`
}

// serveFlows writes the connection table as it goes through it, a line for each.
func (r *router) serveFlows(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	enc := json.NewEncoder(w)
	for f := range r.node.Engine().Flows(time.Now()) {
		if enc.Encode(flow{f.Service, f.Client, f.Dialled, f.State.String(), f.Peer, f.Lost, f.Source, f.Server, f.Idle.Seconds()}) != nil {
			return // the client has gone
		}
	}
}

// states are those that a host can be in.
var states = []loadinfo.State{loadinfo.Up, loadinfo.Joining, loadinfo.Draining, loadinfo.Stale, loadinfo.Down}
