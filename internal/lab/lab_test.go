//go:build linux

package lab

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newLab(t *testing.T, cfg Config) *Lab {
	t.Helper()
	Require(t)
	l, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

// echoOnce serves one connection: it sends back what it reads.
func echoOnce(t *testing.T, h *Host, address string) {
	t.Helper()
	ln, err := h.Listen("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	go func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.Copy(c, c)
	}()
}

// ask sends size bytes and returns how many come back.
func ask(t *testing.T, h *Host, address string, size int) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := h.DialContext(ctx, "tcp", address)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(make([]byte, size))
		sent <- errors.Join(err, c.(*net.TCPConn).CloseWrite())
	}()
	n, err := io.Copy(io.Discard, c)
	require.NoError(t, err)
	require.NoError(t, <-sent)
	return int(n)
}

func TestHostsReachEachOther(t *testing.T) {
	l := newLab(t, Config{})
	a, err := l.AddHost("a", netip.MustParsePrefix("10.1.0.1/24"), netip.MustParsePrefix("fd01::1/64"))
	require.NoError(t, err)
	b, err := l.AddHost("b", netip.MustParsePrefix("10.1.0.2/24"), netip.MustParsePrefix("fd01::2/64"))
	require.NoError(t, err)
	for _, addr := range []netip.Addr{b.Addr4(), b.Addr6()} {
		address := netip.AddrPortFrom(addr, 80).String()
		echoOnce(t, b, address)
		require.Equal(t, 100_000, ask(t, a, address, 100_000))
	}
	_, err = a.DialContext(t.Context(), "tcp", "localhost:80")
	require.ErrorContains(t, err, "unable to parse IP")
}

func TestRouterWithSmallerMTU(t *testing.T) {
	l := newLab(t, Config{})
	prefix := netip.MustParsePrefix
	client, err := l.AddNode("client", Port{Segment: "out", Addrs: []netip.Prefix{prefix("10.2.0.1/24"), prefix("fd02::1/64")}})
	require.NoError(t, err)
	server, err := l.AddHost("server", prefix("10.1.0.1/24"), prefix("fd01::1/64"))
	require.NoError(t, err)
	router, err := l.AddRouter("router",
		Port{Addrs: []netip.Prefix{prefix("10.1.0.254/24"), prefix("fd01::fe/64")}, MTU: 1400},
		Port{Addrs: []netip.Prefix{prefix("10.2.0.254/24"), prefix("fd02::fe/64")}, Segment: "out"})
	require.NoError(t, err)
	for _, r := range []struct {
		h        *Host
		dst, via string
	}{
		{client, "0.0.0.0/0", "10.2.0.254"}, {client, "::/0", "fd02::fe"},
		{server, "0.0.0.0/0", "10.1.0.254"}, {server, "::/0", "fd01::fe"},
	} {
		require.NoError(t, r.h.AddRoute(prefix(r.dst), netip.MustParseAddr(r.via)))
	}
	link, err := router.Netlink().LinkByName("eth0")
	require.NoError(t, err)
	require.Equal(t, 1400, link.Attrs().MTU)
	for _, addr := range []netip.Addr{server.Addr4(), server.Addr6()} {
		address := netip.AddrPortFrom(addr, 80).String()
		echoOnce(t, server, address)
		require.Equal(t, 100_000, ask(t, client, address, 100_000))
	}
}

func TestStartInNamespace(t *testing.T) {
	l := newLab(t, Config{})
	h, err := l.AddHost("h", netip.MustParsePrefix("10.1.0.1/24"))
	require.NoError(t, err)
	want, err := os.Stat(h.Path())
	require.NoError(t, err)

	cmd := exec.Command("sh", "-c", "stat -L -c %i /proc/self/ns/net; exec sleep 1000")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, h.Start(cmd))
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, inode(want), strings.TrimSpace(line))

	require.NoError(t, l.Close())
	err = cmd.Wait()
	require.ErrorContains(t, err, "killed", "Close ends the processes of the lab")
	require.ErrorContains(t, h.Start(exec.Command("/nonexistent")), "/nonexistent")
}

func inode(fi os.FileInfo) string {
	return strconv.FormatUint(fi.Sys().(*syscall.Stat_t).Ino, 10)
}

func TestDoReturnsHome(t *testing.T) {
	l := newLab(t, Config{})
	h, err := l.AddHost("h")
	require.NoError(t, err)
	home := here(t)
	var inside string
	require.NoError(t, h.Do(func() error { inside = here(t); return nil }))
	require.NotEqual(t, home, inside)
	require.Equal(t, home, here(t))
	require.PanicsWithValue(t, "x", func() { _ = h.Do(func() error { panic("x") }) })
	require.Equal(t, home, here(t))
}

func here(t *testing.T) string {
	s, err := os.Readlink("/proc/thread-self/ns/net")
	require.NoError(t, err)
	return s
}

func TestCloseLeavesNothing(t *testing.T) {
	Require(t)
	l, err := New(Config{Name: "carom-close-test"})
	require.NoError(t, err)
	_, err = l.AddHost("a", netip.MustParsePrefix("10.1.0.1/24"))
	require.NoError(t, err)
	_, err = l.AddHost("bad", netip.MustParsePrefix("10.1.0.1/24"), netip.MustParsePrefix("10.1.0.1/24"))
	require.ErrorContains(t, err, "10.1.0.1/24")
	_, err = l.AddHost("a")
	require.Error(t, err, "a name is taken once")
	require.Len(t, left(t, "carom-close-test-*"), 2, "the failed host is gone, the first of its name is not")
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	require.Empty(t, left(t, "carom-close-test-*"))
	_, err = l.AddHost("late")
	require.ErrorIs(t, err, os.ErrClosed)
}

func TestNewCleansUpAfterTheDead(t *testing.T) {
	Require(t)
	kept, err := New(Config{Name: "carom-keep-test", Keep: true})
	require.NoError(t, err)
	require.NoError(t, kept.Close())
	require.Len(t, left(t, "carom-keep-test-*"), 1)
	again, err := New(Config{Name: "carom-keep-test"})
	require.NoError(t, err)
	require.NoError(t, again.Close())
	require.Empty(t, left(t, "carom-keep-test-*"))

	// No process has an id above the kernel's limit of 4194304.
	_, err = newNamespace(autoPrefix + "4194305.1-h")
	require.NoError(t, err)
	l, err := New(Config{})
	require.NoError(t, err)
	require.NoError(t, l.Close())
	require.Empty(t, left(t, autoPrefix+"4194305.*"))
}

// A name can be removed although iproute2 has made its first one meanwhile.
func TestNamesWithThoseOfOthers(t *testing.T) {
	Require(t)
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread has mounts of its own from here on, and ends
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
				return err
			}
			if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
				return err
			}
			if err := unix.Mount("tmpfs", filepath.Dir(namespaceDir), "tmpfs", 0, ""); err != nil {
				return err
			}
			ns, err := newNamespace("first")
			if err != nil {
				return err
			}
			return errors.Join(ns.Close(), shareNames(), removeNamespace("first")) // the second as iproute2 would
		}()
	}()
	require.NoError(t, <-done)
}

func left(t *testing.T, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(namespaceDir, pattern))
	require.NoError(t, err)
	return names
}
