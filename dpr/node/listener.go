package node

import (
	"net"
	"sync"
	"sync/atomic"

	"github.com/carom-dpr/carom/dpr"
)

// Wrap counts the connections that ln accepts as ones that this host serves, from
// Accept to Close, where no kernel counts them. Where one does it returns ln.
func (n *Node) Wrap(service string, ln net.Listener) net.Listener {
	sockets, known := n.sockets[service]
	if n.host.Sockets != nil || !known {
		return ln
	}
	return &listener{Listener: ln, sockets: sockets}
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

type conn struct {
	net.Conn
	live *atomic.Int32
	once sync.Once
}

func (c *conn) Close() error {
	c.once.Do(func() { c.live.Add(-1) })
	return c.Conn.Close()
}
