package main

import (
	"bufio"
	"bytes"
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
const roleVariable = "CAROM_BENCH_ROLE"

// A role is what a child process does; one of its fields is set.
type role struct {
	Server *serverRole `json:",omitempty"`
	Router *routerRole `json:",omitempty"`
	Proxy  *proxyRole  `json:",omitempty"`
	Client *clientRole `json:",omitempty"`
	Flood  *floodRole  `json:",omitempty"`
}

// A message is a line that a child prints.
type message struct {
	Ready  bool       `json:",omitempty"`
	Client *clientSum `json:",omitempty"`
	Count  uint64     `json:",omitempty"`
	Err    string     `json:",omitempty"`
}

// play is the main function of a child process.
func play(ctx context.Context, spec string) int {
	var r role
	err := json.Unmarshal([]byte(spec), &r)
	switch {
	case err != nil:
	case r.Server != nil:
		err = r.Server.play(ctx)
	case r.Router != nil:
		err = r.Router.play(ctx)
	case r.Proxy != nil:
		err = r.Proxy.play(ctx)
	case r.Client != nil:
		err = r.Client.play(ctx)
	case r.Flood != nil:
		err = r.Flood.play(ctx)
	}
	if err != nil {
		say(message{Err: err.Error()})
		return 1
	}
	return 0
}

var saying sync.Mutex

func say(m message) {
	saying.Lock()
	defer saying.Unlock()
	json.NewEncoder(os.Stdout).Encode(m) // if this fails the parent is gone
}

// A child is a process in a host of the lab.
type child struct {
	what  string
	cmd   *exec.Cmd
	ready chan struct{} // closed when the child says it is
	ended chan struct{} // closed when its output has ended
	errs  bytes.Buffer  // what it wrote to its standard error; valid when it has ended

	wait func() error // waits for its end; may be called more than once

	mu   sync.Mutex
	last message
}

// startRole starts this program again in a host, with a role.
func startRole(h *lab.Host, what string, r role) (*child, error) {
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
	return startChild(h, what, cmd)
}

func startChild(h *lab.Host, what string, cmd *exec.Cmd) (*child, error) {
	c := &child{what: what + " of " + h.Name(), cmd: cmd, ready: make(chan struct{}), ended: make(chan struct{})}
	c.wait = sync.OnceValue(cmd.Wait)
	cmd.Stderr = &c.errs
	// Ctrl-C is for the parent, which takes the children down.
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
		for lines.Scan() {
			c.hear(lines.Bytes())
		}
	}()
	return c, nil
}

func (c *child) hear(line []byte) {
	var m message
	if json.Unmarshal(line, &m) != nil {
		return // HAProxy and nginx may talk, too
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.Ready {
		close(c.ready)
		return
	}
	c.last = m
}

// awaitReady waits until the child is ready.
func (c *child) awaitReady(ctx context.Context) error {
	select {
	case <-c.ready:
		return nil
	case <-c.ended:
		return c.failure(c.wait())
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(startTimeout):
		return fmt.Errorf("%s: not ready after %v", c.what, startTimeout)
	}
}

// startTimeout is how long a part may take to be ready on a busy machine.
const startTimeout = 30 * time.Second

// result waits for the child's end and returns its last message.
func (c *child) result(ctx context.Context) (message, error) {
	select {
	case <-c.ended:
	case <-ctx.Done():
		return message{}, errors.Join(ctx.Err(), c.stop())
	}
	if err := c.wait(); err != nil {
		return message{}, c.failure(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last, nil
}

func (c *child) failure(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last.Err != "" {
		return fmt.Errorf("%s: %s", c.what, c.last.Err)
	}
	return fmt.Errorf("%s: ended early (%v): %s", c.what, err, bytes.TrimSpace(c.errs.Bytes()))
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
	var exit *exec.ExitError
	if err := c.wait(); err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("%s: %w", c.what, err)
	}
	return nil
}
