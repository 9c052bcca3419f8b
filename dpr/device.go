package dpr

// A Device carries packets between the engine's host and something else: the
// host's kernel through a TUN, or its peers through an uplink.
//
// One goroutine may Read and others may Write at the same time. Close may be
// called from any goroutine, more than once.
type Device interface {
	// Read fills pkts from the front and returns how many it filled: at least
	// one, unless it returns an error. It blocks until there is a packet. For each
	// it sets Off, Len, GSO and, on an uplink, Peer. It uses pkts[i].Buf, and
	// leaves Headroom bytes before the packet; a device that owns its memory may
	// put a slice of its own there instead, valid until the next Read.
	//
	// After Close, Read returns an error that matches os.ErrClosed, and a Read
	// that waits returns at once. Any other error means that the device is gone.
	Read(pkts []Packet) (n int, err error)
	// Write sends all packets and returns how many it sent; on an uplink each
	// goes to its Peer. It owns pkts and their buffers until it returns, and may
	// change their bytes. It may block while the device is full. A packet that
	// cannot be sent is dropped and counted by the device; an error means that
	// the device is gone.
	Write(pkts []Packet) (n int, err error)
	// Close releases the device and wakes a Read that waits.
	Close() error
}

// A Writer is the sending half of a Device. A Router sends replies of its own,
// such as ICMP errors, through one: they must leave the host like packets that
// the host's own stack made.
type Writer interface {
	// Write sends the packets and returns how many of them; it owns them until it
	// returns. What cannot be sent is lost. An error means that the Writer is closed
	// or broken.
	Write(pkts []Packet) (n int, err error)
}
