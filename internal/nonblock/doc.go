// Package nonblock has the system calls of the packet path. None of them waits: the
// descriptors do not block, and a call that would have to wait is EAGAIN.
//
// Go's scheduler is therefore not told of them, as package syscall tells it of every
// call. It takes the processor away from a goroutine whose call takes more than some
// 20 µs and wakes a thread to use it, which finds nothing to do; a call that moves
// super-frames takes longer than that. The price is that the garbage collector waits
// for the end of such a call if it has to stop the goroutine in it: some 100 µs for a
// full batch of super-frames.
//
// A call that was interrupted by a signal is made again.
package nonblock
