package hostnet

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/internal/header"
	"github.com/carom-dpr/carom/internal/segment"
	"github.com/carom-dpr/carom/internal/tunnel"
)

// A RawSender sends whole IP packets the way that packets of the host's own stack
// leave, through its routes and its firewall's output: what the engine has made, such
// as ICMP errors and resets, and what it has decided to transmit. Super-frames are cut
// into their segments, and partial checksums are completed. What exceeds the MTU of the
// interface that it leaves by is fragmented if it may be. It is a [dpr.Writer] and safe
// for concurrent use.
type RawSender struct {
	// TooBig, if not nil, is told of a packet that exceeds the MTU of its way, which is
	// given in bytes, and must not be fragmented. The packet is its own until it
	// returns. It is to be set before the first Write.
	TooBig func(p *dpr.Packet, mtu int)

	v4, v6  *rawSocket // v6 is nil where there is no IPv6
	batches sync.Pool  // of *rawBatch
	dropped atomic.Uint64
}

var _ dpr.Writer = (*RawSender)(nil)

// A rawSocket is a raw socket that sends, in the hands of the runtime's poller, so that
// closing it wakes whoever waits for it, and a UDP socket that sends nothing: it asks
// for the MTU of a path.
type rawSocket struct {
	send, path *os.File
	raw, ask   syscall.RawConn
	asking     sync.Mutex
}

// NewRawSender opens raw sockets in the network namespace of the calling thread.
// It needs CAP_NET_RAW. A host without IPv6 sends IPv4 only.
func NewRawSender() (*RawSender, error) {
	s := new(RawSender)
	s.batches.New = func() any { return s.newBatch() }
	var err error
	if s.v4, err = openRaw(unix.AF_INET, unix.SOL_IP, unix.IP_MTU_DISCOVER); err != nil {
		return nil, err
	}
	s.v6, err = openRaw(unix.AF_INET6, unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER)
	if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// openRaw opens the sockets of a family. Of the path's MTU, as far as the kernel has
// learned it, nothing is held against a packet: it is its sender, and not this host,
// who is to learn it, and the routers on the way tell him. It has to fit the interface.
func openRaw(family, level, discover int) (_ *rawSocket, err error) {
	s := new(rawSocket)
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW)
	if err != nil {
		return nil, fmt.Errorf("hostnet: raw socket (needs CAP_NET_RAW): %w", err)
	}
	s.send = os.NewFile(uintptr(fd), "raw")
	// More than the default needs CAP_NET_ADMIN, and is no loss but of speed.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendBuffer)
	if err := unix.SetsockoptInt(fd, level, discover, unix.IP_PMTUDISC_PROBE); err != nil {
		return nil, fmt.Errorf("hostnet: raw socket: %w", err)
	}
	if fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return nil, fmt.Errorf("hostnet: socket: %w", err)
	}
	s.path = os.NewFile(uintptr(fd), "path")
	if s.raw, err = s.send.SyscallConn(); err != nil {
		return nil, fmt.Errorf("hostnet: raw socket: %w", err)
	}
	if s.ask, err = s.path.SyscallConn(); err != nil {
		return nil, fmt.Errorf("hostnet: socket: %w", err)
	}
	return s, nil
}

// sendBuffer is the socket buffer asked for, in bytes: 10 ms at 3 Gbit/s.
const sendBuffer = 4 << 20

// mtu returns the MTU of the path to where a message goes.
func (s *rawSocket) mtu(to *tunnel.Sockaddr) (int, error) {
	s.asking.Lock()
	defer s.asking.Unlock()
	return tunnel.PathMTU(s.ask, to.Addr())
}

func (s *rawSocket) close() error {
	if s == nil {
		return nil
	}
	var errs []error
	for _, f := range []*os.File{s.send, s.path} {
		if f == nil {
			continue
		}
		if err := f.Close(); !errors.Is(err, os.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Write sends the packets and returns how many the kernel took. It waits for room in
// the socket's buffer; what the kernel refuses is dropped and counted. The only error
// is os.ErrClosed, after Close.
func (s *RawSender) Write(pkts []dpr.Packet) (n int, err error) {
	b := s.batches.Get().(*rawBatch)
	defer s.batches.Put(b)
	b.taken, b.told = 0, nil
	for i := range pkts {
		if err := b.add(&pkts[i]); err != nil {
			return b.taken, err
		}
	}
	err = b.flush()
	return b.taken, err
}

// Dropped returns how many packets and segments could not be sent.
func (s *RawSender) Dropped() uint64 { return s.dropped.Load() }

// Close closes the sockets. It may be called more than once.
func (s *RawSender) Close() error { return errors.Join(s.v4.close(), s.v6.close()) }

// socketFor returns the socket and the address that a packet goes to, nil if there is
// none.
func (s *RawSender) socketFor(b []byte) (to *rawSocket, dst []byte) {
	if header.Version(b) == 4 {
		return s.v4, header.IPv4(b).Dst()
	}
	return s.v6, header.IPv6(b).Dst()
}

// whole returns the packet without what follows it in its buffer.
func whole(p *dpr.Packet) bool {
	b, ok := segment.Whole(p.Bytes())
	p.Len = len(b)
	return ok
}
