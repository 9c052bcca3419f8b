package header_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/internal/header"
)

func addSeeds(f *testing.F) {
	for _, s := range crafted() {
		f.Add(s.pkt)
	}
	for _, path := range captures(f) {
		for _, pkt := range capture(f, path) {
			f.Add(pkt)
		}
	}
}

// requireInside checks what callers rely on when they slice a packet by what the
// parser found.
func requireInside(t *testing.T, p *header.Packet, b []byte) {
	require.Contains(t, []uint8{4, 6}, p.Version)
	require.LessOrEqual(t, p.Len, len(b))
	require.GreaterOrEqual(t, p.PayloadLen, 0)
	require.GreaterOrEqual(t, int(p.L4), header.IPv4Len)
	require.LessOrEqual(t, int(p.L4)+p.PayloadLen, p.Len)
	if p.FragOffset > 0 {
		require.True(t, p.Fragment)
		require.Zero(t, p.SrcPort|p.DstPort)
	}
	if p.Proto != header.ProtoTCP && p.Proto != header.ProtoUDP {
		require.Zero(t, p.SrcPort|p.DstPort)
	}
}

func FuzzParse(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		var p, q header.Packet
		if p.Parse(slices.Clip(b)) != header.OK {
			return
		}
		requireInside(t, &p, b)
		if p.Proto == header.ProtoTCP && p.FragOffset == 0 {
			require.LessOrEqual(t, int(p.L4)+header.TCP(b[p.L4:]).HeaderLen()+p.PayloadLen, p.Len)
			header.FindMSS(b[p.L4:p.Len])
		}

		require.Equal(t, header.OK, q.Parse(slices.Clip(b[:p.Len])), "padding must not matter")
		require.Equal(t, p, q)
		require.Equal(t, header.OK, q.ParseFrame(b), "what is whole is also a super-frame")
		require.Equal(t, header.OK, q.ParseQuote(b), "what is whole may be quoted")
		require.Equal(t, p, q)

		cut := min(int(p.L4)+8, p.Len)
		require.Equal(t, header.OK, q.ParseQuote(slices.Clip(b[:cut])), "eight bytes suffice in a quote")
		require.Equal(t, []any{p.Src, p.Dst, p.SrcPort, p.DstPort, p.Seq, p.Proto}, []any{q.Src, q.Dst, q.SrcPort, q.DstPort, q.Seq, q.Proto})
	})
}

func FuzzParseQuote(f *testing.F) {
	addSeeds(f)
	f.Add(tcp4()[:28])
	f.Add(tcp6()[:44])
	f.Fuzz(func(t *testing.T, b []byte) {
		var p header.Packet
		if p.ParseQuote(slices.Clip(b)) == header.OK {
			requireInside(t, &p, b)
		}
	})
}

func FuzzFindMSS(f *testing.F) {
	f.Add(syn4())
	f.Add(segment(client4, vip4, header.TCPFields{Options: unhex("01 020405b4 000000")}, ""))
	f.Fuzz(func(t *testing.T, b []byte) {
		value, offset, ok := header.FindMSS(slices.Clip(b))
		if !ok {
			return
		}
		require.LessOrEqual(t, offset+2, header.TCP(b).HeaderLen())
		header.SetMSS(b, offset, value) // no change
		again, _, _ := header.FindMSS(b)
		require.Equal(t, value, again)
	})
}
