package confirm

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/carom-dpr/carom/dpr"
)

func drawFlow(t *rapid.T) dpr.Question {
	port := rapid.Uint16()
	n := rapid.IntRange(0, 2).Draw(t, "dialled")
	if rapid.Bool().Draw(t, "v6") {
		client := rapid.SliceOfN(rapid.Byte(), 15, 15).Draw(t, "client")
		return dpr.Question{
			Client:  netip.AddrPortFrom(netip.AddrFrom16([16]byte(append([]byte{0xfd}, client...))), port.Draw(t, "port")),
			Dialled: netip.AddrPortFrom(netip.AddrFrom16([16]byte{0xfd, 15: byte(n)}), 80),
		}
	}
	client := rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "client")
	return dpr.Question{
		Client:  netip.AddrPortFrom(netip.AddrFrom4([4]byte(client)), port.Draw(t, "port")),
		Dialled: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}), 80),
	}
}

// Whatever is asked arrives, in messages that are as short as they must be.
func TestQuestionsArrive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		flows := rapid.SliceOfN(rapid.Custom(drawFlow), 1, 600).Draw(t, "flows")
		max := rapid.IntRange(minMessage, 4000).Draw(t, "max")
		var got []dpr.Question
		for rest := flows; len(rest) > 0; {
			b, n := appendQuestion(nil, 42, rest, max)
			require.Positive(t, n)
			require.LessOrEqual(t, len(b), max)
			require.Equal(t, byte(kindQuestion), b[0])
			require.Equal(t, uint64(42), be.Uint64(b[1:]))
			list, ok := parseQuestion(b[headLen:], nil)
			require.True(t, ok)
			got = append(got, list...)
			rest = rest[n:]
		}
		require.Equal(t, flows, got)
	})
}

func TestLivesArrive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		raw := rapid.SliceOf(rapid.ByteRange(0, 3)).Draw(t, "lives")
		lives, got := make([]dpr.Life, len(raw)), make([]dpr.Life, len(raw))
		for i, r := range raw {
			lives[i] = dpr.Life(r)
		}
		b := appendLives([]byte("head"), lives)[4:]
		require.Len(t, b, (len(raw)+3)/4)
		require.True(t, parseLives(b, got))
		require.Equal(t, lives, got)
		require.False(t, parseLives(append(b, 0), got))
	})
}

func TestCostOfAThousandConnections(t *testing.T) {
	flows := make([]dpr.Question, 1000)
	for i := range flows {
		flows[i] = dpr.Question{
			Client:  netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 4000),
			Dialled: netip.MustParseAddrPort("192.0.2.1:80"),
		}
	}
	const headers = 20 + 8 + 32 // IPv4, UDP, and that of control messages
	asked, told := 0, 0
	for rest := flows; len(rest) > 0; {
		b, n := appendQuestion(nil, 1, rest, defaultMessage)
		asked += headers + len(b)
		told += headers + len(appendLives(appendHead(nil, kindAnswer, 1), make([]dpr.Life, n)))
		rest = rest[n:]
	}
	require.Equal(t, 6462, asked)
	require.Equal(t, 666, told)
}

func FuzzParseQuestion(f *testing.F) {
	b, _ := appendQuestion(nil, 1, []dpr.Question{
		{Client: netip.MustParseAddrPort("10.0.0.1:1"), Dialled: netip.MustParseAddrPort("10.0.0.2:80")},
		{Client: netip.MustParseAddrPort("[fd00::1]:1"), Dialled: netip.MustParseAddrPort("[fd00::2]:80")},
	}, 1000)
	f.Add(b[headLen:])
	f.Add([]byte{4, 0, 0, 0, 0, 0, 0, 255})
	f.Add([]byte("\x04000000\x01000000\x10")) // a group, and the size of the next alone
	f.Fuzz(func(t *testing.T, b []byte) {
		flows, ok := parseQuestion(b, nil)
		require.LessOrEqual(t, len(flows)*6, len(b))
		for _, q := range flows {
			require.True(t, ok)
			require.True(t, q.Client.IsValid() && q.Dialled.IsValid())
		}
	})
}
