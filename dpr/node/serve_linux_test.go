package node_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/internal/lab"
)

// The protocol between the tests' clients and servers: a server says its name, one
// byte, as soon as it has accepted. A client then asks again and again: an
// operation, one byte, and a size of eight.
const (
	opDownload = 'D' // size bytes of stream follow, then their SHA-256 as sent
	opUpload   = 'U' // the client sends size bytes, the server their SHA-256 as received
	opEcho     = 'E' // the client sends size bytes, the server the same
	nameLen    = 1
)

// stream returns size bytes that no two places of are alike.
func stream(size int64) io.Reader {
	return io.LimitReader(rand.NewChaCha8([32]byte{1, 2, 3}), size)
}

// A server serves a port of a host.
type server struct {
	listener net.Listener
	accepted atomic.Int64
	stalled  atomic.Int64 // the longest time that an upload stood still, in ns
	wg       sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool // those that are open
}

// serve starts a server on a TCP port of all the host's addresses, until the test
// ends.
func (h *host) serve(t *testing.T, port uint16) *server {
	t.Helper()
	any := netip.IPv4Unspecified()
	if h.addr.Is6() {
		any = netip.IPv6Unspecified()
	}
	return h.serveAt(t, netip.AddrPortFrom(any, port))
}

// serveAt starts a server at an address of the host, until the test ends.
func (h *host) serveAt(t *testing.T, at netip.AddrPort) *server {
	t.Helper()
	ln, err := h.Listen("tcp", at.String())
	require.NoError(t, err)
	s := &server{listener: ln, conns: make(map[net.Conn]bool)}
	s.wg.Go(func() { s.run(h.Name()) })
	t.Cleanup(s.close)
	return s
}

func (s *server) run(name string) {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.accepted.Add(1)
		s.mu.Lock()
		s.conns[c] = true
		s.mu.Unlock()
		s.wg.Go(func() {
			_ = s.answer(c, name)
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.conns, c)
			c.Close()
		})
	}
}

// close ends the server and its connections.
func (s *server) close() {
	s.listener.Close()
	s.mu.Lock()
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// answer serves one connection until its client ends it.
func (s *server) answer(c net.Conn, name string) error {
	if _, err := io.WriteString(c, name[:nameLen]); err != nil {
		return err
	}
	for {
		var request [9]byte
		if _, err := io.ReadFull(c, request[:]); err != nil {
			return err
		}
		size := int64(binary.BigEndian.Uint64(request[1:]))
		sum := sha256.New()
		var err error
		switch request[0] {
		case opDownload:
			_, err = io.Copy(io.MultiWriter(c, sum), stream(size))
		case opUpload:
			in := watch(c)
			_, err = io.CopyN(sum, in, size)
			s.stalled.Store(max(s.stalled.Load(), int64(in.longest)))
		case opEcho:
			_, err = io.CopyN(c, c, size)
			sum = nil
		}
		if err == nil && sum != nil {
			_, err = c.Write(sum.Sum(nil))
		}
		if err != nil {
			return err
		}
	}
}

// conn is a client's connection.
type conn struct {
	*net.TCPConn
	served string // the name of the host that serves it
}

// dial connects and hears who serves.
func dial(from *lab.Host, to netip.AddrPort) (*conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c, err := from.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	var name [nameLen]byte
	err = c.SetDeadline(time.Now().Add(5 * limit)) // a transfer under the race detector takes its time
	if err == nil {
		_, err = io.ReadFull(c, name[:])
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &conn{c.(*net.TCPConn), string(name[:])}, nil
}

// mustDial is a dial that succeeds. The connection lasts until the test ends.
func mustDial(t *testing.T, from *lab.Host, to netip.AddrPort) *conn {
	t.Helper()
	c, err := dial(from, to)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// servedBy dials until a host of that name serves, and returns that connection.
func servedBy(t *testing.T, from *lab.Host, to netip.AddrPort, name string) *conn {
	t.Helper()
	var found *conn
	eventually(t, "served by "+name, func() bool {
		c, err := dial(from, to)
		if err != nil {
			return false
		}
		if c.served == name {
			found = c
			return true
		}
		c.Close()
		return false
	})
	t.Cleanup(func() { found.Close() })
	return found
}

func (c *conn) ask(op byte, size int64) error {
	_, err := c.Write(binary.BigEndian.AppendUint64([]byte{op}, uint64(size)))
	return err
}

// download asks for size bytes and requires them to be those that were sent.
func (c *conn) download(t *testing.T, size int64) {
	t.Helper()
	require.NoError(t, c.ask(opDownload, size))
	sum := sha256.New()
	_, err := io.CopyN(sum, c, size)
	require.NoError(t, err)
	c.requireSum(t, sum.Sum(nil))
}

// upload sends size bytes and requires them to be those that were received.
func (c *conn) upload(t *testing.T, size int64) {
	t.Helper()
	require.NoError(t, c.ask(opUpload, size))
	sum := sha256.New()
	_, err := io.Copy(io.MultiWriter(c, sum), stream(size))
	require.NoError(t, err)
	c.requireSum(t, sum.Sum(nil))
}

func (c *conn) requireSum(t *testing.T, want []byte) {
	t.Helper()
	got := make([]byte, sha256.Size)
	_, err := io.ReadFull(c, got)
	require.NoError(t, err)
	require.Equal(t, want, got, "SHA-256")
}

// echo sends a little and returns an error unless it comes back.
func (c *conn) echo() error {
	want := []byte("there and back")
	if err := c.ask(opEcho, int64(len(want))); err != nil {
		return err
	}
	if _, err := c.Write(want); err != nil {
		return err
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if !bytes.Equal(want, got) {
		return errors.New("echo is not what was sent")
	}
	return nil
}

// info is what the client's kernel knows of the connection.
func (c *conn) info(t *testing.T) *unix.TCPInfo {
	t.Helper()
	raw, err := c.SyscallConn()
	require.NoError(t, err)
	var info *unix.TCPInfo
	var inner error
	require.NoError(t, raw.Control(func(fd uintptr) {
		info, inner = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	}))
	require.NoError(t, inner)
	return info
}

func (c *conn) local() netip.AddrPort { return c.LocalAddr().(*net.TCPAddr).AddrPort() }

// readNetwork returns a file of /proc/net as the host has it.
func readNetwork(t *testing.T, h *lab.Host, name string) string {
	t.Helper()
	var b []byte
	require.NoError(t, h.Do(func() (err error) {
		b, err = os.ReadFile("/proc/thread-self/net/" + name)
		return err
	}))
	return string(b)
}

// A watched reader knows for how long it has stood still.
type watched struct {
	io.Reader
	last    time.Time
	longest time.Duration
}

func watch(r io.Reader) *watched { return &watched{Reader: r, last: time.Now()} }

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.Reader.Read(b)
	now := time.Now()
	w.longest, w.last = max(w.longest, now.Sub(w.last)), now
	return n, err
}
