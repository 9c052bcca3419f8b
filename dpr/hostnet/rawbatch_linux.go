package hostnet

import (
	"fmt"
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/internal/header"
	"github.com/carom-dpr/carom/internal/nonblock"
	"github.com/carom-dpr/carom/internal/segment"
	"github.com/carom-dpr/carom/internal/tunnel"
)

const (
	rawMessages = 64 // per system call

	// maxHeader is the longest header of a segment: 40 and 256 bytes of IPv6 with the
	// extension headers that the engine accepts, 60 of TCP.
	maxHeader = 40 + 256 + 60
)

// A rawBatch gathers packets and segments for one socket and sends them.
type rawBatch struct {
	s       *RawSender
	via     *rawSocket
	split   segment.Splitter
	msgs    [rawMessages]unix.Mmsghdr
	iovs    [rawMessages][2]unix.Iovec // header and payload
	names   [rawMessages]tunnel.Sockaddr
	heads   [rawMessages][maxHeader]byte
	pkts    [rawMessages]*dpr.Packet // whose message it is
	last    [rawMessages]bool        // the packet ends with the message
	n       int
	at      int         // the message to send next
	taken   int         // packets whose last segment the kernel took
	refused *dpr.Packet // the last one that was too big, until its sender is told
	told    *dpr.Packet // the last one whose sender was
	mtu     int         // of its way
	scratch []byte      // of fragments
	send    func(fd uintptr) bool
}

func (s *RawSender) newBatch() *rawBatch {
	b := &rawBatch{s: s}
	b.send = b.transmit
	return b
}

// add gathers the segments of a packet, and sends those before it if they leave by
// another socket or if there is no room for more.
func (b *rawBatch) add(p *dpr.Packet) error {
	if !whole(p) {
		b.s.dropped.Add(1)
		return nil
	}
	via, dst := b.s.socketFor(p.Bytes())
	if via == nil || !b.split.Start(p) || b.split.HeaderLen() > maxHeader {
		b.s.dropped.Add(1)
		return nil
	}
	if via != b.via {
		if err := b.flush(); err != nil {
			return err
		}
		b.via = via
	}
	keepID(p.Bytes())
	addr, _ := netip.AddrFromSlice(dst)
	name := tunnel.NewSockaddr(netip.AddrPortFrom(addr, 0))
	for b.split.Left() > 0 {
		if b.n == rawMessages {
			if err := b.flush(); err != nil {
				return err
			}
		}
		hdr, payload := b.split.Segment(b.heads[b.n][:])
		b.pkts[b.n], b.last[b.n], b.names[b.n] = p, b.split.Left() == 0, name
		b.message(hdr, payload)
	}
	return nil
}

// keepID gives an IPv4 packet that is in fragments, or may be, an identification if it
// is 0: the kernel would give each fragment another one.
func keepID(b []byte) {
	if ip := header.IPv4(b); header.Version(b) == 4 && ip.ID() == 0 && !ip.DF() {
		ip.SetID(anyID)
		ip.ComputeChecksum()
	}
}

// anyID stands for an identification of 0.
const anyID = 1<<16 - 1

// message adds a message of one packet in two pieces, of which the first may be empty.
func (b *rawBatch) message(pieces ...[]byte) {
	h, iovs := &b.msgs[b.n].Hdr, 0
	for _, piece := range pieces {
		if len(piece) > 0 {
			b.iovs[b.n][iovs].Base = &piece[0]
			b.iovs[b.n][iovs].SetLen(len(piece))
			iovs++
		}
	}
	h.Name, h.Namelen = (*byte)(unsafe.Pointer(&b.names[b.n].Raw)), b.names[b.n].Len
	h.Iov = &b.iovs[b.n][0]
	h.SetIovlen(iovs)
	b.n++
}

// flush sends what was gathered. An error means that the sender is closed.
func (b *rawBatch) flush() error {
	if b.via == nil {
		b.via = b.s.v4 // only to find out whether it is closed
	}
	for b.at = 0; ; {
		if err := b.via.raw.Write(b.send); err != nil {
			b.forget()
			return fmt.Errorf("hostnet: raw sender: %w", os.ErrClosed)
		}
		if b.refused == nil {
			break
		}
		b.tell()
	}
	b.forget()
	return nil
}

// forget drops what was gathered, and the memory that it refers to.
func (b *rawBatch) forget() {
	clear(b.iovs[:b.n])
	clear(b.pkts[:b.n])
	b.n = 0
}

// tell tells of the packet that was too big. Nothing is locked: it may be answered by
// this very sender.
func (b *rawBatch) tell() {
	b.told, b.refused = b.refused, nil
	if b.s.TooBig != nil {
		b.s.TooBig(b.told, b.mtu)
	}
}

// transmit sends what is left, and reports whether that is all, or all until somebody
// is to be told of a packet that is too big.
func (b *rawBatch) transmit(fd uintptr) bool {
	for b.at < b.n && b.refused == nil {
		n, errno := nonblock.Sendmmsg(fd, b.msgs[b.at:b.n])
		switch errno {
		case 0:
			for range n {
				b.done(true)
			}
		case unix.EAGAIN:
			return false
		case unix.EMSGSIZE:
			b.done(b.tooBig(int(fd)))
		default:
			b.done(false)
		}
	}
	return true
}

// done counts the message and goes on to the next one.
func (b *rawBatch) done(sent bool) {
	switch {
	case !sent:
		b.s.dropped.Add(1)
	case b.last[b.at]:
		b.taken++
	}
	b.at++
}

// tooBig sends a packet that is too long for its interface in fragments, or tells that
// it must not be. It reports whether it was sent.
func (b *rawBatch) tooBig(fd int) (sent bool) {
	p := b.pkts[b.at]
	if p == b.told {
		return false // it has several segments
	}
	var h header.Packet
	mtu, err := b.via.mtu(&b.names[b.at])
	if err != nil || h.Parse(p.Bytes()) != header.OK {
		return false
	}
	if !h.DF && p.GSO.Size == 0 {
		return b.fragments(fd, p.Bytes(), mtu)
	}
	b.refused, b.mtu = p, mtu
	return false
}

// fragments sends the fragments of an IPv4 packet, and reports whether all were.
func (b *rawBatch) fragments(fd int, packet header.IPv4, mtu int) bool {
	room := header.FragmentRoom(packet, mtu)
	to := &unix.SockaddrInet4{Addr: [4]byte(packet.Dst())}
	for at := 0; at < len(packet.Payload()); at += room {
		b.scratch = header.AppendFragment(b.scratch[:0], packet, at, room)
		if unix.Sendto(fd, b.scratch, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, to) != nil {
			return false
		}
	}
	return true
}
