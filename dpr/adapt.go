package dpr

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
)

// FromReadWriter makes a Device of anything that carries one IP packet per Read
// and Write, without a header of its own: the interfaces of songgao/water, an
// *os.File of a TUN opened with IFF_NO_PI, one end of a packet pipe.
//
// Its Close must wake a Read that waits, or Router.Run cannot end.
func FromReadWriter(rw io.ReadWriteCloser) Device { return &readWriter{rw: rw} }

type readWriter struct {
	rw     io.ReadWriteCloser
	closed atomic.Bool
}

func (d *readWriter) Read(pkts []Packet) (int, error) {
	p := &pkts[0]
	n, err := d.rw.Read(p.Buf[Headroom:])
	if err != nil {
		return 0, closedError(&d.closed, err)
	}
	p.Off, p.Len, p.GSO = Headroom, n, GSO{}
	return 1, nil
}

func (d *readWriter) Write(pkts []Packet) (int, error) {
	for i := range pkts {
		if _, err := d.rw.Write(pkts[i].Bytes()); err != nil {
			return i, closedError(&d.closed, err)
		}
	}
	return len(pkts), nil
}

func (d *readWriter) Close() error {
	if d.closed.Swap(true) {
		return nil
	}
	return d.rw.Close()
}

// closedError says os.ErrClosed for whatever a closed device answers.
func closedError(closed *atomic.Bool, err error) error {
	if closed.Load() && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("%w (%w)", os.ErrClosed, err)
	}
	return err
}

// A BatchTUN is the part of wireguard-go's tun.Device that moves packets: each
// lies at an offset in a buffer of its own, so that there is room for headers
// before it.
type BatchTUN interface {
	// Read blocks until there are packets, stores each from the offset on in a buffer
	// of its own, and its length in sizes.
	Read(bufs [][]byte, sizes []int, offset int) (n int, err error)
	// Write sends the packets, each of which begins at the offset of its buffer. It
	// may overwrite what lies before. An error says that not all were sent. The number
	// is not looked at: some devices count packets, others bytes.
	Write(bufs [][]byte, offset int) (int, error)
	// BatchSize is the largest number of packets that one Read may bring.
	BatchSize() int
	// Close wakes a Read that waits.
	Close() error
}

// FromBatchTUN makes a Device of a wireguard-go tun.Device, or of anything with
// the same methods. Such devices segment super-frames before they deliver them, so
// packets are ordinary ones. A Read with fewer packets than the TUN's BatchSize
// may lose segments: give Router.BatchSize at least that.
func FromBatchTUN(tun BatchTUN) Device { return &batchTUN{tun: tun} }

type batchTUN struct {
	tun    BatchTUN
	closed atomic.Bool
	// Of the one goroutine that reads.
	bufs  [][]byte
	sizes []int
}

func (d *batchTUN) Read(pkts []Packet) (int, error) {
	for len(d.bufs) < len(pkts) {
		d.bufs, d.sizes = append(d.bufs, nil), append(d.sizes, 0)
	}
	for i := range pkts {
		d.bufs[i] = pkts[i].Buf
	}
	for {
		n, err := d.tun.Read(d.bufs[:len(pkts)], d.sizes[:len(pkts)], Headroom)
		if err != nil && n == 0 {
			return 0, closedError(&d.closed, err)
		}
		for i := range pkts[:n] {
			pkts[i].Off, pkts[i].Len, pkts[i].GSO = Headroom, d.sizes[i], GSO{}
		}
		if n > 0 {
			return n, nil
		}
	}
}

func (d *batchTUN) Write(pkts []Packet) (int, error) {
	var one [1][]byte
	for i := range pkts {
		p := &pkts[i]
		one[0] = p.Buf[:p.Off+p.Len]
		if _, err := d.tun.Write(one[:], p.Off); err != nil {
			return i, closedError(&d.closed, err)
		}
	}
	return len(pkts), nil
}

func (d *batchTUN) Close() error {
	if d.closed.Swap(true) {
		return nil
	}
	return d.tun.Close()
}
