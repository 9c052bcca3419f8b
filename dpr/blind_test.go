package dpr_test

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
)

// A forged packet of somebody else's connection: its flags, and how far its sequence
// number lies beyond the one that the forger has drawn.
type forged struct {
	flags  dprtest.Flags
	beyond uint32
}

// Whoever forges packets and sees none ends a connection with a chance of 1 in 32,768,
// the share of sequence numbers within 64 KiB, and several packets that prepare each
// other do no better.
func TestBlindPacketsEndFewFlows(t *testing.T) {
	const fin = ack | dprtest.FIN
	for name, attack := range map[string][]forged{
		"RST":                   {{rst, 0}},
		"FIN":                   {{fin, 0}},
		"ACK, then RST":         {{ack, 0}, {rst, 10}},
		"ACK, then FIN":         {{ack, 0}, {fin, 10}},
		"FIN, then RST":         {{fin, 0}, {rst, 11}},
		"two ACKs, then RST":    {{ack, 0}, {ack, 10}, {rst, 20}},
		"SYN, ACK, then RST":    {{syn, 0}, {ack, 1}, {rst, 11}},
		"SYN, ACK, then FIN":    {{syn, 0}, {ack, 1}, {fin, 11}},
		"SYN, ACK with the FIN": {{syn, 0}, {fin, 1}},
	} {
		for _, confirm := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				trials := 1 << 17 // of which 4 succeed, if all is well
				if testing.Short() {
					trials = 1 << 14 // what an attack that works gains from them is still more than is allowed
				}
				b := newBench(t, dpr.Config{MaxFlows: trials + trials/4, Confirm: confirm})
				dice := rand.New(rand.NewPCG(1, 2))
				pkts := dpr.NewPackets(2+len(attack), 128)
				for i := range trials {
					from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 16), byte(i >> 8)}), uint16(1024+i&0xff))
					own, drawn := dice.Uint32(), dice.Uint32()
					put(&pkts[0], from, syn, own)
					put(&pkts[1], from, ack, own+1)
					for j, f := range attack {
						put(&pkts[2+j], from, f.flags, drawn+f.beyond)
					}
					b.Process(pkts, b.now)
				}
				flows := b.Stats().Flows
				require.Equal(t, trials, flows[dpr.Established]+flows[dpr.Unconfirmed]+flows[dpr.Closing]+flows[dpr.Closed])
				ended := flows[dpr.Closing] + flows[dpr.Closed]
				t.Logf("%d of %d", ended, trials)
				require.LessOrEqual(t, ended, 16)
			})
		}
	}
}

// blindPackets are what put writes, by flags.
var blindPackets = map[dprtest.Flags][]byte{}

// put makes p a client's packet. Those with an ACK carry 10 bytes of data.
func put(p *dpr.Packet, from netip.AddrPort, flags dprtest.Flags, seq uint32) {
	template := blindPackets[flags]
	if template == nil {
		n := 0
		if flags&ack != 0 {
			n = 10
		}
		template = tcp(flags, 0, n)
		blindPackets[flags] = template
	}
	p.Off, p.Peer, p.GSO = dpr.Headroom, 0, dpr.GSO{}
	p.Len = copy(p.Buf[p.Off:], template)
	copy(p.Bytes()[12:], from.Addr().AsSlice())
	binary.BigEndian.PutUint16(p.Bytes()[20:], from.Port())
	binary.BigEndian.PutUint32(p.Bytes()[24:], seq)
}

// Data that runs ahead of what was lost on the way is followed, and the serving host
// says when such a connection ends.
func TestFlowThatLeaptEndsByTheServersWord(t *testing.T) {
	c := newConfirmer(t, dpr.Config{})
	c.introduce()
	c.alive[client] = dpr.Open
	c.from(tcp(syn, 1000, 0))
	c.from(tcp(ack, 1001, 0))
	c.live(2 * time.Second)
	seq := uint32(1001)
	for range 100 { // 100 MiB, of which all but little is lost
		seq += 1 << 20
		c.requireForward(c.from(tcp(ack, seq, 1000)), "h2")
	}
	require.Equal(t, "established", c.state(client))
	c.requireForward(c.from(tcp(finAck, seq+1000, 0)), "h2")
	c.requireForward(c.from(tcp(rst, seq+1001, 0)), "h2")
	require.Equal(t, "established", c.state(client), "anybody may have sent these")
	require.Equal(t, 1, c.open("h2", "web"))
	delete(c.alive, client)
	c.live(16 * time.Second)
	require.Zero(t, c.open("h2", "web"))
	c.live(11 * time.Second)
	require.Zero(t, c.flows())
}
