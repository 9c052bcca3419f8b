package gue

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

// Uplink is a tunnel to the peers over UDP sockets.
type Uplink struct {
	// Queues are the receive queues: Config.Queues for each address listened on,
	// all queues of the first address first. Each is a [dpr.Device] of its own, and
	// each sends to all peers, of both families.
	Queues []*Queue

	cfg     Config
	codec   *Codec
	peers   atomic.Pointer[peerTable]
	count   counters
	control controls
	sources [][]*socket // by index of Listen; see source
	paths   []*socket   // by index of Listen; see MTU
	asking  sync.Mutex  // one MTU at a time
	noGSO   atomic.Bool // the kernel refused UDP_SEGMENT
	open    atomic.Int32
}

// Open returns an uplink without peers. On an error nothing is left behind.
func Open(cfg Config) (*Uplink, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	addrs := cfg.Listen
	cfg.Listen = nil // grows as the sockets do
	u := &Uplink{cfg: cfg}
	u.control.begin(cfg.Control)
	u.peers.Store(&peerTable{})
	u.noGSO.Store(cfg.NoOffload)
	if u.codec, err = NewCodec(cfg.Keys...); err != nil {
		return nil, err
	}
	if len(addrs) == 0 {
		err = u.listenEverywhere()
	} else {
		err = u.listen(addrs)
	}
	if err != nil {
		u.release()
		return nil, err
	}
	u.open.Store(int32(len(u.Queues)))
	return u, nil
}

// listenEverywhere listens on all addresses of both families, or of IPv4 alone on
// a host without IPv6.
func (u *Uplink) listenEverywhere() error {
	v4 := netip.AddrPortFrom(netip.IPv4Unspecified(), Port)
	v6 := netip.AddrPortFrom(netip.IPv6Unspecified(), Port)
	if err := u.listen([]netip.AddrPort{v4}); err != nil {
		return err
	}
	err := u.listen([]netip.AddrPort{v6})
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL) {
		return nil
	}
	return err
}

// listen adds the sockets of addresses. After an error the uplink is to be
// released.
func (u *Uplink) listen(addrs []netip.AddrPort) error {
	for _, a := range addrs {
		for range u.cfg.Queues {
			s, err := listenSocket(a, &u.cfg)
			if err != nil {
				return err
			}
			u.Queues = append(u.Queues, newQueue(u, s, a.Addr()))
		}
		u.sources = append(u.sources, nil)
		family := &u.sources[len(u.sources)-1]
		for k := range 2 * u.cfg.Sources {
			s, err := sourceSocket(a.Addr(), k < u.cfg.Sources)
			if err != nil {
				return err
			}
			*family = append(*family, s)
		}
		s, err := sourceSocket(a.Addr(), true)
		if err != nil {
			return err
		}
		u.paths = append(u.paths, s)
	}
	u.cfg.Listen = append(u.cfg.Listen, addrs...)
	return nil
}

// source returns the socket to send an inner packet from, by its flow. The second
// half of a family's are those whose packets may be fragmented.
func (u *Uplink) source(to *peer, inner []byte) *socket {
	k := int(flowHash(inner) % uint32(u.cfg.Sources))
	if tunnel.MayFragment(inner, to.mtu) {
		k += u.cfg.Sources
	}
	return u.sources[to.family][k]
}

// SetPeers replaces the peers, at once for all queues. On an error they stay as
// they were.
func (u *Uplink) SetPeers(peers []Peer) error {
	t, err := newPeerTable(peers, u.cfg.Listen)
	if err == nil {
		u.peers.Store(t)
		u.control.forget(t)
	}
	return err
}

// SetKeys replaces the keys, at once for all queues. An uplink that was opened
// with keys must keep some, and one without has no use for any, since they change
// the overhead.
func (u *Uplink) SetKeys(keys ...Key) error {
	if (len(keys) > 0) != u.codec.Variant0() {
		return fmt.Errorf("gue: %d keys: whether there are keys is decided by Open", len(keys))
	}
	return u.codec.SetKeys(keys...)
}

// Stats returns the counters.
func (u *Uplink) Stats() Stats { return u.count.stats() }

// Overhead is what the uplink adds to a packet to the address, in bytes.
func (u *Uplink) Overhead(to netip.Addr) int { return Overhead(!to.Unmap().Is4(), u.codec.Variant0()) }

// MTU returns the length of the longest packet, in bytes, that fits the tunnel to
// the address as far as the kernel knows now: the MTU of its route, or what routers
// on the path have said since (RFC 1191, RFC 8201), less the overhead. Nobody says
// when that changes, so ask now and then; it costs a few microseconds. The
// error is that there is no route, or that the uplink is closed.
func (u *Uplink) MTU(to netip.Addr) (int, error) {
	to = to.Unmap()
	family := familyOf(to, u.cfg.Listen)
	if family < 0 {
		return 0, fmt.Errorf("gue: no address of the family of %v in Listen to send from", to)
	}
	u.asking.Lock()
	defer u.asking.Unlock()
	mtu, err := tunnel.PathMTU(u.paths[family].raw, to)
	if err != nil {
		return 0, fail(fmt.Sprintf("MTU of the path to %v", to), u.open.Load() == 0, err)
	}
	return min(mtu-u.Overhead(to), dpr.MaxPacket), nil
}

// Close closes all queues.
func (u *Uplink) Close() error {
	var errs []error
	for _, q := range u.Queues {
		errs = append(errs, q.Close())
	}
	return errors.Join(errs...)
}

// release closes all sockets: of a failed Open, or when the last queue closes.
func (u *Uplink) release() {
	for _, q := range u.Queues {
		q.sock.file.Close()
	}
	for _, family := range append(u.sources, u.paths) {
		for _, s := range family {
			s.file.Close()
		}
	}
}

// fail makes an error of the runtime's poller or of the kernel one for the caller.
func fail(op string, closed bool, err error) error {
	if closed {
		err = os.ErrClosed
	}
	return fmt.Errorf("gue: %s: %w", op, err)
}

var _ dpr.Device = (*Queue)(nil)
