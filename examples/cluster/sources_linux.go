package main

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/internal/header"
)

// A sourceWatch opens connections and sees all SYN-ACKs that come to its host, also
// those that TCP does not take because they come from an address that was not
// dialled.
type sourceWatch struct {
	raw  *net.IPConn
	done chan struct{}

	mu      sync.Mutex
	dialled map[dial]bool
	wrong   int
}

// watchSources watches the answers that come to the calling process's network
// namespace.
func watchSources(ipv6 bool) (*sourceWatch, error) {
	network := "ip4:tcp"
	if ipv6 {
		network = "ip6:tcp"
	}
	raw, err := net.ListenIP(network, nil)
	if err != nil {
		return nil, err
	}
	w := &sourceWatch{raw: raw, done: make(chan struct{}), dialled: make(map[dial]bool)}
	go w.read()
	return w, nil
}

func (w *sourceWatch) read() {
	defer close(w.done)
	buf := make([]byte, header.TCPLen)
	for {
		n, from, err := w.raw.ReadFromIP(buf) // cuts the segment behind its header
		if err != nil {
			return
		}
		if h := header.TCP(buf); n == len(buf) && h.Flags()&(header.SYN|header.ACK) == header.SYN|header.ACK {
			w.answer(from, h.DstPort())
		}
	}
}

func (w *sourceWatch) answer(from *net.IPAddr, port uint16) {
	addr, _ := netip.AddrFromSlice(from.IP)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.dialled[dial{port, addr.Unmap()}] {
		w.wrong++
	}
}

// dial is a dialer. It binds before it connects, so that the port is known before
// the answer comes.
func (w *sourceWatch) dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if cerr := c.Control(func(fd uintptr) { err = w.bind(int(fd), to.Addr()) }); cerr != nil {
			return cerr
		}
		return err
	}}
	return d.DialContext(ctx, "tcp", to.String())
}

func (w *sourceWatch) bind(fd int, to netip.Addr) error {
	var any unix.Sockaddr = &unix.SockaddrInet4{}
	if to.Is6() {
		any = &unix.SockaddrInet6{}
	}
	if err := unix.Bind(fd, any); err != nil {
		return err
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch a := bound.(type) {
	case *unix.SockaddrInet4:
		w.dialled[dial{uint16(a.Port), to}] = true
	case *unix.SockaddrInet6:
		w.dialled[dial{uint16(a.Port), to}] = true
	}
	return nil
}

// strange returns how many answers came from an address that was not dialled.
func (w *sourceWatch) strange() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.wrong
}

func (w *sourceWatch) close() {
	w.raw.Close()
	<-w.done
}
