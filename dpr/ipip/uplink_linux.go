package ipip

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/internal/tunnel"
)

// Uplink is a tunnel to the peers over raw sockets. Its methods may be called by
// several goroutines at once.
type Uplink struct {
	// Queues are what packets are received by: for each address listened on one for
	// IPv4 inside and one for IPv6; none with Config.SendOnly. Each is a
	// [dpr.Device] that sends to all peers.
	Queues []*Queue

	addrs  []netip.Addr // those with sockets
	peers  atomic.Pointer[peerTable]
	count  counters
	send   [][numVia]*socket // by index of Listen; see via
	paths  []*socket         // by index of Listen
	asking sync.Mutex        // one MTU at a time
	closed atomic.Bool
	once   sync.Once

	mu    sync.Mutex // over out
	out   sender
	flush func(fd uintptr) bool // transmit, made once: a closure per call would be garbage
}

// numVia is the number of sockets that send to a family: for IPv4 and IPv6 inside,
// whole and in fragments.
const numVia = 4

// via returns the index of the socket that an inner packet leaves by.
func via(inner6, fragments bool) int {
	i := 0
	if inner6 {
		i = 1
	}
	if fragments {
		i += 2
	}
	return i
}

// protocols are those of IPv4 and IPv6 inside.
var protocols = [2]int{unix.IPPROTO_IPIP, unix.IPPROTO_IPV6}

// Open returns an uplink without peers. On an error nothing is left behind.
func Open(cfg Config) (*Uplink, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	u := &Uplink{}
	u.flush = u.transmit
	u.peers.Store(&peerTable{})
	for _, a := range cfg.Listen {
		if err := u.listen(a.Unmap(), cfg.SendOnly); err != nil {
			return nil, errors.Join(err, u.Close())
		}
	}
	return u, nil
}

// listen opens the sockets of one address.
func (u *Uplink) listen(a netip.Addr, sendOnly bool) error {
	u.addrs = append(u.addrs, a)
	u.send = append(u.send, [numVia]*socket{})
	for i := range numVia {
		s, err := sendSocket(a, protocols[i%2], i < 2)
		if err != nil {
			return err
		}
		u.send[len(u.send)-1][i] = s
	}
	path, err := sendSocket(a, unix.IPPROTO_UDP, true)
	if err != nil {
		return err
	}
	u.paths = append(u.paths, path)
	for i, proto := range protocols {
		if sendOnly {
			break
		}
		s, err := listenSocket(a, proto)
		if err != nil {
			return err
		}
		u.Queues = append(u.Queues, newQueue(u, s, a.Is4(), i == 1))
	}
	return nil
}

// SetPeers replaces the peers, at once for all queues. On an error they stay as they
// were.
func (u *Uplink) SetPeers(peers []Peer) error {
	t, err := newPeerTable(peers, u.addrs)
	if err == nil {
		u.peers.Store(t)
	}
	return err
}

// Stats returns the counters.
func (u *Uplink) Stats() Stats { return u.count.stats() }

// MTU returns the length of the longest packet, in bytes, that fits the tunnel to
// the address as far as the kernel knows now: the MTU of its route, or what routers on
// the path have said since (RFC 1191, RFC 8201), less the overhead. Nobody says when
// that changes, so ask now and then; it costs a few microseconds. The error is that
// there is no route, or that the uplink is closed.
func (u *Uplink) MTU(to netip.Addr) (int, error) {
	to = to.Unmap()
	family := familyOf(to, u.addrs)
	if family < 0 {
		return 0, fmt.Errorf("ipip: no address of the family of %v in Listen to send from", to)
	}
	u.asking.Lock()
	defer u.asking.Unlock()
	mtu, err := tunnel.PathMTU(u.paths[family].raw, to)
	if err != nil {
		return 0, fail(fmt.Sprintf("MTU of the path to %v", to), u.closed.Load(), err)
	}
	return min(mtu-Overhead(to.Is6()), dpr.MaxPacket), nil
}

// Close closes all sockets and wakes whoever reads. It may be called more than once.
func (u *Uplink) Close() (err error) {
	u.once.Do(func() {
		u.closed.Store(true)
		var errs []error
		for _, q := range u.Queues {
			errs = append(errs, q.Close())
		}
		for _, family := range u.send {
			for _, s := range family {
				if s != nil {
					errs = append(errs, s.close())
				}
			}
		}
		for _, s := range u.paths {
			errs = append(errs, s.close())
		}
		err = errors.Join(errs...)
	})
	return err
}

// fail makes an error of the runtime's poller or of the kernel one for the caller.
func fail(op string, closed bool, err error) error {
	if closed {
		err = os.ErrClosed
	}
	return fmt.Errorf("ipip: %s: %w", op, err)
}
