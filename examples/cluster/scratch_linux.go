package main

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A scratch is a directory for the files of one run. It is locked as long as the
// process lives, so that a later run can tell and remove those of processes that were
// killed.
type scratch struct {
	dir  string
	lock *os.File
}

const scratchPattern = "carom-cluster-"

// newScratch makes a directory under parent, and removes what killed runs left there.
func newScratch(parent string) (*scratch, error) {
	if err := removeStale(parent); err != nil {
		return nil, err
	}
	for {
		dir, err := os.MkdirTemp(parent, scratchPattern)
		if err != nil {
			return nil, err
		}
		lock, err := lockDir(dir)
		if err != nil {
			return nil, errors.Join(err, os.RemoveAll(dir))
		}
		if lock == nil {
			continue // another run takes it for an old one
		}
		if _, err := os.Stat(dir); err == nil {
			return &scratch{dir, lock}, nil
		}
		lock.Close() // another run took it for an old one
	}
}

// removeStale removes the directories that no process has locked. Those of other
// users stay.
func removeStale(parent string) error {
	found, err := filepath.Glob(filepath.Join(parent, scratchPattern+"*"))
	if err != nil {
		return err
	}
	for _, dir := range found {
		lock, err := lockDir(dir)
		if err != nil || lock == nil {
			continue
		}
		_ = os.RemoveAll(dir)
		lock.Close()
	}
	return nil
}

// lockDir returns the directory, open and locked until it is closed, or nil if another
// process has locked it.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return f, nil
	}
	f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, nil
	}
	return nil, err
}

// close removes the directory.
func (s *scratch) close() error {
	return errors.Join(os.RemoveAll(s.dir), s.lock.Close())
}
