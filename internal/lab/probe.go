//go:build linux

package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	// namespaceDir is where iproute2 and package netns keep named namespaces.
	namespaceDir = "/run/netns"
	// autoPrefix starts the names of labs that were not given one; the process's
	// id follows, so what dead processes left can be told.
	autoPrefix = "carom-"
)

// Available reports whether this process can make labs: nil, or an error that
// says what it lacks. It tries for real, once.
func Available() error { return available() }

var available = sync.OnceValue(func() error {
	err := inNamespace(netns.None(), func() error {
		ns, err := netns.New()
		if err != nil {
			return fmt.Errorf("lab: new network namespace (needs CAP_SYS_ADMIN): %w", err)
		}
		defer ns.Close()
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "probe0"
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "probe1"}); err != nil {
			return fmt.Errorf("lab: veth (needs CAP_NET_ADMIN and the veth module): %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	// A named namespace is a mount, which needs a capability of its own.
	name := fmt.Sprintf("%s%d.0-probe", autoPrefix, os.Getpid())
	ns, err := newNamespace(name)
	if err != nil {
		return errors.Join(fmt.Errorf("lab: namespace %s: %w", name, err), removeNamespace(name))
	}
	return errors.Join(ns.Close(), removeNamespace(name))
})

// TB is the part of testing.TB that Require needs.
type TB interface {
	Helper()
	Skip(args ...any)
	Fatal(args ...any)
}

// Require skips a test where labs cannot be made. With CAROM_MUST_RUN=1 in the
// environment it fails it instead, so that a skip cannot go unnoticed.
func Require(t TB) {
	t.Helper()
	err := Available()
	switch {
	case err == nil:
	case os.Getenv("CAROM_MUST_RUN") == "1":
		t.Fatal(err)
	default:
		t.Skip(err)
	}
}

// Cleanup removes the namespaces of a lab of that name that a killed process, or
// one with Keep set, left behind. It must not be called while the lab stands.
func Cleanup(name string) error {
	return removeIf(func(ns string) bool { return strings.HasPrefix(ns, name+"-") })
}

// cleanupDead removes labs with a default name whose process has died.
func cleanupDead() error {
	return removeIf(func(ns string) bool {
		rest, ok := strings.CutPrefix(ns, autoPrefix)
		digits, _, dot := strings.Cut(rest, ".")
		pid, err := strconv.Atoi(digits)
		return ok && dot && err == nil && unix.Kill(pid, 0) == unix.ESRCH
	})
}

func removeIf(match func(name string) bool) error {
	entries, err := os.ReadDir(namespaceDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("lab: clean up: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if match(e.Name()) {
			errs = append(errs, removeNamespace(e.Name()))
		}
	}
	return errors.Join(errs...)
}

// shareNames makes the directory of names a mount of its own, as iproute2 does before
// it makes its first name, and under the same lock. Were that to happen while there
// are names, it would cover the mounts that they are, and they could not be removed.
func shareNames() error {
	if err := os.MkdirAll(namespaceDir, 0o755); err != nil {
		return err
	}
	dir, err := os.Open(namespaceDir)
	if err != nil {
		return err
	}
	defer dir.Close() // ends the lock
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	share := func() error { return unix.Mount("", namespaceDir, "none", unix.MS_SHARED|unix.MS_REC, "") }
	if err := share(); err != unix.EINVAL {
		return err
	}
	return errors.Join(unix.Mount(namespaceDir, namespaceDir, "none", unix.MS_BIND|unix.MS_REC, ""), share())
}

// removeNamespace takes a namespace's name away, also where only the file was
// made and never mounted on; a name that is gone already is no error, since two
// processes may clean up after the same dead one.
func removeNamespace(name string) error {
	path := filepath.Join(namespaceDir, name)
	err := unix.Unmount(path, unix.MNT_DETACH)
	if err != nil && err != unix.EINVAL && err != unix.ENOENT {
		return fmt.Errorf("lab: unmount %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("lab: %w", err)
	}
	return nil
}
