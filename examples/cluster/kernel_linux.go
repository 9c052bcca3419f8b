package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/carom-dpr/carom/internal/lab"
)

func kernelAvailable() error { return lab.Available() }

// A kernelCluster has a network namespace for every host and client.
type kernelCluster struct {
	o       options
	lab     *lab.Lab
	scratch *scratch // for nginx's files and sockets
	hosts   []*kernelHost
	clients []*child
}

type kernelHost struct {
	host   *lab.Host
	addr   netip.Addr
	router *child
	server *child // counts what it served
	nginx  *nginx // in front of server, if asked for
}

// newKernelCluster builds the cluster and waits until its hosts know each other.
// If it fails nothing is left behind.
func newKernelCluster(ctx context.Context, o options) (cluster, error) {
	scratch, err := newScratch(os.TempDir())
	if err != nil {
		return nil, err
	}
	c := &kernelCluster{o: o, scratch: scratch}
	if err := c.build(ctx); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *kernelCluster) build(ctx context.Context) (err error) {
	if c.lab, err = lab.New(lab.Config{}); err != nil {
		return err
	}
	secret := make([]byte, 32)
	rand.Read(secret)
	var reports []netip.AddrPort
	for i := range c.o.Hosts {
		reports = append(reports, netip.AddrPortFrom(address(c.o.IPv6, hosts, i), reportPort))
	}
	for i := range c.o.Hosts {
		if ctx.Err() != nil {
			return errInterrupted
		}
		if err := c.addHost(i, reports, secret); err != nil {
			return err
		}
	}
	for _, h := range c.hosts {
		if err := h.router.awaitReady(ctx); err != nil {
			return err
		}
	}
	return c.addClients()
}

func (c *kernelCluster) addHost(i int, reports []netip.AddrPort, secret []byte) error {
	name, addr := fmt.Sprintf("h%d", i+1), address(c.o.IPv6, hosts, i)
	host, err := c.lab.AddHost(name, prefix(addr))
	if err != nil {
		return err
	}
	h := &kernelHost{host: host, addr: addr}
	c.hosts = append(c.hosts, h)
	if err := c.serve(h); err != nil {
		return err
	}
	h.router, err = startChild(host, "router", role{Router: &routerRole{
		ID: name, Addr: addr, Peers: reports, Policy: policies[c.o.Policy], Secret: secret,
		Gossip: c.o.Gossip == "memberlist", DNS: c.o.DNS, Reply: c.o.reply(),
	}})
	return err
}

// serve starts the host's web server.
func (c *kernelCluster) serve(h *kernelHost) (err error) {
	r := &serverRole{Network: "tcp", Address: fmt.Sprintf(":%d", servicePort), ServiceTime: c.o.ServiceTime}
	if c.o.Server == "nginx" {
		r.Network, r.Address = "unix", filepath.Join(c.scratch.dir, h.host.Name()+".sock")
	}
	if h.server, err = startChild(h.host, "web server", role{Server: r}); err != nil {
		return err
	}
	if err = h.server.awaitReady(context.Background()); err != nil || c.o.Server != "nginx" {
		return err
	}
	h.nginx, err = startNginx(h.host, c.scratch.dir, r.Address)
	return err
}

func (c *kernelCluster) addClients() error {
	n := min(maxClients, c.o.Concurrency, c.o.Requests)
	for i := range n {
		host, err := c.lab.AddHost(fmt.Sprintf("c%d", i+1), prefix(address(c.o.IPv6, clients, i)))
		if err != nil {
			return err
		}
		client, err := startChild(host, "client", role{Client: &clientRole{
			Targets:     c.o.targets(i),
			Requests:    share(c.o.Requests, n, i),
			Concurrency: share(c.o.Concurrency, n, i),
			DNS:         c.o.nameServers(i),
		}})
		if err != nil {
			return err
		}
		c.clients = append(c.clients, client)
	}
	return nil
}

// start waits for the clients, which begin by themselves.
func (c *kernelCluster) start(ctx context.Context) <-chan error {
	done := make(chan error, 1)
	go func() {
		for _, client := range c.clients {
			select {
			case <-client.ended:
			case <-ctx.Done():
			}
			if m := client.message(); m.Client == nil || m.Client.Latencies == nil {
				done <- client.failure()
				return
			}
		}
		done <- c.settle(ctx)
	}()
	return done
}

// settle waits until routers and servers have told their last counts.
func (c *kernelCluster) settle(ctx context.Context) error {
	select {
	case <-time.After(3 * reportEvery):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *kernelCluster) progress() (done int) {
	for _, client := range c.clients {
		if m := client.message(); m.Client != nil {
			done += m.Client.Done
		}
	}
	return done
}

func (c *kernelCluster) result() result {
	r := result{Net: "kernel"}
	for _, h := range c.hosts {
		row := hostResult{Name: h.host.Name(), Addr: h.addr.String()}
		if m := h.router.message(); m.Router != nil {
			row.RedirectedOut, row.RedirectedIn = m.Router.RedirectedOut, m.Router.RedirectedIn
			row.established = m.Conns
		}
		row.Served = h.server.message().Served
		if h.nginx != nil {
			row.Served = h.nginx.served()
		}
		r.Hosts = append(r.Hosts, row)
	}
	var latencies []time.Duration
	for i, client := range c.clients {
		if m := client.message().Client; m != nil {
			r.add(m, i)
			latencies = append(latencies, m.Latencies...)
		}
	}
	r.LatencyMS = summarize(latencies)
	return r
}

func (c *kernelCluster) enter() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Enter a host with one of:\n")
	for _, h := range c.hosts {
		fmt.Fprintf(&b, "  nsenter --net=%s    # %s, %v\n", h.host.Path(), h.host.Name(), h.addr)
	}
	return b.String()
}

// close ends all processes, routers first so that they undo their wiring, and
// removes all that was made.
func (c *kernelCluster) close() error {
	var routers, others []*child
	for _, h := range c.hosts {
		routers = append(routers, h.router)
		others = append(others, h.server)
		if h.nginx != nil {
			others = append(others, h.nginx.child)
		}
	}
	err := errors.Join(stopAll(routers), stopAll(append(others, c.clients...)))
	if c.lab != nil {
		err = errors.Join(err, c.lab.Close())
	}
	return errors.Join(err, c.scratch.close())
}

// An nginx is the web server of the same name, before the built-in one on a Unix
// socket, which takes the service time.
type nginx struct {
	*child
	log string
}

const nginxConf = `daemon off;
master_process off;
pid %[1]s.pid;
error_log %[1]s.error;
events { worker_connections 4096; }
http {
	access_log %[1]s.access;
	client_body_temp_path %[1]s.body;
	proxy_temp_path %[1]s.proxy;
	fastcgi_temp_path %[1]s.fastcgi;
	uwsgi_temp_path %[1]s.uwsgi;
	scgi_temp_path %[1]s.scgi;
	server {
		listen 80 backlog=4096;
		listen [::]:80 backlog=4096;
		location / { proxy_pass http://unix:%[2]s; }
	}
}
`

func startNginx(h *lab.Host, dir, backend string) (*nginx, error) {
	path, err := exec.LookPath("nginx")
	if err != nil {
		return nil, fmt.Errorf("-server nginx: install nginx, or take -server builtin: %w", err)
	}
	base := filepath.Join(dir, h.Name())
	if err := os.WriteFile(base+".conf", fmt.Appendf(nil, nginxConf, base, backend), 0o600); err != nil {
		return nil, err
	}
	cmd := exec.Command(path, "-c", base+".conf", "-e", base+".error", "-p", dir)
	c, err := start(h, "nginx", cmd)
	if err != nil {
		return nil, err
	}
	return &nginx{child: c, log: base + ".access"}, nil
}

// served counts the lines of the access log.
func (n *nginx) served() int {
	b, err := os.ReadFile(n.log)
	if err != nil {
		return 0 // nothing was served yet
	}
	return strings.Count(string(b), "\n")
}
