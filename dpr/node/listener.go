package node

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"github.com/carom-dpr/carom/dpr"
)

// Wrap counts the connections that ln accepts as ones that this host serves, from
// Accept to Close, where the kernel does not count them as they come and go: on
// systems without Open, and on a Linux host that can only poll its sockets. Where
// the kernel counts, Wrap returns ln.
//
// ln must listen on the service's ports at all addresses of the host, the wildcard
// address of net.Listen("tcp", ":80"): connections that peers hand over were dialled
// at theirs. All listeners of a service should be wrapped, before they accept. If there
// is no TCP service of the name, Wrap logs that and returns ln.
func (n *Node) Wrap(service string, ln net.Listener) net.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	sockets, known := n.sockets[service]
	switch {
	case !known:
		n.cfg.Logger.Warn("connections of a listener are not counted: no TCP service has this name, wrap it as one of Config.Services",
			"service", service)
		return ln
	case n.kernelCounts(service):
		return ln
	case sockets.Opened == nil: // the kernel's polled count gives way
		sockets = dpr.Sockets{Live: new(atomic.Int32), Opened: new(atomic.Uint32)}
		if n.engine.SetSockets(service, sockets) != nil {
			return ln // the service is gone
		}
		n.sockets[service] = sockets
	}
	return &listener{Listener: ln, sockets: sockets}
}

// kernelCounts reports whether the kernel counts the service's connections as they
// come and go.
func (n *Node) kernelCounts(service string) bool {
	return n.host.Sockets != nil && n.host.Sockets(service).Opened != nil
}

type listener struct {
	net.Listener
	sockets dpr.Sockets
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.sockets.Live.Add(1)
	l.sockets.Opened.Add(1)
	return &conn{Conn: c, live: l.sockets.Live}, nil
}

// A conn has those methods of a *net.TCPConn that servers look for: without ReadFrom
// files would be copied through user space, without CloseWrite net/http would risk
// that a reset overtakes its last answer.
type conn struct {
	net.Conn
	live *atomic.Int32
	once sync.Once
}

func (c *conn) Close() error {
	c.once.Do(func() { c.live.Add(-1) })
	return c.Conn.Close()
}

func (c *conn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(c.Conn, r) }

func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
