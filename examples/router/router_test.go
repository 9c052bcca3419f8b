package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/dpr/node"
)

// childVariable holds the arguments of a child process that is to be the program.
const childVariable = "CAROM_ROUTER_ARGS"

func TestMain(m *testing.M) {
	if args := os.Getenv(childVariable); args != "" {
		os.Exit(run(strings.Fields(args), os.Stdout, os.Stderr))
	}
	http.DefaultTransport.(*http.Transport).DisableKeepAlives = true
	goleak.VerifyTestMain(m)
}

// A running is a router on a machine in memory that answers HTTP on the loopback
// interface.
type running struct {
	*router
	*machine
	t    *testing.T
	url  string
	hup  chan os.Signal
	stop func() error
}

func start(t *testing.T, settings string) *running {
	t.Helper()
	r := &running{machine: newMachine(), t: t, hup: make(chan os.Signal)}
	path := filepath.Join(t.TempDir(), "router.yaml")
	require.NoError(t, os.WriteFile(path, []byte(settings), 0o600))
	var err error
	r.router, err = newRouter(options{config: path}, r.open, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r.url = "http://" + ln.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.run(ctx, ln, r.hup) }()
	r.stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { r.stop() })
	return r
}

func (r *running) write(text string) {
	r.t.Helper()
	require.NoError(r.t, os.WriteFile(r.config, []byte(text), 0o600))
}

func (r *running) request(method, path string) (code int, body string) {
	r.t.Helper()
	req, err := http.NewRequest(method, r.url+path, nil)
	require.NoError(r.t, err)
	res, err := http.DefaultClient.Do(req)
	require.NoError(r.t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	require.NoError(r.t, err)
	return res.StatusCode, string(b)
}

// Whatever is wrong with a file that it reads again, a running router keeps what it
// had, and says so in its metrics.
func TestBadReloadChangesNothing(t *testing.T) {
	r := start(t, goodSettings)
	before := r.node.Status().Services
	for i, tt := range badSettings {
		r.write(string(bad(t, tt.old, tt.new)))
		require.Error(t, r.reload(), tt.name)
		require.Equal(t, before, r.node.Status().Services, tt.name)
		require.EqualValues(t, i+1, counters(t, r.metrics.registry)["carom_config_reloads_total failure"])
	}
	// What is right in itself, but not for a router that runs.
	for _, tt := range []struct{ old, new, says string }{
		{"id: a", "id: b", ":1: id cannot change from a to b while the node runs: restart it"},
		{"192.0.2.11", "192.0.2.99", ":2: addr cannot change"},
		{"period: 500ms", "period: 1s", ":10: period cannot change from 500ms to 1s"},
		{"tunnel_port: 6080", "tunnel_port: 7", ":11: tunnel_port cannot change"},
		{"255:6082\nkeys:", "255:7\nreport_port: 7\nkeys:", ": report_port cannot change"},
		{"queues: 1", "queues: 2", ":12: queues cannot change from 1 to 2"},
		{"queues: 1", "max_flows: 7", ":12: max_flows cannot change"},
		{"queues: 1", "interface: eth7", ":12: interface cannot change"},
		{"queues: 1", "interfaces: [eth7]", ":12: interfaces cannot change"},
		{"port: 80", "port: 80\n    protocol: udp", "cannot change from tcp to udp"},
		{"queues: 1", "transport: gossip", ":12: transport cannot change from broadcast to one of its own"},
		{"queues: 1", "dns: {name: www.example.org}", ":12: dns: cannot change while the router runs"},
		{"{id: 1, ", "{id: 2, ", ":7: keys: from key 1 to key 2 in one step"},
		{"keys:\n  - {id: 1, secret: 00112233445566778899aabbccddeeff}\n", "", "whether there are any cannot change"},
	} {
		r.write(string(bad(t, tt.old, tt.new)))
		require.ErrorContains(t, r.reload(), tt.says)
		require.Equal(t, before, r.node.Status().Services)
	}
	r.write(goodSettings)
	require.NoError(t, r.reload())
	require.NoError(t, os.Remove(r.config))
	require.ErrorContains(t, r.reload(), "no such file")
}

// A policy with a memory keeps it over reloads that do not change it.
func TestReloadKeepsPolicies(t *testing.T) {
	r := start(t, strings.Replace(goodSettings, "port: 80", "port: 80\n    policy: rr", 1))
	was := r.policies["web"]
	require.NoError(t, r.reload())
	require.Same(t, was.policy.(timed).Policy, r.policies["web"].policy.(timed).Policy)
	r.write(strings.Replace(goodSettings, "port: 80", "port: 80\n    policy: smooth-rr", 1))
	require.NoError(t, r.reload())
	require.NotEqual(t, was, r.policies["web"])
}

func TestSignalReloads(t *testing.T) {
	r := start(t, goodSettings)
	r.write(goodSettings + "  closed: 5s\n")
	r.hup <- os.Interrupt
	r.hup <- os.Interrupt // the first one has been dealt with
	require.GreaterOrEqual(t, counters(t, r.metrics.registry)["carom_config_reloads_total success"], 2.0)
	r.write("nonsense")
	r.hup <- os.Interrupt
	r.hup <- os.Interrupt
	require.NotZero(t, counters(t, r.metrics.registry)["carom_config_reloads_total failure"])
}

func TestHTTP(t *testing.T) {
	r := start(t, goodSettings)
	code, body := r.request("GET", "/healthz")
	require.Equal(t, 200, code)
	require.Contains(t, []string{"joining\n", "up\n"}, body)

	code, body = r.request("POST", "/drain")
	require.Equal(t, "200 draining\n", statusLine(code, body))
	code, body = r.request("GET", "/healthz")
	require.Equal(t, "200 draining\n", statusLine(code, body))
	require.NoError(t, r.reload())
	code, body = r.request("GET", "/healthz")
	require.Equal(t, "200 draining\n", statusLine(code, body), "a reload does not end it")
	code, body = r.request("POST", "/undrain")
	require.Equal(t, "200 up\n", statusLine(code, body))

	code, body = r.request("GET", "/metrics")
	require.Equal(t, 200, code)
	require.Contains(t, body, "go_goroutines")
	code, body = r.request("GET", "/status")
	require.Equal(t, 200, code)
	var s status
	require.NoError(t, json.Unmarshal([]byte(body), &s))
	require.Equal(t, "a", s.ID)
	require.Equal(t, serviceStatus{Healthy: true, RedirectedNow: map[string]int{}}, s.Services["web"])
	require.Contains(t, s.Packets.Verdicts, "forward")
	require.NotRegexp(t, `"[^":]*[ A-Z][^":]*":`, body, "names as those of the metrics")
	metrics := counters(t, r.metrics.registry)
	for metric, counts := range map[string]map[string]uint64{
		"packets": s.Packets.Verdicts, "packets_dropped": s.Packets.Dropped, "capture_packets": s.Capture,
		"tunnel_dropped_packets": s.Tunnel.Dropped, "reports_received": s.Reports.Received,
	} {
		require.NotEmpty(t, counts, metric)
		for label := range counts {
			require.Contains(t, metrics, "carom_"+metric+"_total "+label)
		}
	}
	for _, refused := range [][2]string{{"GET", "/drain"}, {"POST", "/status"}, {"GET", "/nothing"}} {
		code, _ = r.request(refused[0], refused[1])
		require.GreaterOrEqual(t, code, 400)
	}
}

func statusLine(code int, body string) string { return fmt.Sprint(code, " ", body) }

func TestStatusSaysWhyAPathIsBroken(t *testing.T) {
	dialled := netip.MustParseAddrPort("192.0.2.11:80")
	view, err := json.Marshal(newStatus(node.Status{Paths: map[string][]node.Path{
		"b": {{Service: "web", Dialled: dialled, OK: true}},
		"c": {{Service: "web", Dialled: dialled, Why: "no answer comes"}},
	}}, time.Now()))
	require.NoError(t, err)
	var s struct{ Paths json.RawMessage }
	require.NoError(t, json.Unmarshal(view, &s))
	require.JSONEq(t, `{
		"b": [{"service": "web", "dialled": "192.0.2.11:80", "ok": true}],
		"c": [{"service": "web", "dialled": "192.0.2.11:80", "ok": false, "why": "no answer comes"}]
	}`, string(s.Paths))
}

// Another host, and a page in a browser of this one, drain nothing.
func TestDrainFromElsewhere(t *testing.T) {
	r := start(t, goodSettings)
	local := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 6090}
	for name, change := range map[string]func(*http.Request) *http.Request{
		"another host": func(q *http.Request) *http.Request { q.RemoteAddr = "192.0.2.1:5"; return q },
		"by another address": func(q *http.Request) *http.Request {
			return q.WithContext(context.WithValue(q.Context(), http.LocalAddrContextKey, net.Addr(&net.TCPAddr{IP: net.IPv4(192, 0, 2, 11)})))
		},
		"a web page": func(q *http.Request) *http.Request { q.Header.Set("Sec-Fetch-Site", "cross-site"); return q },
	} {
		q := httptest.NewRequest("POST", "/drain", nil)
		q.RemoteAddr = "127.0.0.1:5"
		q = q.WithContext(context.WithValue(q.Context(), http.LocalAddrContextKey, net.Addr(local)))
		w := httptest.NewRecorder()
		r.handler().ServeHTTP(w, change(q))
		require.Equal(t, http.StatusForbidden, w.Code, name)
		require.NotEqual(t, "draining", r.node.State().String())
	}
}

func TestHealthAfterTheEnd(t *testing.T) {
	r := start(t, goodSettings)
	r.kernel.Close() // as when the TUN is gone
	require.Eventually(t, func() bool { return r.health() != nil }, time.Minute, time.Millisecond)
	require.Error(t, r.stop())
	w := httptest.NewRecorder()
	r.handler().ServeHTTP(w, httptest.NewRequest("GET", "/healthz", nil))
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.Contains(t, w.Body.String(), "the router has ended")
	require.Contains(t, w.Body.String(), "a device was closed")
}

func TestHealthWithoutAnInterface(t *testing.T) {
	r := start(t, goodSettings)
	r.change(func(m *machine) { m.capture.Missing = []string{"eth1"} })
	code, body := r.request("GET", "/healthz")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Contains(t, body, "eth1")
	r.change(func(m *machine) { m.capture.Missing = nil })
	code, _ = r.request("GET", "/healthz")
	require.Equal(t, http.StatusOK, code)
}

func TestListFlows(t *testing.T) {
	r := start(t, strings.Replace(goodSettings, "services:", "services:\n  - {name: game, protocol: udp, port: 27015}", 1))
	for i := range uint16(2500) {
		r.kernel.in <- dpr.Packet{Buf: dprtest.UDP(netip.AddrPortFrom(client, 1000+i), game, dprtest.Options{})}
	}
	r.kernel.in <- dpr.Packet{Buf: []byte{0}} // what came before has been judged
	var out bytes.Buffer
	at := netip.MustParseAddrPort(strings.TrimPrefix(r.url, "http://"))
	require.NoError(t, listFlows(t.Context(), at, &out))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 2501)
	require.Equal(t, "SERVICE CLIENT DIALLED STATE SERVED BY IDLE", strings.Join(strings.Fields(lines[0]), " "))
	require.Regexp(t, `(?m)^game +198\.51\.100\.1:1000 +192\.0\.2\.11:27015 +udp-new +this host +\d`, out.String())
	require.NoError(t, r.stop())
	require.ErrorContains(t, listFlows(t.Context(), at, &out), "does a router run here")
}

func TestExitStatus(t *testing.T) {
	dir := t.TempDir()
	good, wrong := filepath.Join(dir, "good"), filepath.Join(dir, "wrong")
	require.NoError(t, os.WriteFile(good, []byte(goodSettings), 0o600))
	require.NoError(t, os.WriteFile(wrong, []byte("addr: x\n"), 0o600))
	open, key := filepath.Join(dir, "open"), secretFile(t)
	require.NoError(t, os.Chmod(key, 0o644))
	require.NoError(t, os.WriteFile(open, bad(t, "secret: 00112233445566778899aabbccddeeff", "file: "+key), 0o600))
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	for _, tt := range []struct {
		args string
		want int
		says string
	}{
		{"-check -config " + good, exitOK, ""},
		{"-check -config " + open, exitOK, "warning: " + open + ":8: keys[0].file"},
		{"-help", exitOK, "Usage of " + program},
		{"-check -config " + wrong, exitUsage, "wrong:1: addr: \"x\""},
		{"-config " + wrong, exitUsage, "wrong:1: addr: \"x\""},
		{"-check -config /nowhere", exitUsage, "name a file that can be read with -config"},
		{"-x", exitUsage, "-x"},
		{"word", exitUsage, "there are only flags"},
		{"-log xml", exitUsage, "give one of text, json"},
		{"-level loud", exitUsage, "give one of debug, info, warn, error"},
		{"-listen 6090", exitUsage, "give an address and a port"},
		{"-flows -listen 127.0.0.1:1", exitFailed, "does a router run here"},
		{"-flows -check", exitUsage, "-check and -flows are two things"},
		{"-config " + good + " -listen " + taken.Addr().String(), exitFailed,
			program + ": -listen " + taken.Addr().String() + ": address already in use: another process has it"},
	} {
		var out, errs bytes.Buffer
		require.Equal(t, tt.want, run(strings.Fields(tt.args), &out, &errs), tt.args)
		require.Contains(t, errs.String(), tt.says)
		require.Empty(t, out.String())
	}
}

func TestLogs(t *testing.T) {
	var text, lines bytes.Buffer
	(&options{format: "text", level: slog.LevelWarn}).logger(&text).Info("not this")
	(&options{format: "json"}).logger(&lines).Info("this", "n", 1)
	require.Empty(t, text.String())
	require.JSONEq(t, `{"level":"INFO","msg":"this","n":1}`, string(withoutTime(t, lines.Bytes())))
}

func withoutTime(t *testing.T, line []byte) []byte {
	var fields map[string]any
	require.NoError(t, json.Unmarshal(line, &fields))
	delete(fields, "time")
	b, err := json.Marshal(fields)
	require.NoError(t, err)
	return b
}

// What cannot be opened leaves nothing behind.
func TestOpenFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "router.yaml")
	require.NoError(t, os.WriteFile(path, []byte(goodSettings), 0o600))
	broken := errors.New("no rights")
	open := func(node.Config) (*node.Node, error) { return nil, broken }
	var log bytes.Buffer
	o := options{config: path, listen: netip.MustParseAddrPort("127.0.0.1:0")}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.ErrorIs(t, serve(ctx, o, open, nil, &log), broken)
}
