package nonblock_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/internal/nonblock"
)

// pair returns two ends that keep message boundaries, like a TUN and its kernel. Only
// the first does not block.
func pair(t *testing.T) (here, there uintptr) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fds[0]); unix.Close(fds[1]) })
	require.NoError(t, unix.SetNonblock(fds[0], true))
	return uintptr(fds[0]), uintptr(fds[1])
}

func messages(bufs ...[]byte) []unix.Mmsghdr {
	msgs := make([]unix.Mmsghdr, len(bufs))
	for i, b := range bufs {
		iov := &unix.Iovec{Base: &b[0]}
		iov.SetLen(len(b))
		msgs[i].Hdr.Iov = iov
		msgs[i].Hdr.SetIovlen(1)
	}
	return msgs
}

func TestPackets(t *testing.T) {
	here, there := pair(t)
	b := make([]byte, 10)
	_, errno := nonblock.Read(here, b)
	require.Equal(t, unix.EAGAIN, errno)

	n, errno := nonblock.Write(there, []byte("packet"))
	require.Zero(t, errno)
	require.Equal(t, 6, n)
	n, errno = nonblock.Read(here, b)
	require.Zero(t, errno)
	require.Equal(t, "packet", string(b[:n]))
}

// Messages do not wait even where the descriptor would.
func TestMessages(t *testing.T) {
	here, there := pair(t)
	into := messages(make([]byte, 10), make([]byte, 10), make([]byte, 10))
	for _, fd := range []uintptr{here, there} {
		_, errno := nonblock.Recvmmsg(fd, into)
		require.Equal(t, unix.EAGAIN, errno)
	}
	n, errno := nonblock.Sendmmsg(here, messages([]byte("one"), []byte("other")))
	require.Zero(t, errno)
	require.Equal(t, 2, n)
	n, errno = nonblock.Recvmmsg(there, into)
	require.Zero(t, errno)
	require.Equal(t, 2, n)
	require.Equal(t, []uint32{3, 5}, []uint32{into[0].Len, into[1].Len})

	sent := 0
	for errno = 0; errno == 0; sent += n {
		n, errno = nonblock.Sendmmsg(there, messages([]byte("too much")))
	}
	require.Equal(t, unix.EAGAIN, errno)
	require.NotZero(t, sent)
}

func TestErrors(t *testing.T) {
	here, _ := pair(t)
	require.NoError(t, unix.Shutdown(int(here), unix.SHUT_WR))
	_, errno := nonblock.Sendmmsg(here, messages([]byte("x")))
	require.Equal(t, unix.EPIPE, errno) // and no signal
	none := ^uintptr(0)
	_, errno = nonblock.Read(none, make([]byte, 1))
	require.Equal(t, unix.EBADF, errno)
}
