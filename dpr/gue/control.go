package gue

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/internal/header"
)

const (
	// controlType is the type of control messages, one of those that the draft leaves
	// to users.
	controlType = 128
	// controlLen is the length of the header of a control message, in bytes.
	controlLen = baseLen + 28
	macLen     = 16
)

// MaxControl is the length of the longest control message, in bytes: with all
// headers it fits the 1280 bytes that IPv6 asks of every link.
const MaxControl = 1280 - header.IPv6Len - header.UDPLen - controlLen

// putControl returns a control message with its header. Its tag covers both outer
// addresses and all of it.
func (r *keyring) putControl(src, dst *header.Addr, seq uint64, message []byte) []byte {
	b := make([]byte, controlLen, controlLen+len(message))
	b[0], b[1], b[baseLen+1] = controlBit|(controlLen-baseLen)/4, controlType, r.send
	be.PutUint64(b[8:], seq)
	b = append(b, message...)
	if r.send != 0 {
		copy(b[16:], r.mac(r.send, src, dst, b))
	}
	return b
}

// mac returns the tag of a control message. What its place holds counts as zeros.
func (r *keyring) mac(key uint8, src, dst *header.Addr, b []byte) []byte {
	m := hmac.New(sha256.New, r.control[key])
	for _, part := range [][]byte{src[:], dst[:], b[:16], make([]byte, macLen), b[controlLen:]} {
		m.Write(part)
	}
	return m.Sum(nil)[:macLen]
}

// openControl verifies a control message and returns what follows its header.
func (r *keyring) openControl(b []byte, src, dst *header.Addr) (seq uint64, message []byte, why Reason) {
	if len(b) < controlLen {
		return 0, nil, Short
	}
	key := b[baseLen+1]
	switch {
	case b[0] != controlBit|(controlLen-baseLen)/4 || b[1] != controlType || b[2]|b[3]|b[4]|b[6]|b[7] != 0:
		return 0, nil, BadHeader
	case r.send == 0: // without keys a tag cannot be verified, and need not be there
	case key == 0:
		return 0, nil, NoTag
	case !r.have[key]:
		return 0, nil, UnknownKey
	case !hmac.Equal(b[16:controlLen], r.mac(key, src, dst, b)):
		return 0, nil, BadTag
	}
	return be.Uint64(b[8:]), b[controlLen:], OK
}

// controls are the control messages of an uplink: the sequence of its own, and how
// far each peer has come.
type controls struct {
	take func(dpr.PeerID, []byte)
	sent atomic.Uint64

	mu   sync.Mutex
	last map[netip.Addr]uint64
}

// begin starts the sequence at the time: that of the next life is higher.
func (c *controls) begin(take func(dpr.PeerID, []byte)) {
	c.take = take
	c.sent.Store(uint64(time.Now().UnixNano()))
	c.last = make(map[netip.Addr]uint64)
}

// next returns a message for the peer, ready to be sent.
func (c *controls) next(ring *keyring, to *peer, message []byte) ([]byte, error) {
	if len(message) > MaxControl {
		return nil, fmt.Errorf("gue: control message of %d bytes: at most %d", len(message), MaxControl)
	}
	return ring.putControl(&to.src, &to.dst, c.sent.Add(1), message), nil
}

// receive judges a datagram that has the C bit, and hands its message on. Each
// sequence number of a peer must be above those before: who recorded a message
// cannot repeat it, and one that was overtaken is as good as lost.
func (c *controls) receive(ring *keyring, from dpr.PeerID, b []byte, src, dst *header.Addr) Reason {
	if c.take == nil {
		return Control
	}
	seq, message, why := ring.openControl(b, src, dst)
	if why != OK {
		return why
	}
	if !c.advance(netip.AddrFrom16(*src), seq) {
		return Replayed
	}
	c.take(from, message)
	return OK
}

func (c *controls) advance(from netip.Addr, seq uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if seq <= c.last[from] {
		return false
	}
	c.last[from] = seq
	return true
}

// forget forgets all but the peers.
func (c *controls) forget(peers *peerTable) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for addr := range c.last {
		if peers.byAddr[addr.Unmap()] == 0 {
			delete(c.last, addr)
		}
	}
}
