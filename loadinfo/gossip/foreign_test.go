package gossip

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/loadinfo"
)

// inject brings datagrams to a host, and lets it take them before time goes on.
func (s *station) inject(list ...[]byte) {
	for _, b := range list {
		s.sock.queue <- datagram{addrOf(99), bytes.Clone(b)}
		synctest.Wait()
	}
}

func plain(msg ...byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{crcMsg}, crc32.ChecksumIEEE(msg)), msg...)
}

// A66: each truncation and each flipped bit of datagrams of which some would be news.
func TestA66Damage(t *testing.T) {
	for name, h := range map[string]host{"plain": {}, "encrypted": {keys: ring(t, 1)}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				hosts := five(t, n, h)
				n.setCut(func(_ bool, _, to netip.AddrPort) bool { return to == addrOf(1) })
				pass(time.Second) // what is sent from now on, is news to host 1
				var sent [][]byte
				n.mu.Lock()
				n.heard = func(_, to netip.AddrPort, b []byte) {
					if to == addrOf(1) {
						sent = append(sent, bytes.Clone(b))
					}
				}
				n.mu.Unlock()
				pass(700 * time.Millisecond)
				one, view := hosts[0], hosts[0].states()
				accepted := one.g.Stats().Accepted
				for _, b := range sent {
					for i := range b {
						one.inject(b[:i])
					}
					for bit := range 8 * len(b) {
						b[bit/8] ^= 1 << (bit % 8)
						one.inject(b)
						b[bit/8] ^= 1 << (bit % 8)
					}
				}
				require.Equal(t, view, one.states())
				require.Equal(t, accepted, one.g.Stats().Accepted)
				one.inject(sent...)
				require.Greater(t, one.g.Stats().Accepted, accepted, "as they were sent, they are news")
				stopAll(hosts...)
			})
		})
	}
}

func TestA66Foreign(t *testing.T) {
	compound := func(count byte, lengths ...uint16) []byte {
		b := []byte{compoundMsg, count}
		for _, n := range lengths {
			b = binary.BigEndian.AppendUint16(b, n)
		}
		return append(b, 8, 8, 8)
	}
	random := make([]byte, 1400)
	rng := rand.NewChaCha8([32]byte{})
	_, _ = rng.Read(random)
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		hosts := five(t, n, host{})
		one, view, before := hosts[0], hosts[0].states(), hosts[0].g.Stats()
		one.inject(
			random, []byte{}, []byte("GET / HTTP/1.1\r\n\r\n"), []byte{compressMsg},
			plain(compound(200, 3)...), plain(compound(1, 65535)...), plain(compound(3, 1, 1, 1)...),
			plain(compoundMsg), plain(compoundMsg, 1), plain(8), plain(8, 255), plain(77, 1), plain(0), plain(random...),
			plain(compressMsg, 0x82, 0xa4, 'A', 'l', 'g', 'o', 0, 0xa3, 'B', 'u', 'f', 0xa1, 0),
			plain(append(compound(1, 3), compressMsg)...),
		)
		nested := []byte{compressMsg, 1, 2, 3}
		for range 20 { // a compound in a compound in ...
			nested = append([]byte{compoundMsg, 1, byte(len(nested) >> 8), byte(len(nested))}, nested...)
		}
		malformed := one.g.Stats().Malformed
		one.inject(plain(nested...))
		require.Equal(t, malformed+1, one.g.Stats().Malformed, "not unpacked")
		require.Equal(t, view, one.states())
		after := one.g.Stats()
		require.Equal(t, before.Accepted, after.Accepted)
		require.Greater(t, after.Malformed, before.Malformed+5)

		conn, err := hosts[4].sock.dial(t.Context(), addrOf(1))
		require.NoError(t, err)
		malformed = one.g.Stats().Malformed
		_, _ = conn.Write([]byte{compressMsg, 0x82})
		synctest.Wait()
		require.Equal(t, malformed+1, one.g.Stats().Malformed)
		conn.Close()
		stopAll(hosts...)
	})
}

// What says that it is longer than it is could cost gigabytes.
func TestA66StatedLengths(t *testing.T) {
	for _, tt := range []struct {
		name string
		b    []byte
		want bool
	}{
		{"a member", alive("a@1", addrOf(7), 1, 5, 5, 0, 0, 0)[1:], true},
		{"nothing", nil, true},
		{"numbers", []byte{0x7f, 0xff, 0xc0, 0xc3, 0xcc, 1, 0xcd, 1, 2, 0xce, 1, 2, 3, 4, 0xca, 1, 2, 3, 4, 0xd3, 1, 2, 3, 4, 5, 6, 7, 8}, true},
		{"a string", []byte{0xa2, 'a', 'b'}, true},
		{"a string that is cut", []byte{0xa2, 'a'}, false},
		{"a string of 255", []byte{0xd9, 255, 'a'}, false},
		{"a string of 4 GB", []byte{0xdb, 255, 255, 255, 255, 'a'}, false},
		{"bytes of 4 GB", []byte{0xc6, 255, 255, 255, 255, 'a'}, false},
		{"an extension of 4 GB", []byte{0x81, 0xa1, 'x', 0xc9, 255, 255, 255, 255, 255}, false},
		{"an extension", []byte{0xc7, 1, 5, 'x'}, true},
		{"an extension without its type", []byte{0xc7, 1, 5}, false},
		{"an extension of 16", append([]byte{0xd8}, make([]byte, 17)...), true},
		{"an array", []byte{0x92, 1, 2}, true},
		{"an array of 4 billion", []byte{0xdd, 255, 255, 255, 255, 1}, false},
		{"a map", []byte{0x81, 1, 2}, true},
		{"a map of 4 billion", []byte{0xdf, 255, 255, 255, 255, 1, 2}, false},
		{"a length that is cut", []byte{0xdb, 255}, false},
	} {
		require.Equal(t, tt.want, bounded(tt.b), tt.name)
		require.Equal(t, tt.want, tame(append([]byte{0}, tt.b...)), tt.name)
		require.True(t, tame(append([]byte{userMsg}, tt.b...)), "a report is no MessagePack")
	}
}

// alive is memberlist's announcement of a member, in MessagePack.
func alive(name string, at netip.AddrPort, versions ...byte) []byte {
	str := func(s string) []byte { return append([]byte{0xa0 | byte(len(s))}, s...) }
	b := []byte{4, 0x87}
	b = append(append(b, str("Incarnation")...), 1)
	b = append(append(b, str("Node")...), str(name)...)
	b = append(append(b, str("Addr")...), str(string(at.Addr().AsSlice()))...)
	b = append(append(b, str("Port")...), 0xcd, byte(at.Port()>>8), byte(at.Port()))
	b = append(append(b, str("Meta")...), 0xc0)
	b = append(append(b, str("Extra")...), 7) // a field of the future
	return append(append(b, str("Vsn")...), str(string(versions))...)
}

func TestA68PoisonedVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		hosts := five(t, n, host{})
		good := plain(alive("good@1", addrOf(50), 1, 5, 5, 0, 0, 0)...)
		hosts[0].inject(good)
		within(t, time.Minute, func() bool { return hosts[0].g.lost.has(addrOf(50)) }) // it was a member, and died
		for i, versions := range [][]byte{
			{0, 0, 0, 0, 0, 0}, {0, 5, 5, 0, 0, 0}, {5, 1, 5, 0, 0, 0}, {6, 9, 6, 0, 0, 0}, {1, 9, 9, 0, 0, 0},
			{1, 5, 0, 0, 0, 0}, {1, 5, 2, 0, 0, 0}, {1, 5, 5, 1, 1, 1}, {1, 5, 5}, {},
		} {
			for _, h := range hosts {
				h.inject(plain(alive(fmt.Sprintf("poison%d@1", i), addrOf(60+i), versions...)...))
			}
		}
		require.Contains(t, hosts[0].log.String(), "poison0@1", "named in the log")
		late := run(t, n, 6, host{})
		hosts = append(hosts, late)
		within(t, 5*time.Second, func() bool { return agree(hosts, allUp(1, 6)) })
		pass(2 * time.Minute)
		for i := range 10 {
			require.False(t, hosts[0].g.lost.has(addrOf(60+i)), "poison%d never was a member", i)
		}
		stopAll(hosts...)
	})
}

// A70: a report says how old it is, whatever way it came and whatever the clocks say.
func TestA70AgesAddUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		hosts := five(t, n, host{})
		n.setCut(func(_ bool, from, to netip.AddrPort) bool { return from == addrOf(1) && to == addrOf(5) })
		compared := 0
		for range 100 {
			pass(100 * time.Millisecond)
			origin, far := hosts[0].g.table.entry("h1"), hosts[4].g.table.entry("h1")
			if origin.msg == far.msg {
				compared++
				require.InDelta(t, 0, origin.made.Sub(far.made), float64(5*time.Millisecond))
			}
		}
		require.Greater(t, compared, 50)
		stopAll(hosts...)
	})
}

func (t *table) entry(id string) entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	return *t.hosts[id]
}

func (l *lost) has(a netip.AddrPort) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.addrs[a]
	return ok
}

// FuzzDatagram lets memberlist itself have what the transport admits: it must not
// panic, whatever a stranger sends to a cluster without keys.
func FuzzDatagram(f *testing.F) {
	f.Add(alive("a@1", addrOf(7), 1, 5, 5, 0, 0, 0))
	f.Add([]byte{compoundMsg, 2, 0, 1, 0, 1, 8, 9})
	f.Add([]byte{0, 0x81, 0xa1, 'x', 0xc9, 255, 255, 255, 255, 5}) // an unknown field of 4 GB
	for kind := range byte(16) {
		f.Add([]byte{kind, 0x81, 0xa5, 'S', 'e', 'q', 'N', 'o', 1})
		f.Add([]byte{kind, 0x84, 0xa6, 'T', 'a', 'r', 'g', 'e', 't', 0xa1, 1, 0xa4, 'P', 'o', 'r', 't', 7, 0xa4, 'N', 'o', 'd', 'e', 0xa3, 'a', '@', '1',
			0xaa, 'S', 'o', 'u', 'r', 'c', 'e', 'A', 'd', 'd', 'r', 0xa1, 9})
	}
	board := loadinfo.NewBoard(loadinfo.BoardConfig{})
	require.NoError(f, board.SetSelf(loadinfo.Self{ID: "self", Boot: 1}))
	s := newNetwork().listen(addrOf(1))
	g, err := New(Config{Board: board, Conn: s, Listener: s, Dial: s.dial, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(f, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	f.Cleanup(func() {
		cancel()
		<-done
	})
	f.Fuzz(func(t *testing.T, b []byte) {
		s.queue <- datagram{addrOf(2), plain(b...)}
		s.queue <- datagram{addrOf(2), b}
		require.Empty(t, done, "it runs on")
	})
}

// FuzzReceive gives bytes as messages, as a state and as a datagram.
func FuzzReceive(f *testing.F) {
	r := loadinfo.Report{ID: "a", Boot: 1, Resources: loadinfo.Unknown}
	report, err := r.Append(nil, nil)
	require.NoError(f, err)
	msg := append([]byte{9}, report...)
	f.Add(msg)
	f.Add(append([]byte{0, byte(len(msg))}, msg...))
	f.Add(plain(append([]byte{compoundMsg, 1, 0, byte(len(msg))}, msg...)...))
	f.Add([]byte{labelMsg, 1, 'x', compressMsg})
	f.Add([]byte{compoundMsg, 3, 0, 1, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		board := loadinfo.NewBoard(loadinfo.BoardConfig{})
		require.NoError(t, board.SetSelf(loadinfo.Self{ID: "self"}))
		s := newNetwork().listen(addrOf(1))
		g, err := New(Config{Board: board, Conn: s, Listener: s, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		d := &delegate{g}
		d.NotifyMsg(b)
		d.MergeRemoteState(b, true)
		hosts, _ := g.table.size()
		require.Equal(t, len(board.Members(time.Now()))-1, hosts, "what is believed is sent on, and nothing else")
		nothing := d.LocalState(false) == nil // it forgets what came too old to be sent on
		hosts, _ = g.table.size()
		require.Equal(t, nothing, hosts == 0)
		body := b[behindLabel(b):]
		require.True(t, len(body) == 0 || body[0] == crcMsg || sealed(seal(b)))
		tame(b)
	})
}
