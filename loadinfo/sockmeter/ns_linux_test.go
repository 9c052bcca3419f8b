package sockmeter

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// patience bounds the wait for what the kernel does on its own time.
const patience = time.Minute

// A namespace is a network namespace with the loopback interface up.
type namespace struct {
	t  *testing.T
	fd int
}

// newNamespace makes a namespace, or skips the test where that is forbidden.
func newNamespace(t *testing.T) *namespace {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home := currentNetns(t)
	defer unix.Close(home)
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		skip(t, "network namespaces", err)
	}
	ns := &namespace{t: t, fd: currentNetns(t)}
	t.Cleanup(func() { unix.Close(ns.fd) })
	defer backTo(home)
	lo, err := netlink.LinkByName("lo")
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetUp(lo))
	return ns
}

func currentNetns(t *testing.T) int {
	fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	return fd
}

func backTo(fd int) {
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		panic(err) // the thread must not go on in the wrong namespace
	}
}

// skip ends the test, as a failure where CAROM_MUST_RUN demands it.
func skip(t *testing.T, what string, err error) {
	t.Helper()
	if os.Getenv("CAROM_MUST_RUN") == "1" {
		require.NoError(t, err, what)
	}
	t.Skipf("needs %s: %v", what, err)
}

// do calls f in the namespace, on this goroutine.
func (ns *namespace) do(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home := currentNetns(ns.t)
	defer unix.Close(home)
	backTo(ns.fd)
	defer backTo(home)
	f()
}

// open opens a meter in the namespace.
func (ns *namespace) open(c Config) (m *Meter) {
	ns.t.Helper()
	var err error
	ns.do(func() { m, err = Open(c) })
	if c.Mode == Exact && errors.Is(err, unix.EPERM) {
		skip(ns.t, "BPF", err)
	}
	require.NoError(ns.t, err)
	ns.t.Cleanup(func() { require.NoError(ns.t, m.Close()) })
	return m
}

// listen listens in the namespace.
func (ns *namespace) listen(network, addr string) (l net.Listener) {
	ns.t.Helper()
	var err error
	ns.do(func() { l, err = net.Listen(network, addr) })
	require.NoError(ns.t, err)
	ns.t.Cleanup(func() { l.Close() })
	return l
}

// connect makes a connection to the listener and returns both its ends.
func (ns *namespace) connect(l net.Listener, network, host string) (client, server *net.TCPConn) {
	ns.t.Helper()
	var err error
	var c net.Conn
	ns.do(func() { c, err = net.Dial(network, dialAddr(l, host)) })
	require.NoError(ns.t, err)
	s, err := l.Accept()
	require.NoError(ns.t, err)
	ns.t.Cleanup(func() { c.Close(); s.Close() })
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

func portOf(l net.Listener) uint16 { return uint16(l.Addr().(*net.TCPAddr).Port) }

// established is the oracle: it counts the namespace's established sockets with
// the given local port in the kernel's own list for people (proc(5)).
func (ns *namespace) established(port uint16) (n int32) {
	ns.t.Helper()
	local := fmt.Sprintf(":%04X", port)
	ns.do(func() {
		for _, file := range []string{"tcp", "tcp6"} {
			f, err := os.Open("/proc/thread-self/net/" + file)
			require.NoError(ns.t, err)
			for sc := bufio.NewScanner(f); sc.Scan(); {
				fields := strings.Fields(sc.Text())
				if strings.HasSuffix(fields[1], local) && fields[3] == "01" {
					n++
				}
			}
			f.Close()
		}
	})
	return n
}

// settle waits until the counter and the kernel's list both say want.
func (ns *namespace) settle(m *Meter, name string, port uint16, want int32) {
	ns.t.Helper()
	c := m.Counter(name)
	for end := time.Now().Add(patience); time.Now().Before(end); runtime.Gosched() {
		if c.Load() == want && ns.established(port) == want {
			return
		}
	}
	require.Equal(ns.t, want, ns.established(port), "sockets in the kernel's list")
	require.Equal(ns.t, want, c.Load(), "counter")
}

// dialAddr is the listener's port at another address.
func dialAddr(l net.Listener, host string) string {
	return net.JoinHostPort(host, strconv.Itoa(int(portOf(l))))
}
