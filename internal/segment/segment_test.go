package segment_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/internal/segment"
)

// split cuts p with batches of the given number of buffers.
func split(t testing.TB, p *dpr.Packet, batch int) [][]byte {
	t.Helper()
	var s segment.Splitter
	require.True(t, s.Start(p), "no valid super-frame: %+v", p.GSO)
	dst := dpr.NewPackets(batch, s.MaxLen())
	var out [][]byte
	for s.Left() > 0 {
		left := s.Left()
		n, ok := s.Next(dst)
		require.True(t, ok)
		require.Equal(t, min(left, batch), n)
		for _, q := range dst[:n] {
			require.Zero(t, q.GSO)
			require.Equal(t, p.Peer, q.Peer)
			out = append(out, append([]byte{}, q.Bytes()...))
		}
	}
	return out
}

// merge joins packets as a device does that reads them into one batch.
func merge(t testing.TB, segs [][]byte) []dpr.Packet {
	t.Helper()
	var m segment.Merger
	out := dpr.NewPackets(len(segs), dpr.MaxPacket)
	n := 0
	for _, b := range segs {
		if n > 0 && m.Append(b) {
			continue
		}
		m.Finish()
		require.True(t, m.Start(&out[n], b))
		n++
	}
	m.Finish()
	return out[:n]
}

func TestSplit(t *testing.T) {
	with := func(s spec, change func(*spec)) spec { change(&s); return s }
	for name, tc := range map[string]struct {
		spec spec
		size int
	}{
		"tcp4, short last segment":      {with(tcp4(5000), func(s *spec) { s.flags |= psh | fin | cwr | ece }), 1448},
		"tcp4, equal segments":          {tcp4(4 * 1000), 1000},
		"tcp4, one segment":             {tcp4(100), 1448},
		"tcp4, no payload":              {tcp4(0), 1448},
		"tcp4, odd size":                {tcp4(1001), 333},
		"tcp4, 64 KiB":                  {tcp4(65535 - 52), 1448},
		"tcp4, one byte each":           {tcp4(50), 1},
		"tcp4, IP options":              {with(tcp4(300), func(s *spec) { s.ipOpts = []byte{7, 3, 4, 1} }), 100},
		"tcp4, accurate ECN":            {with(tcp4(300), func(s *spec) { s.rsvd = 1; s.flags |= cwr }), 100},
		"tcp6":                          {with(tcp6(5000), func(s *spec) { s.flags |= psh }), 1428},
		"tcp6, 64 KiB":                  {tcp6(65535 - 72), 1428},
		"udp4":                          {udp4(3000), 1200},
		"udp4, checksum computes to 0":  {zeroSum(), 2},
		"udp6":                          {udp6(3600), 1200},
		"udp4, last segment of one odd": {udp4(2401), 1200},
	} {
		t.Run(name, func(t *testing.T) {
			want := tc.spec.segments(tc.size)
			p := tc.spec.super(tc.size)
			p.Peer = 7
			require.Equal(t, want, split(t, &p, 64))
			for _, batch := range []int{len(want) - 1, len(want), len(want) + 1} { // A45
				if batch > 0 {
					require.Equal(t, want, split(t, &p, batch))
				}
			}
		})
	}
}

// zeroSum is a datagram the checksum of whose first segment computes to 0.
func zeroSum() spec {
	s := udp4(4)
	s.payload = []byte{0, 0, 1, 2}
	first := s.segments(2)[0]
	copy(s.payload, first[26:28])
	return s
}

func TestSplitRefuses(t *testing.T) {
	for name, spoil := range map[string]func(*dpr.Packet){
		"size 0":                      func(p *dpr.Packet) { p.GSO.Size = 0 },
		"complete checksum":           func(p *dpr.Packet) { p.GSO.NeedsCsum = false },
		"transport before IP ends":    func(p *dpr.Packet) { p.GSO.CsumStart = 16 },
		"transport after IP ends":     func(p *dpr.Packet) { p.GSO.CsumStart = 24 },
		"transport beyond the packet": func(p *dpr.Packet) { p.GSO.CsumStart = 65000 },
		"wrong checksum field":        func(p *dpr.Packet) { p.GSO.CsumOffset = 6 },
		"wrong family":                func(p *dpr.Packet) { p.GSO.Type = dpr.GSOTCP6 },
		"unknown type":                func(p *dpr.Packet) { p.GSO.Type = 9 },
		"no IP":                       func(p *dpr.Packet) { p.Bytes()[0] = 0x95 },
		"short TCP header":            func(p *dpr.Packet) { p.Bytes()[32] = 0x40 },
		"TCP header beyond the packet": func(p *dpr.Packet) {
			p.Len = 50
		},
		"empty": func(p *dpr.Packet) { p.Len = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			p := tcp4(100).super(10)
			spoil(&p)
			var s segment.Splitter
			require.False(t, s.Start(&p))
			require.Zero(t, s.Left())
		})
	}
}

func TestSplitShortBufferLosesNothing(t *testing.T) {
	p := tcp4(250).super(100)
	var s segment.Splitter
	require.True(t, s.Start(&p))
	dst := dpr.NewPackets(3, s.MaxLen())
	small := dpr.NewPackets(1, s.MaxLen()-1)
	n, ok := s.Next([]dpr.Packet{dst[0], small[0]})
	require.False(t, ok)
	require.Equal(t, 1, n)
	n, ok = s.Next(dst)
	require.True(t, ok)
	require.Equal(t, 2, n)
	require.Equal(t, tcp4(250).segments(100)[2], dst[1].Bytes())
}

func TestSplitKeepsWrongChecksumsWrong(t *testing.T) {
	p := tcp4(250).super(100)
	p.Bytes()[10] ^= 1     // IPv4
	p.Bytes()[20+16] ^= 16 // TCP
	for i, b := range split(t, &p, 3) {
		want := tcp4(250).segments(100)[i]
		require.NotEqual(t, want[10:12], b[10:12])
		require.NotEqual(t, want[36:38], b[36:38])
	}
}

func TestComplete(t *testing.T) {
	for name, s := range map[string]spec{
		"tcp4": tcp4(101), "tcp6": tcp6(100), "udp4": udp4(7), "udp6": udp6(0), "udp4 zero": func() spec {
			s := zeroSum()
			s.payload = s.payload[:2]
			return s
		}(),
	} {
		t.Run(name, func(t *testing.T) {
			p := s.super(1)
			p.GSO.Type = dpr.GSONone
			require.True(t, segment.Complete(&p))
			require.Equal(t, s.bytes(false), p.Bytes())
			require.Zero(t, p.GSO)
		})
	}
	p := tcp4(10).super(5)
	require.False(t, segment.Complete(&p), "a super-frame is not one packet")
	p.GSO.Type, p.GSO.CsumStart = dpr.GSONone, uint16(p.Len-17)
	require.False(t, segment.Complete(&p), "the field ends one byte beyond the packet")
}

func TestWhole(t *testing.T) {
	pad := make([]byte, 9)
	for name, tc := range map[string]struct {
		b    []byte
		want int // 0: refused
	}{
		"v4":                     {tcp4(10).bytes(false), 62},
		"v4 padded":              {append(tcp4(10).bytes(false), pad...), 62},
		"v4 cut":                 {tcp4(10).bytes(false)[:61], 0},
		"v4 total length 0":      {append([]byte{0x45, 0, 0, 0}, make([]byte, 60)...), 0},
		"v4 shorter than header": {tcp4(0).bytes(false)[:19], 0},
		"v6 padded":              {append(tcp6(10).bytes(false), pad...), 82},
		"v6 cut":                 {tcp6(10).bytes(false)[:81], 0},
		"v6 shorter than header": {tcp6(0).bytes(false)[:39], 0},
		"neither":                {append([]byte{0x10}, make([]byte, 60)...), 0},
		"empty":                  {nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := segment.Whole(tc.b)
			require.Equal(t, tc.want != 0, ok)
			require.Len(t, got, tc.want)
		})
	}
}

// pair returns two consecutive segments of a flow.
func pair(s spec) (a, b spec) {
	a, b = s, s
	a.payload, b.payload = pattern(100), pattern(100)
	b.seq += 100
	b.id++
	return a, b
}

func TestMergePairs(t *testing.T) {
	both := func(f func(s *spec)) func(a, b *spec) { return func(a, b *spec) { f(a); f(b) } }
	second := func(f func(s *spec)) func(a, b *spec) { return func(_, b *spec) { f(b) } }
	first := func(f func(s *spec)) func(a, b *spec) { return func(a, _ *spec) { f(a) } }
	for name, tc := range map[string]struct {
		base   spec
		change func(a, b *spec)
		merges bool
	}{
		"tcp4 equal":               {tcp4(0), func(_, _ *spec) {}, true},
		"tcp6 equal":               {tcp6(0), func(_, _ *spec) {}, true},
		"udp4 equal":               {udp4(0), func(_, _ *spec) {}, true},
		"udp6 equal":               {udp6(0), func(_, _ *spec) {}, true},
		"second shorter":           {tcp4(0), second(func(s *spec) { s.payload = s.payload[:99] }), true},
		"PSH on the second":        {tcp4(0), second(func(s *spec) { s.flags |= psh }), true},
		"FIN on the second":        {tcp4(0), second(func(s *spec) { s.flags |= fin }), true},
		"CWR on the first":         {tcp4(0), first(func(s *spec) { s.flags |= cwr }), true},
		"ECE on both":              {tcp4(0), both(func(s *spec) { s.flags |= ece }), true},
		"DF clear on both":         {tcp4(0), both(func(s *spec) { s.frag = 0 }), true},
		"TTL":                      {tcp4(0), second(func(s *spec) { s.ttl-- }), false},
		"hop limit":                {tcp6(0), second(func(s *spec) { s.ttl-- }), false},
		"TOS":                      {tcp4(0), second(func(s *spec) { s.tos = 0xb8 }), false},
		"ECN":                      {tcp4(0), second(func(s *spec) { s.tos |= 1 }), false},
		"traffic class":            {tcp6(0), second(func(s *spec) { s.tos |= 1 }), false},
		"flow label":               {tcp6(0), second(func(s *spec) { s.flow++ }), false},
		"DF":                       {tcp4(0), second(func(s *spec) { s.frag = 0 }), false},
		"MF":                       {tcp4(0), both(func(s *spec) { s.frag = 0x2000 }), false},
		"fragment offset":          {tcp4(0), both(func(s *spec) { s.frag = 5 }), false},
		"reserved bit":             {tcp4(0), second(func(s *spec) { s.frag |= 0x8000 }), false},
		"IP options":               {tcp4(0), both(func(s *spec) { s.ipOpts = []byte{1, 1, 1, 0} }), false},
		"IP options on the second": {tcp4(0), second(func(s *spec) { s.ipOpts = []byte{1, 1, 1, 0} }), false},
		"PSH on the first":         {tcp4(0), first(func(s *spec) { s.flags |= psh }), false},
		"FIN on the first":         {tcp4(0), first(func(s *spec) { s.flags |= fin }), false},
		"CWR on the second":        {tcp4(0), second(func(s *spec) { s.flags |= cwr }), false},
		"ECE on the second":        {tcp4(0), second(func(s *spec) { s.flags |= ece }), false},
		"URG":                      {tcp4(0), both(func(s *spec) { s.flags |= urg; s.urg = 1 }), false},
		"urgent pointer":           {tcp4(0), both(func(s *spec) { s.urg = 1 }), false},
		"SYN":                      {tcp4(0), both(func(s *spec) { s.flags |= syn }), false},
		"RST on the second":        {tcp4(0), second(func(s *spec) { s.flags |= rst }), false},
		"no ACK":                   {tcp4(0), both(func(s *spec) { s.flags = 0 }), false},
		"accurate ECN bit":         {tcp4(0), second(func(s *spec) { s.rsvd = 1 }), false},
		"acknowledgement":          {tcp4(0), second(func(s *spec) { s.ack++ }), false},
		"window":                   {tcp4(0), second(func(s *spec) { s.window++ }), false},
		"timestamp": {tcp4(0), second(func(s *spec) {
			s.tcpOpts = append([]byte(nil), timestamps...)
			s.tcpOpts[7]++
		}), false},
		"TCP options":       {tcp4(0), second(func(s *spec) { s.tcpOpts = nil }), false},
		"ID not counted up": {tcp4(0), second(func(s *spec) { s.id-- }), false},
		"ID step 2":         {tcp4(0), second(func(s *spec) { s.id++ }), false},
		"gap":               {tcp4(0), second(func(s *spec) { s.seq++ }), false},
		"repeated":          {tcp4(0), second(func(s *spec) { s.seq -= 100 }), false},
		"ports":             {tcp4(0), second(func(s *spec) { s.ports++ }), false},
		"family":            {tcp4(0), second(func(s *spec) { s.is6 = true }), false},
		"protocol":          {tcp4(0), second(func(s *spec) { s.udp = true }), false},
		"short one first":   {tcp4(0), first(func(s *spec) { s.payload = s.payload[:99] }), false},
		"empty one second":  {tcp4(0), second(func(s *spec) { s.payload = nil }), false},
		"udp short first":   {udp4(0), first(func(s *spec) { s.payload = s.payload[:99] }), false},
		"udp ports":         {udp4(0), second(func(s *spec) { s.ports++ }), false},
		"udp ID":            {udp4(0), second(func(s *spec) { s.id++ }), false},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(tc.base)
			tc.change(&a, &b)
			segs := [][]byte{a.bytes(false), b.bytes(false)}
			got := merge(t, segs)
			require.Equal(t, tc.merges, len(got) == 1)
			requireRestored(t, segs, got)
		})
	}
}

// requireRestored checks that cutting what was joined gives the same bytes.
func requireRestored(t testing.TB, want [][]byte, joined []dpr.Packet) {
	t.Helper()
	var out [][]byte
	for i := range joined {
		if joined[i].GSO == (dpr.GSO{}) {
			out = append(out, joined[i].Bytes())
			continue
		}
		out = append(out, split(t, &joined[i], 64)...)
	}
	require.Equal(t, want, out)
}

func TestMergeNeverMendsADamagedPacket(t *testing.T) {
	for _, s := range []spec{tcp4(0), tcp6(0), udp4(0), udp6(0)} {
		for victim := range 2 {
			a, b := pair(s)
			segs := [][]byte{a.bytes(false), b.bytes(false)}
			segs[victim][s.hdrLen()+50] ^= 4
			got := merge(t, segs)
			require.Len(t, got, 2)
			requireRestored(t, segs, got)
		}
	}
	a, b := pair(udp4(0))
	segs := [][]byte{a.bytes(false), b.bytes(false)}
	clear(segs[0][26:28])
	clear(segs[1][26:28])
	require.Len(t, merge(t, segs), 2, "datagrams without a checksum")
}

func TestMergeMakesWhatTheKernelExpects(t *testing.T) {
	for _, s := range []spec{tcp4(4500), tcp6(4500), udp4(4500), udp6(4500)} {
		if !s.udp {
			s.flags |= psh | cwr
		}
		want := s.super(1000)
		got := merge(t, s.segments(1000))
		require.Len(t, got, 1)
		require.Equal(t, want.GSO, got[0].GSO)
		require.Equal(t, want.Bytes(), got[0].Bytes())
	}
}

func TestMergeStopsAt64KiB(t *testing.T) {
	s := tcp4(65535 - 52)
	segs := s.segments(1448)
	next := s
	next.seq += uint32(len(s.payload))
	next.id += uint16(len(segs))
	next.payload = pattern(1)
	segs = append(segs, next.bytes(false))
	got := merge(t, segs)
	require.Len(t, got, 2)
	require.Equal(t, dpr.MaxPacket, got[0].Len)
	requireRestored(t, segs, got)
}

// The kernel refuses a super-frame of more datagrams.
func TestMergeStopsAt64Datagrams(t *testing.T) {
	for _, s := range []spec{udp4(65 * 10), udp6(65 * 10)} {
		segs := s.segments(10)
		got := merge(t, segs)
		require.Len(t, got, 2)
		require.Equal(t, len(segs[0])+63*10, got[0].Len)
		requireRestored(t, segs, got)
	}
}

func TestMergeShortBuffer(t *testing.T) {
	segs := tcp4(200).segments(100)
	var m segment.Merger
	dst := dpr.NewPackets(1, 251)[0]
	require.True(t, m.Start(&dst, segs[0]))
	require.False(t, m.Append(segs[1]), "252 bytes do not fit")
	m.Finish()
	require.Equal(t, segs[0], dst.Bytes())
	small := dpr.NewPackets(1, 151)[0]
	require.False(t, m.Start(&small, segs[0]))
}

func TestNothingAllocates(t *testing.T) {
	p := tcp4(64000).super(1448)
	segs := tcp4(64000).segments(1448)
	dst := dpr.NewPackets(64, 2000)
	out := dpr.NewPackets(1, dpr.MaxPacket)
	var s segment.Splitter
	var m segment.Merger
	require.Zero(t, testing.AllocsPerRun(10, func() {
		s.Start(&p)
		s.Next(dst)
		m.Start(&out[0], segs[0])
		for _, b := range segs[1:] {
			m.Append(b)
		}
		m.Finish()
	}))
	require.Zero(t, s.Left())
	require.Equal(t, p.Bytes(), out[0].Bytes())
}

// FuzzMerge feeds two packets of any bytes, which may look alike.
func FuzzMerge(f *testing.F) {
	for _, s := range []spec{tcp4(0), tcp6(0), udp4(0), udp6(0)} {
		a, b := pair(s)
		f.Add(a.bytes(false), b.bytes(false))
	}
	z := zeroSum()
	segs := z.segments(2)
	f.Add(segs[0], segs[1])
	f.Fuzz(func(t *testing.T, a, b []byte) {
		if len(a) > 3000 || len(b) > 3000 {
			return
		}
		segs := [][]byte{fixSums(a), fixSums(b)}
		requireRestored(t, segs, merge(t, segs))
	})
}

// fixSums completes the checksums of what the fuzzer made, or it would never get
// past them. It leaves fields of 0xFFFF, which may be another way to write 0.
func fixSums(b []byte) []byte {
	b = append([]byte{}, b...)
	if len(b) < 40 || b[0] != 0x45 || be.Uint16(b[10:]) == 0xffff {
		return b
	}
	clear(b[10:12])
	be.PutUint16(b[10:], ^uint16(slowSum(b[:20])))
	field := map[byte]int{6: 36, 17: 26}[b[9]]
	if field == 0 || be.Uint16(b[field:]) == 0xffff {
		return b
	}
	clear(b[field : field+2])
	l4 := len(b) - 20
	pseudo := append(append([]byte(nil), b[12:20]...), 0, b[9], byte(l4>>8), byte(l4))
	be.PutUint16(b[field:], ^uint16(slowSum(append(pseudo, b[20:]...))))
	return b
}

// FuzzSplit feeds a super-frame of any bytes with any offload state.
func FuzzSplit(f *testing.F) {
	for _, s := range []spec{tcp4(500), tcp6(500), udp4(500), udp6(500)} {
		p := s.super(100)
		f.Add(p.Bytes(), uint8(p.GSO.Type), true, p.GSO.CsumStart, p.GSO.CsumOffset, p.GSO.Size)
	}
	f.Fuzz(func(t *testing.T, b []byte, typ uint8, needs bool, start, offset, size uint16) {
		if len(b) > dpr.MaxPacket {
			return
		}
		p := packet(b, dpr.GSO{Type: dpr.GSOType(typ), NeedsCsum: needs, CsumStart: start, CsumOffset: offset, Size: size})
		var s segment.Splitter
		if !s.Start(&p) {
			return
		}
		dst := dpr.NewPackets(1, s.MaxLen())
		payload := 0
		for s.Left() > 0 {
			n, ok := s.Next(dst)
			require.True(t, ok)
			require.Equal(t, 1, n)
			payload += dst[0].Len - s.HeaderLen()
		}
		require.Equal(t, p.Len-s.HeaderLen(), payload)
	})
}

func BenchmarkSplit(b *testing.B) {
	p := tcp4(64000).super(1448)
	dst := dpr.NewPackets(64, 2000)
	var s segment.Splitter
	b.SetBytes(int64(p.Len))
	for b.Loop() {
		s.Start(&p)
		s.Next(dst)
	}
}

func BenchmarkMerge(b *testing.B) {
	segs := tcp4(64000).segments(1448)
	out := dpr.NewPackets(1, dpr.MaxPacket)
	var m segment.Merger
	b.SetBytes(64000)
	for b.Loop() {
		m.Start(&out[0], segs[0])
		for _, s := range segs[1:] {
			m.Append(s)
		}
		m.Finish()
	}
}
