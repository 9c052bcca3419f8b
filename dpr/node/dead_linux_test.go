package node_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/loadinfo"
)

// unplug takes a host off the network, as a power cut does.
func (h *host) unplug(t *testing.T) {
	t.Helper()
	link, err := h.Netlink().LinkByName("eth0")
	require.NoError(t, err)
	require.NoError(t, h.Netlink().LinkSetDown(link))
}

func isReset(err error) bool { return errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) }

// A host is cut off in the middle of transfers: the clients of what it served are reset
// once its silence is noticed, though they say nothing, and nobody else notices anything.
func TestDeadHost(t *testing.T) {
	eachFamily(t, func(t *testing.T, v6 bool) {
		t.Parallel() // most of it is waiting
		w := newWorld(t, v6, "a", "b", "c")
		a, b := w.hosts["a"], w.hosts["b"]
		for name, to := range map[string]string{"a": "b", "b": "", "c": "a"} {
			h := w.hosts[name]
			h.serve(t, port)
			h.open(t, h.role(to).config())
		}
		w.await(t)
		served := servedBy(t, w.client, a.at(port), "b")
		idle := servedBy(t, w.client, a.at(port), "b")
		require.NoError(t, idle.echo())
		waiting := servedBy(t, w.client, a.at(port), "b") // says nothing
		others := []*conn{
			servedBy(t, w.client, w.hosts["c"].at(port), "a"), // neither enters nor is served there
			servedBy(t, w.client, w.hosts["c"].at(port), "a"),
		}

		upload := make(chan error, 1)
		require.NoError(t, served.ask(opUpload, 1<<40))
		go func() {
			_, err := io.Copy(served, stream(1<<40))
			upload <- err
		}()
		eventually(t, "the upload is under way", func() bool { return served.info(t).Bytes_acked > 1<<20 })
		b.unplug(t)
		for _, c := range others {
			require.NoError(t, c.echo())
		}
		eventually(t, "b is down", func() bool { return member(a.node, "b").State == loadinfo.Down })
		began := time.Now()
		require.True(t, isReset(idle.echo()))
		t.Logf("reset after %v", time.Since(began))
		require.True(t, isReset(<-upload), "by its next repetition")
		_, err := waiting.Read(make([]byte, 1))
		require.True(t, isReset(err), "%v", err)
		require.NotZero(t, a.node.Status().Engine.Resets)
		for _, c := range others {
			require.NoError(t, c.echo())
		}
	})
}

// A transfer goes on, in rounds of a mebibyte, until it fails or is stopped.
type transfer struct {
	*conn
	moved atomic.Int64
	stop  atomic.Bool
	done  chan error
}

// transfer connects to a host, of which another one serves, and loads up or down.
func (w *world) transfer(t *testing.T, to *host, served string, op byte) *transfer {
	t.Helper()
	x := &transfer{conn: servedBy(t, w.client, to.at(port), served), done: make(chan error, 1)}
	go func() { x.done <- x.run(op) }()
	return x
}

func (x *transfer) run(op byte) error {
	for !x.stop.Load() {
		sum := sha256.New()
		in, out := io.Reader(x), io.Writer(sum)
		if op == opUpload {
			in, out = stream(mebibyte), io.MultiWriter(x, sum)
		}
		if err := x.ask(op, mebibyte); err != nil {
			return err
		}
		if err := x.pace(out, in); err != nil {
			return err
		}
		got := make([]byte, sha256.Size)
		if _, err := io.ReadFull(x, got); err != nil {
			return err
		}
		if !bytes.Equal(sum.Sum(nil), got) {
			return errors.New("what arrived is not what was sent")
		}
	}
	return nil
}

// pace moves a mebibyte so slowly that many transfers leave the machine time.
func (x *transfer) pace(to io.Writer, from io.Reader) error {
	const chunk = 32 << 10
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for range mebibyte / chunk {
		<-tick.C
		n, err := io.CopyN(to, from, chunk)
		x.moved.Add(n)
		if err != nil {
			return err
		}
	}
	return nil
}

// One of five hosts loses its power in the midst of transfers. The clients of what it
// served, and of what was dialled at it and others serve, are reset; nobody else
// notices anything.
func TestPowerCut(t *testing.T) {
	eachFamily(t, func(t *testing.T, v6 bool) {
		w := newWorld(t, v6, "a", "b", "c", "d", "e")
		for name, to := range map[string]string{"a": "b", "b": "c", "c": "d", "d": "", "e": "c"} {
			h := w.hosts[name]
			h.serve(t, port)
			h.open(t, h.role(to).config())
		}
		w.await(t)
		var served, entered, others []*transfer
		for range 2 {
			for _, op := range []byte{opUpload, opDownload} {
				served = append(served, w.transfer(t, w.hosts["a"], "b", op))
				entered = append(entered, w.transfer(t, w.hosts["b"], "c", op))
				others = append(others, w.transfer(t, w.hosts["c"], "d", op),
					w.transfer(t, w.hosts["d"], "d", op), w.transfer(t, w.hosts["e"], "c", op))
			}
		}
		for _, x := range slices.Concat(served, entered, others) {
			eventually(t, "it is under way", func() bool { return x.moved.Load() > 3*mebibyte/2 })
		}
		w.hosts["b"].unplug(t)
		for _, name := range []string{"a", "c", "d", "e"} {
			eventually(t, "b is down", func() bool { return member(w.hosts[name].node, "b").State == loadinfo.Down })
		}
		began := time.Now()
		for _, x := range slices.Concat(served, entered) {
			err := <-x.done
			require.True(t, isReset(err), "%v", err)
		}
		t.Logf("all are reset %v after the host was known to be dead", time.Since(began))
		c := w.hosts["c"].node
		eventually(t, "c has counted them", func() bool { return c.Status().Aborted == uint64(len(entered)) })
		require.Zero(t, w.hosts["d"].node.Status().Aborted)
		for _, x := range others {
			was := x.moved.Load()
			eventually(t, "others go on", func() bool { return x.moved.Load() > was+2*mebibyte })
			x.stop.Store(true)
			require.NoError(t, <-x.done)
		}
	})
}

// So are those whose servers do not know that they were dialled there.
func TestPowerCutWithRewrittenReplies(t *testing.T) {
	eachFamily(t, func(t *testing.T, v6 bool) {
		w := newWorld(t, v6, "a", "b", "c")
		a, b, c := w.hosts["a"], w.hosts["b"], w.hosts["c"]
		for h, to := range map[*host]string{a: "c", b: "c", c: ""} {
			h.serveAt(t, h.at(port))
			cfg := h.role(to).config()
			cfg.Services[0].Reply = dpr.ReplyRewritten
			h.open(t, cfg)
		}
		w.await(t)
		entered := []*transfer{w.transfer(t, b, "c", opUpload), w.transfer(t, b, "c", opDownload)}
		others := []*transfer{w.transfer(t, a, "c", opUpload), w.transfer(t, c, "c", opDownload)}
		for _, x := range slices.Concat(entered, others) {
			eventually(t, "it is under way", func() bool { return x.moved.Load() > mebibyte/2 })
		}
		b.unplug(t)
		for _, x := range entered {
			require.True(t, isReset(<-x.done))
		}
		eventually(t, "c has counted them", func() bool { return c.node.Status().Aborted == uint64(len(entered)) })
		for _, x := range others {
			x.stop.Store(true)
			require.NoError(t, <-x.done)
		}
	})
}

// A router is killed through which connections came that others serve: they are reset,
// and what the peers serve otherwise goes on.
func TestDeadEntryHost(t *testing.T) {
	w := newWorld(t, false, "a", "b", "c")
	a, b, c := w.hosts["a"], w.hosts["b"], w.hosts["c"]
	for _, h := range w.hosts {
		h.serve(t, port)
	}
	b.open(t, b.role("").config())
	c.open(t, c.role("b").config())
	process := a.start(t, a.role("b"))
	entered := servedBy(t, w.client, a.at(port), "b")
	other := servedBy(t, w.client, c.at(port), "b")
	require.NoError(t, entered.echo())
	kill(t, process)
	requireReset(t, entered)
	require.NoError(t, other.echo())
}
