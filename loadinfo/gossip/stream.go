package gossip

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"

	"github.com/carom-dpr/carom/loadinfo"
)

// maxStreams is how many streams of peers are answered at once. Others wait: one takes
// milliseconds, and at most streamTime to fail.
const maxStreams = 32

// A stream is a connection whose message is taken whole before memberlist sees any of
// it. memberlist believes what a message states, a million members or 20 MB of reports,
// and its decoder takes gigabytes for a string if they come; here lengths cost nothing
// until as many bytes have come, and no more come than a cluster takes.
// Each side sends one message and no more.
type stream struct {
	net.Conn
	t       *transport
	release func() // its place; called by each Close
	taken   bool   // the message is in
	in      bytes.Reader
	err     error // or this is why not
}

func (s *stream) Write(b []byte) (int, error) {
	s.t.budget.spend(len(b), time.Now())
	return s.Conn.Write(b)
}

func (s *stream) Read(b []byte) (int, error) {
	if !s.taken {
		s.taken = true
		s.take()
	}
	if s.err != nil {
		return 0, s.err
	}
	return s.in.Read(b)
}

func (s *stream) take() {
	m := newIntake(s.Conn, s.t.hosts)
	s.err = m.message(s.t.encrypted())
	switch {
	case s.err == nil:
		s.in.Reset(m.taken)
	case len(m.taken) > 0: // somebody said something
		s.t.refused(s.err, s.RemoteAddr().String())
	default:
		s.err = errNoWord
	}
}

// errNoWord tells where to look: a host does not say to others why it hangs up.
var errNoWord = errors.New("gossip: no word came; if the host there refuses this one, its log says why")

func (s *stream) Close() error {
	defer s.release()
	return s.Conn.Close()
}

// What a host takes in an exchange of everything, in bytes at most.
const (
	perMember = 256                             // its name, address and versions, and the names of these
	perReport = 2 + maxAge + loadinfo.MaxReport // behind its length
	perStream = 1024                            // what is around them
)

// lives is how many members there may be to a host: for some time memberlist keeps
// those that died, and a host that restarts is another member.
const lives = 4

// An intake takes one message off a stream, and nothing that is refused.
type intake struct {
	from  *bufio.Reader
	hosts int
	taken []byte
	room  int // bytes that it still takes
}

func newIntake(from io.Reader, hosts int) *intake {
	return &intake{
		from: bufio.NewReader(from), hosts: hosts,
		room: perStream + hosts*(lives*perMember+perReport),
	}
}

// errTooLong is told, since clusters may be meant to be so large.
var errTooLong = fmt.Errorf("%w: longer than anything that a cluster has to say", loadinfo.ErrMalformed)

// next takes n bytes. It has memory for those that came.
func (m *intake) next(n uint64) ([]byte, error) {
	const step = 4096
	if n > uint64(m.room) {
		return nil, errTooLong
	}
	m.room -= int(n)
	begin := len(m.taken)
	for left := int(n); left > 0; {
		at, part := len(m.taken), min(left, step)
		m.taken = slices.Grow(m.taken, part)[:at+part]
		got, err := io.ReadFull(m.from, m.taken[at:])
		if err != nil {
			m.taken = m.taken[:at+got]
			return nil, cut(err)
		}
		left -= part
	}
	return m.taken[begin:], nil
}

// cut is the error of a stream that ends or breaks off.
func cut(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return loadinfo.ErrTruncated
	}
	return fmt.Errorf("%w: %w", loadinfo.ErrTruncated, err)
}

// message takes what memberlist sends by streams: an exchange, the answer to it, a
// probe, its answer, an error. It may be behind the cluster's name.
func (m *intake) message(encrypted bool) error {
	kind, err := m.kind()
	switch {
	case err != nil:
		return err
	case encrypted != (kind == encryptMsg):
		return loadinfo.ErrKey
	}
	switch kind {
	case encryptMsg:
		return m.ciphertext()
	case pushPullMsg:
		return m.exchange()
	case pingMsg, ackMsg, errMsg:
		return m.value()
	}
	return loadinfo.ErrMalformed
}

// kind takes the type of the message, and what is before it.
func (m *intake) kind() (byte, error) {
	b, err := m.next(1)
	if err == nil && b[0] == labelMsg {
		if b, err = m.next(1); err == nil {
			b, err = m.next(uint64(b[0]) + 1)
		}
	}
	if err != nil {
		return 0, err
	}
	return b[len(b)-1], nil
}

// ciphertext takes a length, the version of the encryption, and the rest.
func (m *intake) ciphertext() error {
	b, err := m.next(4)
	if err != nil {
		return err
	}
	length := number(b)
	if length == 0 {
		return loadinfo.ErrMalformed
	}
	if b, err = m.next(1); err != nil {
		return err
	}
	if b[0] != gcm {
		return loadinfo.ErrKey
	}
	_, err = m.next(length - 1)
	return err
}

// exchange takes a header, as many members as it says, and the reports, of which it
// says how many bytes they are. memberlist reserves memory for both.
func (m *intake) exchange() error {
	at := len(m.taken)
	if err := m.value(); err != nil {
		return err
	}
	var header struct { // memberlist's pushPullHeader
		Nodes        int
		UserStateLen int
		Join         bool
	}
	if err := codec.NewDecoderBytes(m.taken[at:], new(codec.MsgpackHandle)).Decode(&header); err != nil {
		return fmt.Errorf("%w: %w", loadinfo.ErrMalformed, err)
	}
	if header.Nodes < 0 || header.UserStateLen < 0 {
		return loadinfo.ErrMalformed
	}
	if header.Nodes > lives*m.hosts {
		return errTooLong
	}
	for range header.Nodes {
		if err := m.value(); err != nil {
			return err
		}
	}
	_, err := m.next(uint64(header.UserStateLen))
	return err
}

// value takes one value in MessagePack with all that it contains; see token.
func (m *intake) value() error {
	for values := uint64(1); values > 0; values-- {
		b, err := m.next(1)
		if err != nil {
			return err
		}
		width, size, children := token(b[0])
		if b, err = m.next(uint64(width)); err != nil {
			return err
		}
		n := number(b) + uint64(size)
		if values += n * uint64(children); values > uint64(m.room)+1 { // each takes a byte at least
			return errTooLong
		}
		if children == 0 {
			if _, err = m.next(n); err != nil {
				return err
			}
		}
	}
	return nil
}
