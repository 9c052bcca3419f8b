package gossip

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/carom-dpr/carom/loadinfo"
)

// udpOverhead is what IPv4 and UDP add to a payload, in bytes.
const udpOverhead = 28

// maxReadErrors is how many reads may fail in a row before a socket counts as
// broken. Single failures come from ICMP errors on some systems.
const maxReadErrors = 100

// transport is what memberlist sends and receives by: the sockets of the
// configuration, a budget of bytes, and a filter for what could cost memory.
type transport struct {
	cfg     *Config
	ring    *memberlist.Keyring
	budget  *budget
	count   func(f func(s *loadinfo.Stats))
	refused func(err error, from string)
	broken  func(err error) // a socket is
	packets chan *memberlist.Packet
	streams chan net.Conn
	places  chan struct{}   // one in it for each stream that a peer opened
	hosts   int             // at most in the cluster
	ctx     context.Context // done when it is shut down
	cancel  context.CancelFunc
	dialing context.Context // done before that, when nobody need be reached any more
	hangUp  context.CancelFunc
	readers sync.WaitGroup
}

// receiveQueue is how many datagrams may wait for memberlist, some MB.
const receiveQueue = 1024

func newTransport(g *Gossip, broken func(error)) *transport {
	t := &transport{
		cfg: &g.cfg, ring: g.ring, budget: g.budget, count: g.count, refused: g.refused, broken: broken,
		packets: make(chan *memberlist.Packet, receiveQueue),
		streams: make(chan net.Conn),
		places:  make(chan struct{}, maxStreams),
		hosts:   g.cfg.Board.MaxHosts(),
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.dialing, t.hangUp = context.WithCancel(t.ctx)
	t.readers.Go(t.receive)
	t.readers.Go(t.accept)
	return t
}

func (t *transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	a := t.cfg.Advertise
	return a.Addr().AsSlice(), int(a.Port()), nil
}

func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }
func (t *transport) StreamCh() <-chan net.Conn           { return t.streams }

func (t *transport) WriteTo(b []byte, addr string) (time.Time, error) {
	return t.WriteToAddress(b, memberlist.Address{Addr: addr})
}

func (t *transport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	to, err := netip.ParseAddrPort(a.Addr)
	if err != nil {
		return time.Time{}, err
	}
	if !t.encrypted() {
		b = seal(b)
	}
	now := time.Now()
	t.budget.spend(len(b)+udpOverhead, now)
	_, err = t.cfg.Conn.WriteToUDPAddrPort(b, to)
	t.count(func(s *loadinfo.Stats) {
		if err != nil {
			s.SendErrors++
			return
		}
		s.Sent++
		s.SentBytes += uint64(len(b))
	})
	return now, err
}

func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return t.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

func (t *transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	to, err := netip.ParseAddrPort(a.Addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(t.dialing, timeout)
	defer cancel()
	conn, err := t.cfg.Dial(ctx, to)
	if err != nil {
		return nil, err
	}
	return &stream{Conn: conn, t: t, release: func() {}}, nil
}

// encrypted says whether datagrams are, by now. What is encrypted cannot be looked
// into, but its sender has a key.
func (t *transport) encrypted() bool { return len(t.ring.GetKeys()) > 0 }

// Shutdown closes the sockets and returns when nobody reads them any more.
func (t *transport) Shutdown() error {
	t.cancel()
	err := errors.Join(t.cfg.Conn.Close(), t.cfg.Listener.Close())
	t.readers.Wait()
	return err
}

// receive reads datagrams until the socket is closed or broken.
func (t *transport) receive() {
	buf := make([]byte, 65536) // the largest datagram
	for failed := 0; t.ctx.Err() == nil; {
		n, from, err := t.cfg.Conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			failed++
			if t.failed(err, failed) {
				return
			}
			continue
		}
		failed = 0
		if err := t.admit(buf[:n]); err != nil {
			t.refused(err, from.String())
			continue
		}
		packet := &memberlist.Packet{
			Buf: append([]byte(nil), buf[:n]...), From: net.UDPAddrFromAddrPort(from), Timestamp: time.Now(),
		}
		select {
		case t.packets <- packet:
		case <-t.ctx.Done():
		}
	}
}

// accept takes streams until the listener is closed or broken.
func (t *transport) accept() {
	for failed := 0; t.place(); {
		conn, err := t.cfg.Listener.Accept()
		if err != nil {
			<-t.places
			failed++
			if t.failed(err, failed) {
				return
			}
			continue
		}
		failed = 0
		s := &stream{Conn: conn, t: t, release: sync.OnceFunc(func() { <-t.places })}
		select {
		case t.streams <- s:
		case <-t.ctx.Done():
			s.Close()
		}
	}
}

// place waits until there is one for another stream, and reports whether there is.
func (t *transport) place() bool {
	select {
	case t.places <- struct{}{}:
		return true
	case <-t.ctx.Done():
		return false
	}
}

// failed counts an error of a socket and reports whether to give up. An accept may
// fail for want of file descriptors, so it waits a little longer each time.
func (t *transport) failed(err error, times int) bool {
	if t.ctx.Err() != nil {
		return true
	}
	if errors.Is(err, net.ErrClosed) || times > maxReadErrors {
		t.broken(fmt.Errorf("%w: %w", errSocket, err))
		return true
	}
	t.count(func(s *loadinfo.Stats) { s.ReadErrors++ })
	select {
	case <-time.After(time.Duration(times) * time.Millisecond):
	case <-t.ctx.Done():
	}
	return false
}

// The types of memberlist's messages that contain others, or what is not its own, and
// of those that it sends by streams.
const (
	pingMsg     = 0
	ackMsg      = 2
	pushPullMsg = 6
	compoundMsg = 7
	userMsg     = 8
	compressMsg = 9
	encryptMsg  = 10
	crcMsg      = 12
	errMsg      = 13
	labelMsg    = 244
)

// gcm is the version of memberlist's encryption that this package sends. The other
// one, 0, pads; and since the version is not authenticated, a recorded message with
// its version changed to 0 decrypts and makes memberlist 0.7.0 panic.
const gcm = 1

// admit says why memberlist must not see a datagram: it is damaged, or could cost
// memory, or is not encrypted as it should be.
func (t *transport) admit(b []byte) error {
	body := b[behindLabel(b):]
	switch {
	case len(body) == 0:
		return loadinfo.ErrTruncated
	case t.encrypted() && body[0] != gcm:
		return loadinfo.ErrKey
	case !t.encrypted() && !(sealed(b) && tame(b)):
		return loadinfo.ErrMalformed
	}
	return nil
}

// behindLabel returns where a datagram goes on behind the cluster's name, if it
// begins with it.
func behindLabel(b []byte) int {
	if len(b) >= 2 && b[0] == labelMsg {
		return min(2+int(b[1]), len(b))
	}
	return 0
}

// seal gives a plain datagram the CRC that memberlist leaves out of probes and their
// answers, on which news of members travels too.
func seal(b []byte) []byte {
	at := behindLabel(b)
	body := b[at:]
	if len(body) > 0 && body[0] == crcMsg {
		return b
	}
	out := append(make([]byte, 0, len(b)+crcLen), b[:at]...)
	out = binary.BigEndian.AppendUint32(append(out, crcMsg), crc32.ChecksumIEEE(body))
	return append(out, body...)
}

// sealed reports whether a plain datagram has a CRC. memberlist checks it.
func sealed(b []byte) bool {
	body := b[behindLabel(b):]
	return len(body) > crcLen && body[0] == crcMsg
}

// tame reports whether a plain message costs no more memory than it has bytes, or
// little more. It has no compressed part, of which this package never sends one and
// which makes up to 40 MB of a kilobyte, and states no length beyond its end.
func tame(b []byte) bool {
	b = b[behindLabel(b):]
	for len(b) > 0 {
		switch b[0] {
		case compressMsg:
			return false
		case crcMsg:
			b = b[min(crcLen, len(b)):]
		case compoundMsg:
			return tameParts(b[1:])
		case userMsg:
			return true // a report
		default:
			return bounded(b[1:])
		}
	}
	return true
}

// tameParts looks into a compound: the number of parts, their lengths, the parts.
// memberlist refuses one that is cut, so what is missing here does no harm.
func tameParts(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	lengths, parts := b[1:], b[1:]
	n := min(int(b[0]), len(lengths)/2)
	parts = parts[2*n:]
	for i := range n {
		size := min(int(binary.BigEndian.Uint16(lengths[2*i:])), len(parts))
		if !tame(parts[:size]) {
			return false
		}
		parts = parts[size:]
	}
	return true
}
