package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/internal/lab"
)

// The tests here run the program beside nginx, in network namespaces.

// limit ends a test that hangs; no result depends on it.
const limit = time.Minute

// A site is a cluster of two hosts with nginx, and a client.
type site struct {
	lab    *lab.Lab
	client *lab.Host
	hosts  []*siteHost
}

type siteHost struct {
	*lab.Host
	t      *testing.T
	config string // the router's file
	router *exec.Cmd
	local  *http.Client // in the host itself
}

const keys = "keys: [{id: 1, secret: 00112233445566778899aabbccddeeff}]\n"

// settings is a configuration of the host with more at its end.
func (h *siteHost) settings(more string) string {
	return fmt.Sprintf(`id: %s
addr: %v
services:
  - {name: web, port: 80, addrs: [%v, "%v"]%s}
report: [10.2.0.1:6082, 10.2.0.2:6082]
period: 250ms
`, h.Name(), h.Addr4(), h.Addr4(), h.Addr6(), more)
}

func newSite(t *testing.T) *site { return newSiteOf(t, "a", "b") }

func newSiteOf(t *testing.T, names ...string) *site {
	t.Helper()
	lab.Require(t)
	nginx := requireNginx(t)
	l, err := lab.New(lab.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	s := &site{lab: l}
	add := func(name string, last byte) *lab.Host {
		v6 := [16]byte{0: 0xfd, 1: 0x02, 15: last}
		h, err := l.AddHost(name, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 2, 0, last}), 24), netip.PrefixFrom(netip.AddrFrom16(v6), 64))
		require.NoError(t, err)
		return h
	}
	s.client = add("client", 101)
	for i, name := range names {
		h := &siteHost{Host: add(name, byte(i+1)), t: t, config: filepath.Join(t.TempDir(), "router.yaml")}
		h.local = httpClient(h.Host)
		h.startNginx(nginx)
		s.hosts = append(s.hosts, h)
	}
	return s
}

// requireNginx returns the path of the server that Debian's package nginx has.
func requireNginx(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("nginx")
	if err != nil && os.Getenv("CAROM_MUST_RUN") == "1" {
		t.Fatal("there is no nginx: install the package nginx")
	}
	if err != nil {
		t.Skip("there is no nginx: install the package nginx")
	}
	return path
}

func httpClient(h *lab.Host) *http.Client {
	return &http.Client{Timeout: limit, Transport: &http.Transport{DialContext: h.DialContext, DisableKeepAlives: true}}
}

const nginxConf = `daemon off;
master_process off;
pid %[1]s/pid;
error_log %[1]s/error;
events { worker_connections 4096; }
http {
	access_log off;
	client_body_temp_path %[1]s/body;
	proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi;
	scgi_temp_path %[1]s/scgi;
	server {
		listen 80 backlog=4096;
		listen [::]:80 backlog=4096;
		location / { return 200 "%[2]s"; }
	}
}
`

// startNginx starts a server that says the host's name.
func (h *siteHost) startNginx(path string) {
	h.t.Helper()
	dir := h.t.TempDir()
	conf := filepath.Join(dir, "conf")
	require.NoError(h.t, os.WriteFile(conf, fmt.Appendf(nil, nginxConf, dir, h.Name()), 0o600))
	cmd := exec.Command(path, "-c", conf, "-e", filepath.Join(dir, "error"), "-p", dir)
	require.NoError(h.t, h.Start(cmd))
	h.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	require.Eventually(h.t, func() bool {
		_, err := get(h.local, netip.AddrPortFrom(h.Addr4(), 80), "/")
		return err == nil
	}, limit, 5*time.Millisecond, "nginx serves")
}

func get(c *http.Client, at netip.AddrPort, path string) (string, error) {
	res, err := c.Get("http://" + at.String() + path)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = errors.New(res.Status)
	}
	return string(b), err
}

// statusAt is where the router of a host answers.
var statusAt = netip.MustParseAddrPort(defaultListen)

// run starts the host's router.
func (h *siteHost) run(settings string) {
	h.t.Helper()
	require.NoError(h.t, os.WriteFile(h.config, []byte(settings), 0o600))
	h.router = exec.Command("/proc/self/exe")
	h.router.Env = append(os.Environ(), childVariable+"=-level warn -config "+h.config)
	h.router.Stderr = os.Stderr
	require.NoError(h.t, h.Start(h.router))
	h.t.Cleanup(func() {
		if h.router.ProcessState == nil {
			_ = h.router.Process.Kill()
			_ = h.router.Wait()
		}
	})
}

// awaitPeers returns when the host sees so many peers up and takes part itself.
func (h *siteHost) awaitPeers(n int) {
	h.t.Helper()
	require.Eventually(h.t, func() bool {
		m, err := h.metrics()
		return err == nil && m[`carom_peers{state="up"}`] == float64(n) && m[`carom_state{state="up"}`] == 1
	}, limit, 10*time.Millisecond, "peers are up")
}

// metrics are what Prometheus would see.
func (h *siteHost) metrics() (map[string]float64, error) {
	text, err := get(h.local, statusAt, "/metrics")
	m := make(map[string]float64)
	for lines := bufio.NewScanner(strings.NewReader(text)); err == nil && lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if name != "#" {
			m[name], err = strconv.ParseFloat(value, 64)
		}
	}
	return m, err
}

// stop ends the router as systemd does.
func (h *siteHost) stop() {
	h.t.Helper()
	require.NoError(h.t, h.router.Process.Signal(unix.SIGTERM))
	require.NoError(h.t, h.router.Wait())
}

// wiring is what a router must take away again.
func (h *siteHost) wiring() string {
	h.t.Helper()
	var all strings.Builder
	links, err := h.Netlink().LinkList()
	require.NoError(h.t, err)
	for _, l := range links {
		fmt.Fprintln(&all, l.Attrs().Name)
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		rules, err := h.Netlink().RuleList(family)
		require.NoError(h.t, err)
		fmt.Fprintln(&all, rules)
	}
	return all.String()
}

// servedBy has the client ask the host again and again until that one's nginx answers:
// hosts are up before the paths to them were probed, and who is late gets nothing.
func (s *site) servedBy(c *http.Client, addr netip.Addr, name string) {
	s.hosts[0].t.Helper()
	require.Eventually(s.hosts[0].t, func() bool {
		body, err := get(c, netip.AddrPortFrom(addr, 80), "/")
		return err == nil && body == name
	}, limit, 10*time.Millisecond, "%v is served by %s", addr, name)
}

// A request to a host that wants no new connections is served by the other one's
// nginx, and answered from the address that was dialled.
func TestBesideNginx(t *testing.T) {
	s := newSite(t)
	a, b := s.hosts[0], s.hosts[1]
	before := a.wiring()
	a.run(a.settings(", weight: 0") + keys)
	b.run(b.settings("") + keys)
	a.awaitPeers(1)
	b.awaitPeers(1)
	for _, addr := range []netip.Addr{a.Addr4(), a.Addr6()} {
		var remote net.Addr
		c := httpClient(s.client)
		c.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, to string) (net.Conn, error) {
			conn, err := s.client.DialContext(ctx, network, to)
			if err == nil {
				remote = conn.RemoteAddr()
			}
			return conn, err
		}
		s.servedBy(c, addr, "b")
		require.Equal(t, netip.AddrPortFrom(addr, 80).String(), remote.String())
	}
	m, err := a.metrics()
	require.NoError(t, err)
	require.EqualValues(t, 2, m[`carom_flows_decided_total{outcome="redirected",service="web"}`])
	for _, counter := range []string{`carom_capture_packets_total{outcome="captured-syn"}`, "carom_tunnel_sent_packets_total"} {
		require.Positive(t, m[counter], counter)
	}
	table, err := a.flows()
	require.NoError(t, err)
	require.Contains(t, table, "web")

	b.stop() // says that it drains
	a.stop()
	require.Equal(t, before, a.wiring())
	body, err := get(httpClient(s.client), netip.AddrPortFrom(a.Addr4(), 80), "/")
	require.NoError(t, err)
	require.Equal(t, "a", body, "nginx serves as if no router had been there")
}

// flows runs the program again in the host, to list the flows.
func (h *siteHost) flows() (string, error) {
	var out strings.Builder
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childVariable+"=-flows")
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	if err := h.Start(cmd); err != nil {
		return "", err
	}
	err := cmd.Wait()
	return out.String(), err
}

// How long it takes from the start of the program to the first connection that it
// decided about, and what it needs when it has nothing to do.
func TestStartAndIdle(t *testing.T) {
	s := newSite(t)
	a := s.hosts[0]
	began := time.Now()
	a.run(strings.Replace(a.settings(""), "period: 250ms\n", "", 1)) // the default
	client := httpClient(s.client)
	require.Eventually(t, func() bool {
		_, err := get(client, netip.AddrPortFrom(a.Addr4(), 80), "/")
		require.NoError(t, err)
		m, err := a.metrics()
		return err == nil && m[`carom_flows_decided_total{outcome="served",service="web"}`] > 0
	}, limit, time.Millisecond)
	t.Logf("from start to the first served connection: %v", time.Since(began).Round(time.Millisecond))

	idle, err := time.ParseDuration(os.Getenv("CAROM_IDLE"))
	if err != nil {
		idle = time.Second
	}
	cpu := a.cpu()
	<-time.After(idle)
	m, err := a.metrics()
	require.NoError(t, err)
	t.Logf("idle for %v: %.2f %% of a core, %.1f MB resident", idle, 100*(a.cpu()-cpu).Seconds()/idle.Seconds(),
		m["process_resident_memory_bytes"]/1e6)
	require.True(t, raceDetector || m["process_resident_memory_bytes"] < 60e6, "resident memory")
	a.stop()
}

// cpu is the time that the router's threads have had of processors. It is the
// scheduler's own, since the times of /proc/PID/stat are sampled, 100 times a second,
// and miss most of what sleeps most of the time or take it for more.
func (h *siteHost) cpu() (sum time.Duration) {
	h.t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", h.router.Process.Pid))
	require.NoError(h.t, err)
	require.NotEmpty(h.t, threads)
	for _, name := range threads {
		stat, err := os.ReadFile(name)
		require.NoError(h.t, err)
		ns, err := strconv.ParseInt(strings.Fields(string(stat))[0], 10, 64)
		require.NoError(h.t, err)
		sum += time.Duration(ns)
	}
	return sum
}

// variations are configurations between which a reload changes: more services, other
// ports, policies, weights, keys and timeouts.
func (h *siteHost) variations() []string {
	key2 := "{id: 2, secret: ffeeddccbbaa99887766554433221100}"
	return []string{
		h.settings("") + keys,
		h.settings(", policy: p2c, weight: 50") + keys + "timeouts: {established: 1h}\n",
		strings.Replace(h.settings(""), "services:\n", "services:\n  - {name: extra, port: 8000-8010}\n", 1) + keys,
		strings.Replace(h.settings(""), "port: 80,", "port: 80-85,", 1) + keys + "weight: 200\n",
		h.settings(", policy: \"least:threshold=1\"") + strings.Replace(keys, "}]", "}, "+key2+"]", 1),
		strings.Replace(h.settings(""), "services:\n", "services:\n  - {name: dgram, protocol: udp, port: 9000}\n", 1) + keys +
			"alias_prefixes: [10.2.0.0/24, \"fd02::/64\"]\n",
	}
}

// Reloads under load: no request fails, and nothing grows.
func TestReloadsUnderLoad(t *testing.T) {
	reloads := 1000
	if testing.Short() {
		reloads = 50
	}
	s := newSite(t)
	for _, h := range s.hosts {
		h.run(h.settings("") + keys)
	}
	for _, h := range s.hosts {
		h.awaitPeers(1)
	}
	load := newLoad(s)
	reload := func(i int) {
		before := load.done.Load()
		s.reload(t, i)
		require.Eventually(t, func() bool { return load.done.Load() > before }, limit, 100*time.Microsecond, "requests are served")
	}
	for i := range reloads / 10 {
		reload(i) // what is allocated once is, before the first measure
	}
	before := make([]map[string]float64, len(s.hosts))
	for i, h := range s.hosts {
		var err error
		before[i], err = h.metrics()
		require.NoError(t, err)
	}
	for i := range reloads {
		reload(i)
	}
	served := load.stop()
	require.Empty(t, load.failed())
	t.Logf("%d reloads while %d requests were served", reloads, served)
	for i, h := range s.hosts {
		var after map[string]float64
		require.Eventually(t, func() bool { // requests for metrics may still end
			var err error
			after, err = h.metrics()
			return err == nil && after["process_open_fds"] <= before[i]["process_open_fds"]+2 && after["go_goroutines"] <= before[i]["go_goroutines"]+2
		}, limit, 10*time.Millisecond, "descriptors and goroutines are no more than before")
		require.Zero(t, after[`carom_config_reloads_total{result="failure"}`])
		require.EqualValues(t, reloads/len(s.hosts), after[`carom_config_reloads_total{result="success"}`]-before[i][`carom_config_reloads_total{result="success"}`])
		grown := after["process_resident_memory_bytes"] - before[i]["process_resident_memory_bytes"]
		t.Logf("%s: resident memory from %.1f MB by %+.1f MB, redirected %.0f", h.Name(), before[i]["process_resident_memory_bytes"]/1e6, grown/1e6,
			after[`carom_flows_decided_total{outcome="redirected",service="web"}`])
		require.True(t, raceDetector || grown < 20e6, "memory grows with each reload")
		h.stop()
	}
}

// reload has one host after the other take its next variation, and returns when it is
// in force.
func (s *site) reload(t *testing.T, i int) {
	t.Helper()
	h := s.hosts[i%len(s.hosts)]
	list := h.variations()
	was, err := h.reloaded()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(h.config, []byte(list[i/len(s.hosts)%len(list)]), 0o600))
	require.NoError(t, h.router.Process.Signal(unix.SIGHUP))
	require.Eventually(t, func() bool {
		now, err := h.reloaded()
		return err == nil && now > was
	}, limit, time.Millisecond, "the configuration was read")
}

// reloaded counts how often the configuration was read.
func (h *siteHost) reloaded() (n float64, err error) {
	m, err := h.metrics()
	return m[`carom_config_reloads_total{result="success"}`] + m[`carom_config_reloads_total{result="failure"}`], err
}

// A load is clients that request without a pause, a connection for each request.
type load struct {
	ended chan struct{}
	wg    sync.WaitGroup
	done  atomic.Int64
	mu    sync.Mutex
	errs  []error
}

// loadClients leaves some of two cores to the routers: two for each of two addresses
// would have them wait for most of the time.
const loadClients = 2

func newLoad(s *site) *load {
	l := &load{ended: make(chan struct{})}
	for i := range loadClients {
		h := s.hosts[i%len(s.hosts)]
		at := netip.AddrPortFrom([]netip.Addr{h.Addr4(), h.Addr6()}[i%2], 80)
		c := httpClient(s.client)
		l.wg.Go(func() { l.run(c, at) })
	}
	return l
}

func (l *load) run(c *http.Client, at netip.AddrPort) {
	for {
		select {
		case <-l.ended:
			return
		default:
		}
		if _, err := get(c, at, "/"); err != nil {
			l.mu.Lock()
			l.errs = append(l.errs, err)
			l.mu.Unlock()
			continue
		}
		l.done.Add(1)
	}
}

func (l *load) stop() int64 {
	close(l.ended)
	l.wg.Wait()
	return l.done.Load()
}

func (l *load) failed() []error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.errs
}
