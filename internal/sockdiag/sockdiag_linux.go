package sockdiag

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A State is that of a TCP socket (include/net/tcp_states.h).
type State uint8

// The states. None is that of a connection without a socket; a socket that listens
// is none.
const (
	None        State = 0
	Established State = 1
	SynSent     State = 2
	SynReceived State = 3
	FinWait1    State = 4
	FinWait2    State = 5
	TimeWait    State = 6
	CloseWait   State = 8
	LastAck     State = 9
	listen      State = 10
	Closing     State = 11
)

// A Pair is the two ends of a connection.
type Pair struct{ Local, Remote netip.AddrPort }

// A Socket asks the kernel, about the network namespace in which it was opened. It is
// safe for concurrent use.
type Socket struct {
	mu  sync.Mutex
	fd  int
	seq uint32
	out []byte
	in  []byte
}

const (
	sizeofReq      = 56 // struct inet_diag_req_v2, in bytes
	sizeofMsg      = 72 // struct inet_diag_msg
	sizeofID       = 48 // struct inet_diag_sockid, which both hold
	offReqID       = 8  // in struct inet_diag_req_v2
	offMsgID       = 4  // in struct inet_diag_msg
	sockDiagFamily = 20 // SOCK_DIAG_BY_FAMILY
	// batch is how many questions are under way: their answers, of 1 to 2 KiB with
	// what the kernel charges for each, fit the smallest receive buffer.
	batch = 32
	// bufferLen is the most that the kernel fills with one message of a dump, in bytes.
	bufferLen = 32 << 10
	// patience only ends a wait for an answer that was lost: the kernel answers
	// while it is asked.
	patience = 5 * time.Second
)

// Open opens a socket.
func Open() (*Socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, fmt.Errorf("sockdiag: netlink socket: %w", err)
	}
	tv := unix.NsecToTimeval(patience.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("setsockopt SO_RCVTIMEO", err)
	}
	return &Socket{fd: fd, in: make([]byte, bufferLen)}, nil
}

// Close closes the socket once States and the like have ended. It may be called more
// than once: by then the descriptor's number may be another file's.
func (s *Socket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	fd := s.fd
	if fd < 0 {
		return nil
	}
	s.fd = -1
	return unix.Close(fd)
}

// States fills states, which is as long as pairs, with those of their sockets. It
// takes some microseconds for each. Sockets of IPv6 that carry IPv4 are found by
// their IPv4 addresses.
func (s *Socket) States(pairs []Pair, states []State) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(pairs) > 0 {
		n := min(len(pairs), batch)
		if err := s.ask(pairs[:n], states[:n]); err != nil {
			return fmt.Errorf("sockdiag: %w", err)
		}
		pairs, states = pairs[n:], states[n:]
	}
	return nil
}

// ask sends a batch of requests in one message, and reads the answers.
func (s *Socket) ask(pairs []Pair, states []State) error {
	return s.exchange(len(pairs), func(b []byte, i int, seq uint32) []byte {
		return appendRequest(b, seq, &pairs[i])
	}, func(i int, kind uint16, body []byte) (err error) {
		states[i], err = parseState(kind, body)
		return err
	})
}

// exchange sends n requests in one message, and takes an answer to each. Those to an
// earlier batch that failed are passed over by their sequence numbers.
func (s *Socket) exchange(n int, request func(b []byte, i int, seq uint32) []byte, take func(i int, kind uint16, body []byte) error) error {
	first := s.seq
	s.seq += uint32(n)
	s.out = s.out[:0]
	for i := range n {
		s.out = request(s.out, i, first+uint32(i))
	}
	if err := s.send(); err != nil {
		return err
	}
	for left := n; left > 0; {
		got, err := s.receive(first, n, take)
		if err != nil {
			return err
		}
		left -= got
	}
	return nil
}

func (s *Socket) send() error {
	err := unix.Sendto(s.fd, s.out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	return os.NewSyscallError("sendto", err)
}

// receive reads one datagram, and hands on those of its messages that answer the n
// requests from a sequence number on. It returns how many they were.
func (s *Socket) receive(first uint32, n int, take func(i int, kind uint16, body []byte) error) (got int, err error) {
	for {
		size, _, err := unix.Recvfrom(s.fd, s.in, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, os.NewSyscallError("recvfrom", err)
		}
		return parse(s.in[:size], first, n, take)
	}
}

// appendHead appends a request that is yet to be filled in, and returns its
// struct inet_diag_req_v2, too.
func appendHead(b []byte, seq uint32, kind, flags uint16, family byte) (all, r []byte) {
	ne := binary.NativeEndian
	at := len(b)
	b = append(b, make([]byte, unix.SizeofNlMsghdr+sizeofReq)...)
	h, r := b[at:], b[at+unix.SizeofNlMsghdr:]
	ne.PutUint32(h[0:], unix.SizeofNlMsghdr+sizeofReq)
	ne.PutUint16(h[4:], kind)
	ne.PutUint16(h[6:], unix.NLM_F_REQUEST|flags)
	ne.PutUint32(h[8:], seq)
	r[0], r[1] = family, unix.IPPROTO_TCP
	ne.PutUint32(r[4:], ^uint32(0)) // in any state
	return b, r
}

// appendRequest appends a request about one connection.
func appendRequest(b []byte, seq uint32, p *Pair) []byte {
	local, remote := p.Local.Addr().Unmap(), p.Remote.Addr().Unmap()
	family := byte(unix.AF_INET6)
	if local.Is4() {
		family = unix.AF_INET
	}
	b, r := appendHead(b, seq, sockDiagFamily, 0, family)
	binary.BigEndian.PutUint16(r[8:], p.Local.Port())
	binary.BigEndian.PutUint16(r[10:], p.Remote.Port())
	copy(r[12:28], local.AsSlice())
	copy(r[28:44], remote.AsSlice())
	binary.NativeEndian.PutUint64(r[48:], ^uint64(0)) // any cookie
	return b
}

var errShort = errors.New("truncated netlink message")

// parse hands on the messages of a datagram that answer the n requests from the
// sequence number first on, and returns how many they were.
func parse(b []byte, first uint32, n int, take func(i int, kind uint16, body []byte) error) (got int, err error) {
	ne := binary.NativeEndian
	for len(b) >= unix.SizeofNlMsghdr {
		length := int(ne.Uint32(b))
		if length < unix.SizeofNlMsghdr || length > len(b) {
			return got, errShort
		}
		body, kind := b[unix.SizeofNlMsghdr:length], ne.Uint16(b[4:])
		i := int(ne.Uint32(b[8:]) - first)
		b = b[min((length+3)&^3, len(b)):]
		if i < 0 || i >= n {
			continue
		}
		got++
		if err = take(i, kind, body); err != nil {
			return got, err
		}
	}
	return got, nil
}

// parseState reads one answer.
func parseState(kind uint16, body []byte) (State, error) {
	switch {
	case kind == sockDiagFamily && len(body) >= sizeofMsg:
		if state := State(body[1]); state != listen {
			return state, nil
		}
		return None, nil
	case kind == unix.NLMSG_ERROR:
		err := parseError(body)
		if errors.Is(err, unix.ENOENT) {
			err = nil
		}
		return None, err
	}
	return None, errShort
}

// parseError reads an error message, which may say that all went well.
func parseError(body []byte) error {
	if len(body) < 4 {
		return errShort
	}
	if errno := unix.Errno(-int32(binary.NativeEndian.Uint32(body))); errno != 0 {
		return errno
	}
	return nil
}
