package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/carom-dpr/carom/internal/lab"
)

// A world is a network with a client, an entry host and a server, and one way to get
// from the one to the other. All worlds stand at once and are idle but one.
type world struct {
	name      string
	ctx       context.Context
	lab       *lab.Lab
	dir       string
	client    *host
	entry     *host
	server    *host
	flooder   *host      // where there is one
	target    netip.Addr // what clients dial
	answers   byte       // the server that has to answer
	forwarder []*child
	others    []*child
	noUDP     bool
	aside     bool
}

type host struct{ *lab.Host }

// A forwarder is a way from the client to the server.
type forwarder struct {
	name string
	// missing says what this machine lacks for it, "" if nothing.
	missing func() string
	// set makes it; it may change the world's target.
	set   func(w *world) error
	noUDP bool
	// aside keeps it out of the table: it is for rows of its own.
	aside bool
}

// The servers' names.
const (
	atServer = 's'
	atEntry  = 'e'
)

// newWorld builds a world and waits until the client reaches a server through the
// forwarder. If it fails nothing is left behind.
func newWorld(ctx context.Context, f *forwarder) (*world, error) {
	dir, err := os.MkdirTemp("", "carom-bench-")
	if err != nil {
		return nil, err
	}
	w := &world{name: f.name, ctx: ctx, dir: dir, answers: atServer, noUDP: f.noUDP}
	if err := w.build(f); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", f.name, err), w.close())
	}
	return w, nil
}

func (w *world) build(f *forwarder) (err error) {
	if w.lab, err = lab.New(lab.Config{}); err != nil {
		return err
	}
	for i, h := range []**host{&w.client, &w.entry, &w.server} {
		if *h, err = w.addHost([]string{"client", "entry", "server"}[i], i+1); err != nil {
			return err
		}
	}
	w.target = w.entry.Addr4()
	if err := w.serve(w.server, atServer); err != nil {
		return err
	}
	if err := f.set(w); err != nil {
		return err
	}
	return w.awaitReachable()
}

func (w *world) addHost(name string, i int) (*host, error) {
	h, err := w.lab.AddHost(name, netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, 0, byte(i)}), 24))
	if err != nil {
		return nil, err
	}
	for _, s := range [][2]string{
		// One connection per request needs a port each.
		{"net.ipv4.ip_local_port_range", "1024 65535"},
		{"net.ipv4.tcp_tw_reuse", "1"},
		{"net.core.somaxconn", "4096"},
		// The table of paths and their round-trip times would carry over from cell to cell.
		{"net.ipv4.tcp_no_metrics_save", "1"},
		{"net.ipv4.conf.all.send_redirects", "0"},
		{"net.ipv4.conf.eth0.send_redirects", "0"},
	} {
		if err := h.SetSysctl(s[0], s[1]); err != nil {
			return nil, err
		}
	}
	return &host{h}, nil
}

func (w *world) serve(h *host, name byte) error {
	c, err := startRole(h.Host, "server", role{Server: &serverRole{Name: name}})
	if err != nil {
		return err
	}
	w.others = append(w.others, c)
	return c.awaitReady(w.ctx)
}

// awaitReachable waits until the right server answers the client.
func (w *world) awaitReachable() error {
	deadline := time.Now().Add(startTimeout)
	for {
		got, err := w.ask(w.client, w.target, cmdWho, 1)
		if err == nil && got[0] == w.answers {
			return nil
		}
		for _, c := range w.forwarder {
			select {
			case <-c.ended:
				return c.failure(c.wait())
			default:
			}
		}
		select {
		case <-w.ctx.Done():
			return w.ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the client does not reach the server: %v, answer %q", err, got)
		}
	}
}

// ask sends a command to a bulk server and returns the n bytes of its answer.
func (w *world) ask(from *host, to netip.Addr, cmd byte, n int) ([]byte, error) {
	ctx, cancel := context.WithTimeout(w.ctx, 5*time.Second)
	defer cancel()
	c, err := from.DialContext(ctx, "tcp", netip.AddrPortFrom(to, bulkPort).String())
	if err != nil {
		return nil, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := c.Write([]byte{cmd}); err != nil {
		return nil, err
	}
	answer := make([]byte, n)
	_, err = io.ReadFull(c, answer)
	return answer, err
}

// answering returns the host whose server answers the client.
func (w *world) answering() *host {
	if w.answers == atEntry {
		return w.entry
	}
	return w.server
}

// limit bounds what leaves the client and the server to a rate in bytes a second, as
// a link would, and returns how to undo it.
func (w *world) limit(rate uint64) (undo func() error, err error) {
	var undos []func() error
	undo = func() error {
		var errs []error
		for _, u := range undos {
			errs = append(errs, u())
		}
		return errors.Join(errs...)
	}
	for _, h := range []*host{w.client, w.answering()} {
		link, err := h.Netlink().LinkByName("eth0")
		if err != nil {
			return undo, errors.Join(err, undo())
		}
		q := &netlink.Tbf{
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
			Rate:       rate,
			Buffer:     netlink.Xmittime(rate, tbfBurst),
			Limit:      tbfLimit,
		}
		if err := h.Netlink().QdiscAdd(q); err != nil {
			return undo, errors.Join(fmt.Errorf("tbf: %w", err), undo())
		}
		undos = append(undos, func() error { return h.Netlink().QdiscDel(q) })
	}
	return undo, nil
}

const (
	// tbfBurst lets a super-frame pass whole, in bytes.
	tbfBurst = 128 << 10
	// tbfLimit is the queue before the link, in bytes: 8 ms at 1 Gbit/s.
	tbfLimit = 1 << 20
)

// close ends all processes, the forwarder's first so that routers undo their wiring,
// and removes all that was made.
func (w *world) close() error {
	var errs []error
	for _, c := range append(w.forwarder, w.others...) {
		errs = append(errs, c.stop())
	}
	if w.lab != nil {
		errs = append(errs, w.lab.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(w.dir))...)
}
