package hostnet

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// A setting is a kernel parameter and the value that it had when it was opened.
//
// The file stays open: once open it belongs to its network namespace, whatever
// thread writes to it, while a path leads to that of the thread.
type setting struct {
	path  string
	file  *os.File
	old   string
	write func(value string) error // instead of to the file, unless nil
}

func ipv4Setting(iface, name string) string { return "/proc/sys/net/ipv4/conf/" + iface + "/" + name }
func ipv6Setting(iface, name string) string { return "/proc/sys/net/ipv6/conf/" + iface + "/" + name }

func openSetting(path string) (setting, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return setting{}, fmt.Errorf("kernel setting: %w (is /proc/sys writable?)", err)
	}
	s := setting{path: path, file: f}
	if s.old, err = s.get(); err != nil {
		f.Close()
		return setting{}, err
	}
	return s, nil
}

func (s setting) get() (string, error) {
	var b [32]byte // all of ours are small numbers
	n, err := s.file.ReadAt(b[:], 0)
	if err != nil && err != io.EOF {
		return "", fmt.Errorf("kernel setting: %w", err)
	}
	return strings.TrimSpace(string(b[:n])), nil
}

func (s setting) set(value string) error {
	write := s.write
	if write == nil {
		write = s.writeFile
	}
	if err := write(value); err != nil {
		return fmt.Errorf("kernel setting %s=%s: %w", s.path, value, err)
	}
	return nil
}

func (s setting) writeFile(value string) error {
	_, err := s.file.WriteAt([]byte(value), 0)
	return err
}

// restore writes the old value back, unless the interface has gone, and closes the
// setting.
func (s setting) restore() error {
	return errors.Join(ignore(s.set(s.old), unix.ENOENT, unix.ENODEV), s.file.Close())
}
