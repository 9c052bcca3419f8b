package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/node"
	"github.com/carom-dpr/carom/lb"
	"github.com/carom-dpr/carom/loadinfo"
	"github.com/carom-dpr/carom/loadinfo/gossip"
	"github.com/carom-dpr/carom/loadinfo/rrdns"
)

// routerRole is a host's router.
type routerRole struct {
	ID     string
	Addr   netip.Addr
	Peers  []netip.AddrPort
	Policy string
	Secret []byte
	Gossip bool // instead of broadcast
	Reply  dpr.ReplyMode
	DNS    bool // a name server, too
}

// serverRole is a host's web server, on all addresses or on a Unix socket.
type serverRole struct {
	Network, Address string
	ServiceTime      time.Duration
}

// clientRole sends requests.
type clientRole struct {
	Targets     []netip.AddrPort
	Requests    int
	Concurrency int
	DNS         []netip.AddrPort // the name servers; none: targets are dialled in turn
}

// A printer prints messages, one at a time.
type printer struct {
	mu  sync.Mutex
	enc *json.Encoder
}

func (p *printer) print(m message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.enc.Encode(m) // the parent is gone if this fails, and this process soon, too
}

// every prints what report returns until ctx is done, and once more then.
func (p *printer) every(ctx context.Context, report func() message) {
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.print(report())
		case <-ctx.Done():
			p.print(report())
			return
		}
	}
}

// play is the main function of a child process.
func play(ctx context.Context, spec string) int {
	var r role
	if err := json.Unmarshal([]byte(spec), &r); err != nil {
		fmt.Fprintf(os.Stderr, "cluster: %s: %v\n", roleVariable, err)
		return 2
	}
	p := &printer{enc: json.NewEncoder(os.Stdout)}
	var err error
	switch {
	case r.Router != nil:
		err = r.Router.play(ctx, p)
	case r.Server != nil:
		err = r.Server.play(ctx, p)
	case r.Client != nil:
		err = r.Client.play(ctx, p)
	}
	if err != nil {
		p.print(message{Err: err.Error()})
		return 1
	}
	return 0
}

func (r *routerRole) play(ctx context.Context, p *printer) error {
	policy, err := lb.Parse(r.Policy)
	if err != nil {
		return err
	}
	cfg := node.Config{
		ID:       r.ID,
		Addr:     r.Addr,
		Services: []node.Service{{Name: serviceName, Port: servicePort, Policy: policy, Reply: r.Reply}},
		Report:   r.Peers,
		Keys:     []loadinfo.Key{{ID: 1, Secret: r.Secret}},
		Logger:   slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	if r.Gossip {
		cfg.Report, cfg.Transport = nil, r.openGossip
	}
	n, err := node.Open(cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { p.every(ctx, func() message { return routerMessage(n) }) })
	wg.Go(func() { awaitUp(ctx, n, len(r.Peers), p) })
	var dnsErr error
	if r.DNS {
		wg.Go(func() {
			dnsErr = r.answer(ctx, n.Board())
			cancel()
		})
	}
	err = n.Run(ctx)
	cancel()
	wg.Wait()
	return errors.Join(err, dnsErr)
}

// openGossip is the node's transport. The first hosts start before their seeds, which
// is nothing to warn of.
func (r *routerRole) openGossip(b *loadinfo.Board, ring *loadinfo.Keyring) (loadinfo.Transport, error) {
	conn, ln, err := gossip.Listen(netip.AddrPortFrom(r.Addr, reportPort))
	if err != nil {
		return nil, err
	}
	return gossiping(gossip.Config{
		Conn: conn, Listener: ln, Seeds: seeds(r.Peers),
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	})(b, ring)
}

// answer runs the host's name server.
func (r *routerRole) answer(ctx context.Context, b *loadinfo.Board) error {
	conn, ln, err := rrdns.Listen(netip.AddrPortFrom(r.Addr, dnsPort))
	if err != nil {
		return err
	}
	return answer(ctx, b, conn, ln)
}

// awaitUp says Ready once the node takes part and knows all hosts.
func awaitUp(ctx context.Context, n *node.Node, hosts int, p *printer) {
	for {
		if hostsUp(n) == hosts {
			p.print(message{Ready: true})
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(reportEvery):
		}
	}
}

func routerMessage(n *node.Node) message {
	s := n.Status()
	flows := s.Engine.Services[serviceName]
	return message{
		Router: &hostResult{RedirectedOut: int(flows.RedirectedOut), RedirectedIn: int(flows.RedirectedIn)},
		Conns:  s.Services[serviceName].Conns,
	}
}

func (r *serverRole) play(ctx context.Context, p *printer) error {
	ln, err := net.Listen(r.Network, r.Address)
	if err != nil {
		return err
	}
	w := &web{serviceTime: r.ServiceTime}
	server := &http.Server{Handler: w}
	context.AfterFunc(ctx, func() { server.Close() })
	p.print(message{Ready: true})
	var wg sync.WaitGroup
	wg.Go(func() { p.every(ctx, func() message { return message{Served: int(w.served.Load())} }) })
	err = server.Serve(ln)
	wg.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (r *clientRole) play(ctx context.Context, p *printer) error {
	watch, err := watchSources(r.Targets[0].Addr().Is6())
	if err != nil {
		return err
	}
	defer watch.close()
	l := &load{dial: watch.dial, targets: r.Targets, requests: r.Requests, concurrency: r.Concurrency}
	if len(r.DNS) > 0 {
		l.finder = newFinder(r.DNS, func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, to.String())
		})
	}
	l.prepare()
	report := func() message { return message{Client: l.state(watch.strange())} }
	p.print(message{Ready: true})
	running, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { p.every(running, report) })
	l.run(ctx)
	cancel()
	wg.Wait()
	last := report()
	last.Client.Latencies = l.latencies
	p.print(last)
	return nil
}
