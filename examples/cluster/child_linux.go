package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/carom-dpr/carom/internal/lab"
)

// roleVariable holds the role that this program plays when it starts itself in a
// host's namespace, as JSON.
const roleVariable = "CAROM_CLUSTER_ROLE"

// A role is what a child process does; one of its fields is set.
type role struct {
	Router *routerRole `json:",omitempty"`
	Server *serverRole `json:",omitempty"`
	Client *clientRole `json:",omitempty"`
}

// A message is a line that a child prints: what it has counted so far.
type message struct {
	Ready  bool        `json:",omitempty"`
	Router *hostResult `json:",omitempty"`
	Conns  int         `json:",omitempty"`
	Served int         `json:",omitempty"`
	Client *clientDone `json:",omitempty"`
	Err    string      `json:",omitempty"`
}

// A child is a process of the cluster.
type child struct {
	what  string
	cmd   *exec.Cmd
	ready chan struct{} // closed when the child says it is
	ended chan struct{} // closed when its output has ended

	mu   sync.Mutex
	last message
	err  error
}

// startChild starts this program again in a host, with a role.
func startChild(h *lab.Host, what string, r role) (*child, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), roleVariable+"="+string(b))
	return start(h, what, cmd)
}

func start(h *lab.Host, what string, cmd *exec.Cmd) (*child, error) {
	c := &child{what: what + " of " + h.Name(), cmd: cmd, ready: make(chan struct{}), ended: make(chan struct{})}
	cmd.Stderr = os.Stderr
	// Ctrl-C is for the parent, which takes the children down in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := h.Start(cmd); err != nil {
		return nil, err
	}
	go func() {
		defer close(c.ended)
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<26) // the latencies of a million requests
		for lines.Scan() {
			c.hear(lines.Bytes())
		}
	}()
	return c, nil
}

func (c *child) hear(line []byte) {
	var m message
	if json.Unmarshal(line, &m) != nil {
		return // not one of ours: nginx may talk, too
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.Err != "" {
		c.err = fmt.Errorf("%s: %s", c.what, m.Err)
	}
	if m.Ready {
		close(c.ready)
		return
	}
	c.last = m
}

func (c *child) message() message {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// awaitReady waits until the child is ready.
func (c *child) awaitReady(ctx context.Context) error {
	select {
	case <-c.ready:
		return nil
	case <-c.ended:
		return c.failure()
	case <-ctx.Done():
		return errInterrupted
	case <-time.After(startTimeout):
		return fmt.Errorf("%s: not ready after %v", c.what, startTimeout)
	}
}

// stopAll ends children at the same time; those that were never started are nil.
func stopAll(children []*child) error {
	errs := make([]error, len(children))
	var all sync.WaitGroup
	for i, c := range children {
		if c != nil {
			all.Go(func() { errs[i] = c.stop() })
		}
	}
	all.Wait()
	return errors.Join(errs...)
}

func (c *child) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	return fmt.Errorf("%s: ended without a word", c.what)
}

// stop ends the child, with force if it does not end by itself.
func (c *child) stop() error {
	c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.ended:
	case <-time.After(5 * time.Second):
		c.cmd.Process.Kill()
		<-c.ended
	}
	err := c.cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == -1 {
		return nil // by our signal
	}
	if err != nil {
		return fmt.Errorf("%s: %w", c.what, err)
	}
	return nil
}
