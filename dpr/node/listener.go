package node

import (
	"net"
	"sync"
	"sync/atomic"
)

// Wrap counts the connections that ln accepts as ones that this host serves, from
// Accept to Close, where no kernel counts them. Where one does it returns ln.
func (n *Node) Wrap(service string, ln net.Listener) net.Listener {
	if n.host.Conns != nil {
		return ln
	}
	return &listener{Listener: ln, conns: n.board.Counter(service)}
}

type listener struct {
	net.Listener
	conns *atomic.Int32
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.conns.Add(1)
	return &conn{Conn: c, conns: l.conns}, nil
}

type conn struct {
	net.Conn
	conns *atomic.Int32
	once  sync.Once
}

func (c *conn) Close() error {
	c.once.Do(func() { c.conns.Add(-1) })
	return c.Conn.Close()
}
