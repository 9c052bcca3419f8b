package node_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr/node"
	"github.com/carom-dpr/carom/internal/lab"
	"github.com/carom-dpr/carom/lb"
	"github.com/carom-dpr/carom/loadinfo"
)

// The tests here build clusters of network namespaces, with the kernel's own TCP
// stacks. Nodes run in this process, or in a child where it is to be killed.

func TestMain(m *testing.M) {
	if spec := os.Getenv(childVariable); spec != "" {
		os.Exit(runChild(spec))
	}
	goleak.VerifyTestMain(m)
}

const (
	service = "web"
	port    = 80
	// limit ends a test that hangs; no result depends on it.
	limit = time.Minute
	// poll is how often a condition is looked at.
	poll = 5 * time.Millisecond
	// period is short, so that nodes join soon, and long enough that a busy machine
	// does not make them take each other for dead.
	period = 250 * time.Millisecond
)

var secret = []byte("0123456789abcdef0123456789abcdef")

// world is a cluster and its clients on one segment. The evil host is no member,
// and knows no key.
type world struct {
	lab          *lab.Lab
	client, evil *lab.Host
	hosts        map[string]*host
	reports      []netip.AddrPort
}

// host is a member of the cluster. What it is depends on open, start and serve.
type host struct {
	*lab.Host
	w    *world
	addr netip.Addr

	node *node.Node
	stop func() // ends the node, returns when all is undone
}

// families are the versions of IP, by name.
var families = map[string]bool{"IPv4": false, "IPv6": true}

func eachFamily(t *testing.T, test func(t *testing.T, v6 bool)) { each(t, families, test) }

func each(t *testing.T, families map[string]bool, test func(t *testing.T, v6 bool)) {
	for name, v6 := range families {
		t.Run(name, func(t *testing.T) { test(t, v6) })
	}
}

// newWorld makes hosts of the given names, on which nothing runs yet. All have
// addresses of both families; v6 says which one host.addr is of.
func newWorld(t *testing.T, v6 bool, names ...string) *world {
	t.Helper()
	lab.Require(t)
	l, err := lab.New(lab.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	w := &world{lab: l, hosts: make(map[string]*host)}
	add := func(name string, last byte) (*lab.Host, netip.Addr) {
		v4 := netip.AddrFrom4([4]byte{10, 1, 0, last})
		addr6 := netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x01, 15: last})
		h, err := l.AddHost(name, netip.PrefixFrom(v4, 24), netip.PrefixFrom(addr6, 64))
		require.NoError(t, err)
		if v6 {
			return h, addr6
		}
		return h, v4
	}
	w.client, _ = add("client", 101)
	w.evil, _ = add("evil", 102)
	for i, name := range names {
		h, addr := add(name, byte(i+1))
		w.hosts[name] = &host{Host: h, w: w, addr: addr}
		w.reports = append(w.reports, netip.AddrPortFrom(addr, 6082))
	}
	return w
}

// role is the configuration of a node, in a form that a child process can be given.
type role struct {
	ID     string
	Addr   netip.Addr
	Report []netip.AddrPort
	// SendTo is the host that gets all new connections; without it they stay.
	SendTo string
	Level  slog.Level // of what is logged
}

func (h *host) role(sendTo string) role {
	return role{ID: h.Name(), Addr: h.addr, Report: h.w.reports, SendTo: sendTo, Level: slog.LevelError}
}

func (r role) config() node.Config {
	return node.Config{
		ID:       r.ID,
		Addr:     r.Addr,
		Services: []node.Service{{Name: service, Port: port, Policy: r.policy()}},
		Report:   r.Report,
		Keys:     []loadinfo.Key{{ID: 1, Secret: secret}},
		Period:   period,
		Logger:   slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: r.Level})),
	}
}

func (r role) policy() lb.Policy {
	if r.SendTo == "" {
		return lb.Stay{}
	}
	return sendTo(r.SendTo)
}

// sendTo is a policy that sends every connection to the host of that name, as long
// as that may get any.
type sendTo string

func (p sendTo) Build(s *lb.Snapshot) lb.Picker {
	for i := range s.Hosts {
		if h := &s.Hosts[i]; h.ID == string(p) && h.Eligible() && i != s.Self {
			return always(lb.Choice{Do: lb.Send, Host: i})
		}
	}
	return always{}
}

type always lb.Choice

func (a always) Pick(lb.Flow, time.Duration) lb.Choice { return lb.Choice(a) }

// open runs a node in this process.
func (h *host) open(t *testing.T, cfg node.Config) {
	t.Helper()
	require.NoError(t, h.Do(func() (err error) {
		h.node, err = node.Open(cfg)
		return err
	}))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.node.Run(ctx) }()
	stopped := false
	h.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(t, <-done)
		}
	}
	t.Cleanup(h.stop)
}

// cluster makes a world whose hosts all run, serve, and know each other. They are
// named by the map; its values name the host to which each sends connections.
func cluster(t *testing.T, v6 bool, sendTo map[string]string) *world {
	t.Helper()
	names := make([]string, 0, len(sendTo))
	for _, name := range []string{"a", "b", "c"} {
		if _, ok := sendTo[name]; ok {
			names = append(names, name)
		}
	}
	w := newWorld(t, v6, names...)
	for _, name := range names {
		h := w.hosts[name]
		h.serve(t, port)
		cfg := h.role(sendTo[name]).config()
		cfg.NoPathCheck = true // tests count packets, and probes would be among them
		h.open(t, cfg)
	}
	w.await(t)
	return w
}

// await returns when all nodes in this process see all hosts up and healthy.
func (w *world) await(t *testing.T) {
	t.Helper()
	eventually(t, "all hosts are up", func() bool {
		for _, h := range w.hosts {
			if h.node != nil && !allUp(h.node, len(w.hosts)) {
				return false
			}
		}
		return true
	})
}

// allUp reports whether a node sees n hosts that are up and whose servers listen.
func allUp(n *node.Node, hosts int) bool {
	up := 0
	for _, m := range n.Status().Members {
		healthy := true
		for _, s := range m.Services {
			healthy = healthy && s.Healthy
		}
		if m.State == loadinfo.Up && healthy {
			up++
		}
	}
	return up == hosts
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, limit, poll, what)
}

func (h *host) at(port uint16) netip.AddrPort { return netip.AddrPortFrom(h.addr, port) }

// childVariable holds the role of a child process, as JSON.
const childVariable = "CAROM_NODE_CHILD"

// ready is what a child prints when it sees all hosts up.
const ready = "ready"

// start runs a node in a process of its own and returns when it sees all hosts up.
// stop ends it as an operator would.
func (h *host) start(t *testing.T, r role) *os.Process {
	t.Helper()
	cmd, out := h.command(t, r)
	require.Equal(t, ready, line(t, out))
	ended := false
	h.stop = func() {
		if !ended {
			ended = true
			_ = cmd.Process.Signal(unix.SIGTERM)
			_ = cmd.Process.Signal(unix.SIGCONT)
			require.NoError(t, cmd.Wait())
		}
	}
	t.Cleanup(func() {
		if !ended {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return cmd.Process
}

// command starts a child. What it logs goes where this process's log goes.
func (h *host) command(t *testing.T, r role) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	cmd := child(t, r)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, h.Start(cmd))
	return cmd, bufio.NewReader(out)
}

func child(t *testing.T, r role) *exec.Cmd {
	t.Helper()
	spec, err := json.Marshal(r)
	require.NoError(t, err)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childVariable+"="+string(spec))
	return cmd
}

// unprivileged runs a child as an ordinary user that has only those capabilities
// until it is ready or has failed, and returns what it says, logs included.
func (h *host) unprivileged(t *testing.T, caps []uintptr) string {
	t.Helper()
	const nobody = 65534
	r := h.role("")
	r.Level = slog.LevelWarn
	cmd := child(t, r)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential:  &syscall.Credential{Uid: nobody, Gid: nobody},
		AmbientCaps: caps,
	}
	out, in, err := os.Pipe()
	require.NoError(t, err)
	defer out.Close()
	cmd.Stdout, cmd.Stderr = in, in
	err = h.Start(cmd)
	in.Close()
	require.NoError(t, err)
	var said strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		fmt.Fprintln(&said, lines.Text())
		if lines.Text() == ready {
			_ = cmd.Process.Signal(unix.SIGTERM)
		}
	}
	_ = cmd.Wait() // it may have failed, as it says
	return said.String()
}

func line(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	s, err := r.ReadString('\n')
	require.NoError(t, err)
	return s[:len(s)-1]
}

// runChild is the main function of a child: a node with one line of output.
func runChild(spec string) int {
	var r role
	err := json.Unmarshal([]byte(spec), &r)
	if err == nil {
		err = r.run()
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

func (r role) run() error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	n, err := node.Open(r.config())
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for !allUp(n, len(r.Report)) {
		select {
		case err := <-done:
			return errors.Join(errors.New("ended early"), err)
		case <-tick.C:
		}
	}
	fmt.Println(ready)
	return <-done
}
