package confirm

import (
	"encoding/binary"
	"net/netip"

	"github.com/carom-dpr/carom/dpr"
)

const (
	kindQuestion = 1
	kindAnswer   = 2
	headLen      = 1 + 8
	maxGroup     = 255
)

var be = binary.BigEndian

// appendHead appends what questions and answers begin with.
func appendHead(b []byte, kind byte, id uint64) []byte { return be.AppendUint64(append(b, kind), id) }

// appendAddr appends an address, of 4 or 16 bytes, and a port.
func appendAddr(b []byte, a netip.AddrPort) []byte {
	b = append(b, a.Addr().AsSlice()...)
	return be.AppendUint16(b, a.Port())
}

// appendQuestion encodes as many of the flows as fit max bytes, and returns how many
// those are: at least one, if any message is that long. All are of one peer.
func appendQuestion(b []byte, id uint64, flows []dpr.Question, max int) (message []byte, n int) {
	b = appendHead(b, kindQuestion, id)
	count := -1 // where the number of the open group's clients lies
	for i := range flows {
		f := &flows[i]
		size := f.Client.Addr().BitLen() / 8
		begin := count < 0 || f.Dialled != flows[i-1].Dialled || b[count] == maxGroup
		need := size + 2
		if begin {
			need += 1 + size + 2 + 1
		}
		if len(b)+need > max {
			return b, i
		}
		if begin {
			b = appendAddr(append(b, byte(size)), f.Dialled)
			count = len(b)
			b = append(b, 0)
		}
		b = appendAddr(b, f.Client)
		b[count]++
	}
	return b, len(flows)
}

// A reader takes a message apart. After an error, which is that the message is too
// short or wrong, all it returns is zero.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if r.bad || n > len(r.b) {
		r.bad = true
		return make([]byte, n)
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) addr(size int) netip.AddrPort {
	a, _ := netip.AddrFromSlice(r.take(size))
	return netip.AddrPortFrom(a, be.Uint16(r.take(2)))
}

// parseQuestion appends the flows of a question, behind its head, to list.
func parseQuestion(b []byte, list []dpr.Question) (flows []dpr.Question, ok bool) {
	r := reader{b: b}
	for len(r.b) > 0 && !r.bad {
		size := int(r.take(1)[0])
		if size != 4 && size != 16 {
			return nil, false
		}
		dialled := r.addr(size)
		for range r.take(1)[0] {
			list = append(list, dpr.Question{Client: r.addr(size), Dialled: dialled})
			if r.bad {
				break
			}
		}
	}
	if r.bad {
		return nil, false
	}
	return list, true
}

// appendLives appends an answer behind its head.
func appendLives(b []byte, lives []dpr.Life) []byte {
	at := len(b)
	b = append(b, make([]byte, (len(lives)+3)/4)...)
	for i, life := range lives {
		b[at+i/4] |= byte(life&3) << (i % 4 * 2)
	}
	return b
}

// parseLives fills lives from an answer behind its head; it fails if they are not as
// many.
func parseLives(b []byte, lives []dpr.Life) (ok bool) {
	if len(b) != (len(lives)+3)/4 {
		return false
	}
	for i := range lives {
		lives[i] = dpr.Life(b[i/4] >> (i % 4 * 2) & 3)
	}
	return true
}
