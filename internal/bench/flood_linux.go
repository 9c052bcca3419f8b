package main

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"time"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/dpr/hostnet"
)

// forged is where the flood's SYNs say they come from: addresses for benchmarks (RFC
// 2544) that no host of the lab has.
var forged = netip.MustParsePrefix("198.19.0.0/16")

// A floodRole sends SYNs, each from an address and port of its own, evenly over a
// time.
type floodRole struct {
	To      netip.Addr
	SYNs    int
	Seconds float64
}

// floodEvery is how often the flood sends what is due: often enough that bursts stay
// shorter than the queues that they meet.
const floodEvery = 2 * time.Millisecond

func (r *floodRole) play(ctx context.Context) error {
	raw, err := hostnet.NewRawSender()
	if err != nil {
		return err
	}
	defer raw.Close()
	syn := dprtest.TCP(netip.AddrPortFrom(forged.Addr(), 1024), netip.AddrPortFrom(r.To, httpPort),
		dprtest.Options{Flags: dprtest.SYN, Seq: 1})
	start := time.Now()
	tick := time.NewTicker(floodEvery)
	defer tick.Stop()
	sent := 0
	for sent < r.SYNs {
		due := min(r.SYNs, int(time.Since(start).Seconds()/r.Seconds*float64(r.SYNs)))
		for ; sent < due; sent++ {
			if _, err := raw.Write([]dpr.Packet{{Buf: numberSYN(syn, sent), Len: len(syn)}}); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
	if n := raw.Dropped(); n > uint64(r.SYNs/10) {
		return errors.New("the kernel did not send a tenth of the flood")
	}
	say(message{Count: uint64(sent)})
	return nil
}

// numberSYN makes the SYN come from the i-th address and port, and keeps its
// checksum right (RFC 1624, equation 3).
func numberSYN(syn []byte, i int) []byte {
	const address, port, checksum = 14, 20, 36
	tcp := binary.BigEndian.Uint16(syn[checksum:])
	for _, word := range [][2]uint16{{address, uint16(i)}, {port, uint16(1024 + i>>16)}} {
		old := binary.BigEndian.Uint16(syn[word[0]:])
		sum := uint32(^tcp) + uint32(^old) + uint32(word[1])
		for sum > 0xffff {
			sum = sum>>16 + sum&0xffff
		}
		tcp = ^uint16(sum)
		binary.BigEndian.PutUint16(syn[word[0]:], word[1])
	}
	binary.BigEndian.PutUint16(syn[checksum:], tcp)
	return syn // the kernel fills in the checksum of the IP header
}
