package nonblock

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Read reads one packet from a TUN into b, which must not be empty.
func Read(fd uintptr, b []byte) (int, unix.Errno) {
	return call(unix.SYS_READ, fd, unsafe.Pointer(&b[0]), len(b), 0)
}

// Write writes b, one packet, which must not be empty, to a TUN.
func Write(fd uintptr, b []byte) (int, unix.Errno) {
	return call(unix.SYS_WRITE, fd, unsafe.Pointer(&b[0]), len(b), 0)
}

// Sendmmsg sends messages, of which there must be one, and returns how many went out,
// at least one if there is no error. A peer that is gone raises no SIGPIPE.
func Sendmmsg(fd uintptr, msgs []unix.Mmsghdr) (int, unix.Errno) {
	return call(unix.SYS_SENDMMSG, fd, unsafe.Pointer(&msgs[0]), len(msgs), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

// Recvmmsg receives messages into msgs, which must not be empty, and returns how many,
// at least one if there is no error.
func Recvmmsg(fd uintptr, msgs []unix.Mmsghdr) (int, unix.Errno) {
	return call(unix.SYS_RECVMMSG, fd, unsafe.Pointer(&msgs[0]), len(msgs), unix.MSG_DONTWAIT)
}

func call(number, fd uintptr, first unsafe.Pointer, n, flags int) (int, unix.Errno) {
	for {
		done, _, errno := unix.RawSyscall6(number, fd, uintptr(first), uintptr(n), uintptr(flags), 0, 0)
		if errno != unix.EINTR {
			return int(done), errno
		}
	}
}
