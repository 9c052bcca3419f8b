package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
)

// A capture is a file of frames.
type capture interface {
	ReadPacketData() (frame []byte, info gopacket.CaptureInfo, err error)
	LinkType() layers.LinkType
}

// pcapngMagic begins a pcapng file: the type of its section header block.
const pcapngMagic = "\x0a\x0d\x0d\x0a"

func openCapture(r io.Reader) (capture, error) {
	in := bufio.NewReader(r)
	magic, err := in.Peek(len(pcapngMagic))
	if err != nil {
		return nil, errors.New("too short for a capture")
	}
	if string(magic) == pcapngMagic {
		return pcapgo.NewNgReader(in, pcapgo.DefaultNgReaderOptions)
	}
	return pcapgo.NewReader(in)
}

// next returns the next IP packet and its time, skipping frames of other protocols.
// It counts all frames, so that numbers are those that other tools show. At the end
// it returns io.EOF.
func next(c capture, frames *int) (pkt []byte, at time.Time, err error) {
	for {
		frame, info, err := c.ReadPacketData()
		if err != nil {
			return nil, at, err
		}
		*frames++
		pkt, err := network(frame, c.LinkType())
		if err != nil {
			return nil, at, err
		}
		if pkt != nil {
			return pkt, info.Timestamp, nil
		}
	}
}

// network takes the link header off a frame. It returns nil if the frame carries no
// IP packet.
func network(frame []byte, link layers.LinkType) ([]byte, error) {
	switch link {
	case layers.LinkTypeRaw, layers.LinkTypeIPv4, layers.LinkTypeIPv6:
		return frame, nil
	case layers.LinkTypeEthernet, layers.LinkTypeNull, layers.LinkTypeLoop, layers.LinkTypePPP, layers.LinkTypeLinuxSLL:
	default:
		return nil, fmt.Errorf("link type %v: only Ethernet, raw IP, loopback, PPP and Linux cooked captures are understood", link)
	}
	for _, layer := range gopacket.NewPacket(frame, link, gopacket.NoCopy).Layers() {
		switch l := layer.(type) {
		case *layers.Ethernet:
			if isIP(l.EthernetType) {
				return l.Payload, nil
			}
		case *layers.Dot1Q:
			if isIP(l.Type) {
				return l.Payload, nil
			}
		case *layers.LinuxSLL:
			if isIP(l.EthernetType) {
				return l.Payload, nil
			}
		case *layers.PPP, *layers.Loopback:
			return l.LayerPayload(), nil
		}
	}
	return nil, nil
}

func isIP(t layers.EthernetType) bool {
	return t == layers.EthernetTypeIPv4 || t == layers.EthernetTypeIPv6
}
