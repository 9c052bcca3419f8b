package gue

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
)

var (
	controlKeys = []Key{{ID: 3, Secret: [16]byte{1}}, {ID: 2, Secret: [16]byte{2}}}
	controlA    = netip.MustParseAddr("10.0.0.1").As16()
	controlB    = netip.MustParseAddr("10.0.0.2").As16()
)

func ring(t testing.TB, keys ...Key) *keyring {
	t.Helper()
	r, err := newKeyring(keys)
	require.NoError(t, err)
	return r
}

func TestControlMessageIsWhatWasSent(t *testing.T) {
	for name, keys := range map[string][]Key{"without keys": nil, "with keys": controlKeys} {
		t.Run(name, func(t *testing.T) {
			b := ring(t, keys...).putControl(&controlA, &controlB, 77, []byte("hello"))
			require.Len(t, b, controlLen+5)
			require.Equal(t, []byte{0x27, 128, 0, 0, 0}, b[:5])
			seq, message, why := ring(t, keys...).openControl(b, &controlA, &controlB)
			require.Equal(t, OK, why)
			require.Equal(t, uint64(77), seq)
			require.Equal(t, "hello", string(message))
		})
	}
}

// Each bit of a control message counts, and so do its ends.
func TestControlTagCoversAll(t *testing.T) {
	r := ring(t, controlKeys...)
	good := r.putControl(&controlA, &controlB, 1<<40, []byte("message"))
	for bit := range len(good) * 8 {
		b := append([]byte(nil), good...)
		b[bit/8] ^= 1 << (bit % 8)
		_, _, why := r.openControl(b, &controlA, &controlB)
		require.NotEqual(t, OK, why, "bit %d", bit)
	}
	for n := range good {
		_, _, why := r.openControl(good[:n], &controlA, &controlB)
		require.NotEqual(t, OK, why, "%d bytes", n)
	}
	_, _, why := r.openControl(good, &controlB, &controlA)
	require.Equal(t, BadTag, why)
	_, _, why = ring(t, controlKeys[1]).openControl(good, &controlA, &controlB)
	require.Equal(t, UnknownKey, why)
	_, _, why = r.openControl(ring(t).putControl(&controlA, &controlB, 1, nil), &controlA, &controlB)
	require.Equal(t, NoTag, why)
}

func TestControlSequence(t *testing.T) {
	r := ring(t, controlKeys...)
	var got []string
	var c controls
	c.begin(func(from dpr.PeerID, message []byte) {
		require.Equal(t, dpr.PeerID(5), from)
		got = append(got, string(message))
	})
	send := func(seq uint64, text string) Reason {
		return c.receive(r, 5, r.putControl(&controlA, &controlB, seq, []byte(text)), &controlA, &controlB)
	}
	require.Equal(t, OK, send(10, "ten"))
	require.Equal(t, Replayed, send(10, "ten again"))
	require.Equal(t, Replayed, send(9, "overtaken"))
	require.Equal(t, OK, send(12, "twelve"))
	require.Equal(t, []string{"ten", "twelve"}, got)

	// Only what is authentic moves the sequence.
	forged := ring(t, Key{ID: 3, Secret: [16]byte{9}}).putControl(&controlA, &controlB, 1<<60, nil)
	require.Equal(t, BadTag, c.receive(r, 5, forged, &controlA, &controlB))
	require.Equal(t, OK, send(13, "thirteen"))

	peers, err := newPeerTable([]Peer{{ID: 5, Addr: netip.MustParseAddrPort("10.0.0.1:1")}},
		[]netip.AddrPort{netip.MustParseAddrPort("10.0.0.2:1")})
	require.NoError(t, err)
	c.forget(peers)
	require.Equal(t, Replayed, send(13, "of a peer that stays"))
	c.forget(&peerTable{})
	require.Equal(t, OK, send(1, "of a peer that went"))
}

func TestControlOverIP(t *testing.T) {
	for _, ends := range [][2]string{{"10.0.0.1:6080", "10.0.0.2:6080"}, {"[fd00::1]:6080", "[fd00::2]:6080"}} {
		at, bt := netip.MustParseAddrPort(ends[0]), netip.MustParseAddrPort(ends[1])
		n := dprtest.NewNetwork(1)
		got := make(chan string, 1)
		join := func(addr netip.AddrPort, take func(dpr.PeerID, []byte)) *OverIP {
			e, err := n.Join(dprtest.Link{MTU: 1280}, addr.Addr())
			require.NoError(t, err)
			u, err := NewOverIP(Config{Listen: []netip.AddrPort{addr}, Keys: controlKeys, Control: take}, e)
			require.NoError(t, err)
			return u
		}
		a := join(at, nil)
		b := join(bt, func(from dpr.PeerID, m []byte) { got <- string(m) })
		require.NoError(t, a.SetPeers([]Peer{{ID: 7, Addr: bt}}))
		require.NoError(t, b.SetPeers([]Peer{{ID: 8, Addr: at}}))
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = b.Read(dpr.NewPackets(4, 2000))
		}()
		long := string(make([]byte, MaxControl)) // fits the narrowest link of IPv6
		require.NoError(t, a.Control(7, []byte(long)))
		require.Equal(t, long, <-got)
		require.Error(t, a.Control(7, make([]byte, MaxControl+1)))
		require.Error(t, a.Control(9, nil))
		require.NoError(t, n.Close())
		<-done
		require.Zero(t, b.Stats().Dropped)
	}
}

func FuzzOpenControl(f *testing.F) {
	r, _ := newKeyring(controlKeys)
	plain, _ := newKeyring(nil)
	f.Add(r.putControl(&controlA, &controlB, 1, []byte("x")))
	f.Add(plain.putControl(&controlA, &controlB, 1, []byte("x")))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, message, why := r.openControl(b, &controlA, &controlB)
		require.True(t, why == OK || message == nil)
		if seq, message, why := plain.openControl(b, &controlA, &controlB); why == OK {
			again := plain.putControl(&controlA, &controlB, seq, message)
			require.Equal(t, again[8:16], b[8:16])
			require.Equal(t, again[controlLen:], b[controlLen:])
		}
	})
}
