//go:build linux

package main

import (
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/internal/lab"
)

// childVariable makes this test's executable the program, on a host of that name.
const childVariable = "CAROM_WEBSERVER_CHILD"

func TestMain(m *testing.M) {
	if name := os.Getenv(childVariable); name != "" {
		if err := syscall.Sethostname([]byte(name)); err != nil { // in its own UTS namespace
			panic(err)
		}
		main()
		return
	}
	os.Exit(m.Run())
}

const (
	// limit ends a test that hangs; no result depends on it.
	limit = time.Minute
	poll  = 20 * time.Millisecond
)

// Two web servers share what clients ask of one; when one is told to end, it ends
// without a failed request, and the other has everything.
func TestSiblings(t *testing.T) {
	lab.Require(t)
	l, err := lab.New(lab.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	add := func(name, addr string) *lab.Host {
		h, err := l.AddHost(name, netip.MustParsePrefix(addr))
		require.NoError(t, err)
		return h
	}
	client, a, b := add("client", "10.0.0.101/24"), add("a", "10.0.0.1/24"), add("b", "10.0.0.2/24")
	first, second := start(t, a, b), start(t, b, a)
	for _, h := range []*lab.Host{a, b} {
		require.Eventually(t, func() bool { return listens(t, client, h) }, limit, poll, "the program serves")
	}

	// Connections that stay open fill a, until it hands some to b.
	require.Eventually(t, func() bool { return ask(t, client, a, true) == "b" }, limit, poll, "a redirects")
	require.Eventually(t, func() bool { return ask(t, client, b, true) == "b" }, limit, poll, "b serves")

	require.NoError(t, second.Process.Signal(syscall.SIGTERM))
	ended := make(chan error, 1)
	go func() { ended <- second.Wait() }()
	for deadline := time.After(limit); ; {
		ask(t, client, a, false)
		select {
		case err := <-ended:
			require.NoError(t, err, "exit status")
			require.Equal(t, "a", ask(t, client, a, false))
			require.NoError(t, first.Process.Signal(syscall.SIGTERM))
			require.NoError(t, first.Wait())
			return
		case <-deadline:
			require.Fail(t, "b does not end")
		default:
		}
	}
}

// start runs the program on a host until the test ends.
func start(t *testing.T, h, sibling *lab.Host) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-addr", h.Addr4().String(), "-peer", sibling.Addr4().String()+":6082")
	cmd.Env = append(os.Environ(), childVariable+"="+h.Name())
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUTS}
	require.NoError(t, h.Start(cmd))
	return cmd
}

func listens(t *testing.T, client, h *lab.Host) bool {
	c, err := client.DialContext(t.Context(), "tcp", h.Addr4().String()+":80")
	if err == nil {
		c.Close()
	}
	return err == nil
}

var answer = regexp.MustCompile(`^10\.0\.0\.101:\d+ asked (10\.0\.0\.\d):80, ([ab]) answers\n$`)

// ask sends a request to a host on a connection of its own, which is left open until
// the test ends if so wanted, and returns who answered.
func ask(t *testing.T, client, dialled *lab.Host, open bool) (served string) {
	t.Helper()
	c := &http.Client{
		Timeout:   limit,
		Transport: &http.Transport{DialContext: client.DialContext, DisableKeepAlives: !open},
	}
	t.Cleanup(c.CloseIdleConnections)
	r, err := c.Get("http://" + dialled.Addr4().String())
	require.NoError(t, err)
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	m := answer.FindSubmatch(body)
	require.NotNil(t, m, "%q", body)
	require.Equal(t, dialled.Addr4().String(), string(m[1]), "the address that was dialled")
	return string(m[2])
}
