package main

import (
	"bufio"
	"encoding/binary"
	"io"
	"time"

	"github.com/google/gopacket/layers"
)

// An ngWriter writes a pcapng file (draft-ietf-opsawg-pcapng) of bare IP packets with
// comments, which gopacket's writer has no place for. All come from one interface:
// libpcap takes several of raw IP for several kinds of link.
type ngWriter struct {
	w     *bufio.Writer
	block []byte
}

// The types of blocks, and the codes of options in them.
const (
	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockPacket    = 6
	byteOrder      = 0x1a2b3c4d

	optComment  = 1
	optTimeUnit = 9
)

func newNgWriter(w io.Writer) (*ngWriter, error) {
	n := &ngWriter{w: bufio.NewWriter(w)}
	n.begin(blockSection)
	n.u32(byteOrder)
	n.u32(1)          // version 1.0, the minor number in the upper half
	n.u32(0xffffffff) // length of the section, 64 bits:
	n.u32(0xffffffff) // not known
	if err := n.end(); err != nil {
		return nil, err
	}
	n.begin(blockInterface)
	n.u32(uint32(layers.LinkTypeRaw))
	n.u32(0)                      // no limit of length
	n.option(optTimeUnit, "\x09") // nanoseconds
	n.endOptions()
	return n, n.end()
}

func (n *ngWriter) packet(at time.Time, pkt []byte, comment string) error {
	ns := uint64(at.UnixNano())
	n.begin(blockPacket)
	n.u32(0) // the interface
	n.u32(uint32(ns >> 32))
	n.u32(uint32(ns))
	n.u32(uint32(len(pkt)))
	n.u32(uint32(len(pkt)))
	n.bytes(pkt)
	n.option(optComment, comment)
	n.endOptions()
	return n.end()
}

func (n *ngWriter) flush() error { return n.w.Flush() }

// begin starts a block; its length is filled in at its end.
func (n *ngWriter) begin(kind uint32) {
	n.block = n.block[:0]
	n.u32(kind)
	n.u32(0)
}

func (n *ngWriter) end() error {
	length := uint32(len(n.block) + 4)
	binary.LittleEndian.PutUint32(n.block[4:], length)
	n.u32(length)
	_, err := n.w.Write(n.block)
	return err
}

func (n *ngWriter) u16(v uint16) { n.block = binary.LittleEndian.AppendUint16(n.block, v) }
func (n *ngWriter) u32(v uint32) { n.block = binary.LittleEndian.AppendUint32(n.block, v) }

// bytes appends b, padded to a multiple of four bytes.
func (n *ngWriter) bytes(b []byte) {
	n.block = append(n.block, b...)
	n.block = append(n.block, make([]byte, -len(b)&3)...)
}

func (n *ngWriter) option(code uint16, value string) {
	n.u16(code)
	n.u16(uint16(len(value)))
	n.bytes([]byte(value))
}

func (n *ngWriter) endOptions() { n.u32(0) }
