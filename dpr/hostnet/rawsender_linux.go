package hostnet

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr"
)

// A RawSender sends whole IP packets that the engine has made, such as ICMP errors
// and resets, the way that packets of the host's own stack leave: through its
// routes and its firewall's output. It is a [dpr.Writer] and safe for concurrent
// use.
type RawSender struct {
	mu      sync.RWMutex // Close against Write
	v4, v6  int          // sockets, -1 where there is none
	dropped atomic.Uint64
}

var _ dpr.Writer = (*RawSender)(nil)

// NewRawSender opens raw sockets in the network namespace of the calling thread.
// It needs CAP_NET_RAW. A host without IPv6 sends IPv4 only.
func NewRawSender() (*RawSender, error) {
	v4, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW)
	if err != nil {
		return nil, fmt.Errorf("hostnet: raw socket (needs CAP_NET_RAW): %w", err)
	}
	s := &RawSender{v4: v4, v6: -1}
	v6, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return s, nil
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("hostnet: raw IPv6 socket: %w", err), s.Close())
	}
	s.v6 = v6
	return s, nil
}

// Write sends the packets and returns how many the kernel took. It does not block:
// what the kernel does not take is dropped and counted. The only error is
// os.ErrClosed, after Close.
func (s *RawSender) Write(pkts []dpr.Packet) (n int, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.v4 < 0 {
		return 0, fmt.Errorf("hostnet: raw sender: %w", os.ErrClosed)
	}
	for i := range pkts {
		if s.send(pkts[i].Bytes()) {
			n++
		} else {
			s.dropped.Add(1)
		}
	}
	return n, nil
}

func (s *RawSender) send(b []byte) bool {
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		return unix.Sendto(s.v4, b, 0, &unix.SockaddrInet4{Addr: [4]byte(b[16:20])}) == nil
	case len(b) >= 40 && b[0]>>4 == 6 && s.v6 >= 0:
		// An IPPROTO_RAW socket takes the header from the packet in IPv6 too.
		return unix.Sendto(s.v6, b, 0, &unix.SockaddrInet6{Addr: [16]byte(b[24:40])}) == nil
	}
	return false
}

// Dropped returns how many packets could not be sent.
func (s *RawSender) Dropped() uint64 { return s.dropped.Load() }

// Close closes the sockets. It may be called more than once.
func (s *RawSender) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, fd := range []*int{&s.v4, &s.v6} {
		if *fd >= 0 {
			errs = append(errs, unix.Close(*fd))
			*fd = -1
		}
	}
	return errors.Join(errs...)
}
