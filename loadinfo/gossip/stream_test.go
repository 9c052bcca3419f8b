package gossip

import (
	"bytes"
	"encoding/binary"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/loadinfo"
)

// header is memberlist's, as memberlist encodes it.
type header struct {
	Nodes, UserStateLen int
	Join                bool
}

// exchange is what memberlist sends of that many members, and reports.
func exchange(t testing.TB, h header, members int, reports []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	b.WriteByte(pushPullMsg)
	require.NoError(t, codec.NewEncoder(&b, new(codec.MsgpackHandle)).Encode(h))
	for range members {
		b.Write(member(t))
	}
	b.Write(reports)
	return b.Bytes()
}

// member is the longest that there is.
func member(t testing.TB) (b []byte) {
	t.Helper()
	require.NoError(t, codec.NewEncoderBytes(&b, new(codec.MsgpackHandle)).Encode(struct {
		Name        string
		Addr        []byte
		Port        uint16
		Meta        []byte
		Incarnation uint32
		State       int
		Vsn         []uint8
	}{memberName(strings.Repeat("h", loadinfo.MaxID), 1<<64-1), make([]byte, 16), 65535, nil, 1<<32 - 1, 3, make([]byte, 6)}))
	return b
}

func TestIntake(t *testing.T) {
	require.Less(t, len(member(t)), perMember)
	const hosts = 100
	full := exchange(t, header{Nodes: hosts * lives, UserStateLen: hosts * perReport}, hosts*lives, make([]byte, hosts*perReport))
	for name, tt := range map[string]struct {
		in        []byte
		encrypted bool
		want      error
	}{
		"a probe":                     {[]byte{pingMsg, 0x81, 0xa5, 'S', 'e', 'q', 'N', 'o', 1}, false, nil},
		"its answer":                  {[]byte{ackMsg, 0x81, 0xa5, 'S', 'e', 'q', 'N', 'o', 1}, false, nil},
		"an error":                    {[]byte{errMsg, 0x81, 0xa5, 'E', 'r', 'r', 'o', 'r', 0xa1, 'x'}, false, nil},
		"everything":                  {full, false, nil},
		"everything behind a label":   {append([]byte{labelMsg, 2, 'x', 'y'}, full...), false, nil},
		"plain among keys":            {full, true, loadinfo.ErrKey},
		"compressed":                  {[]byte{compressMsg, 0x80}, false, loadinfo.ErrMalformed},
		"compressed behind a label":   {[]byte{labelMsg, 2, 'x', 'y', compressMsg}, false, loadinfo.ErrMalformed},
		"a label like a type":         {[]byte{labelMsg, 1, compressMsg, pingMsg, 0x80}, false, nil},
		"a message of a user":         {[]byte{userMsg, 0x80}, false, loadinfo.ErrMalformed},
		"HTTP":                        {[]byte("GET / HTTP/1.1\r\n\r\n"), false, loadinfo.ErrMalformed},
		"encrypted":                   {[]byte{encryptMsg, 0, 0, 0, 3, gcm, 7, 7}, true, nil},
		"encrypted otherwise":         {[]byte{encryptMsg, 0, 0, 0, 3, 0, 7, 7}, true, loadinfo.ErrKey},
		"encrypted nothing":           {[]byte{encryptMsg, 0, 0, 0, 0}, true, loadinfo.ErrMalformed},
		"encrypted among plain":       {[]byte{encryptMsg, 0, 0, 0, 3, gcm, 7, 7}, false, loadinfo.ErrKey},
		"encrypted, 3.4 GB":           {[]byte{encryptMsg, 0xcc, 0, 0, 0, gcm, 7, 7}, true, errTooLong},
		"a string of 3.4 GB":          {[]byte{pushPullMsg, 0x81, 0xdb, 0xcc, 0, 0, 0, 'x'}, false, errTooLong},
		"bytes of 3.4 GB":             {[]byte{pushPullMsg, 0x81, 0xa1, 'x', 0xc6, 0xcc, 0, 0, 0, 'x'}, false, errTooLong},
		"an extension of 3.4 GB":      {[]byte{pingMsg, 0x81, 0xa1, 'x', 0xc9, 0xcc, 0, 0, 0, 5}, false, errTooLong},
		"an array of 3.4 billion":     {[]byte{pushPullMsg, 0xdd, 0xcc, 0, 0, 0, 1}, false, errTooLong},
		"a map of 3.4 billion":        {[]byte{pushPullMsg, 0xdf, 0xcc, 0, 0, 0, 1}, false, errTooLong},
		"a million members":           {exchange(t, header{Nodes: 1e6}, 1, nil), false, errTooLong},
		"members below none":          {exchange(t, header{Nodes: -1}, 1, nil), false, loadinfo.ErrMalformed},
		"reports of 20 MB":            {exchange(t, header{UserStateLen: 20 << 20}, 0, []byte("x")), false, errTooLong},
		"reports below none":          {exchange(t, header{UserStateLen: -1}, 0, nil), false, loadinfo.ErrMalformed},
		"a member of 3.4 GB":          {append(exchange(t, header{Nodes: 1}, 0, nil), 0xdb, 0xcc, 0, 0, 0), false, errTooLong},
		"a header that is no map":     {[]byte{pushPullMsg, 7}, false, loadinfo.ErrMalformed},
		"more room than there can be": {append([]byte{pingMsg, 0xdd, 0, 1, 0, 0}, bytes.Repeat([]byte{0xdc, 0xff, 0xff}, 9)...), false, errTooLong},
		"nothing":                     {nil, false, loadinfo.ErrTruncated},
	} {
		m := newIntake(iotest.OneByteReader(bytes.NewReader(tt.in)), hosts)
		require.ErrorIs(t, m.message(tt.encrypted), tt.want, name)
		require.LessOrEqual(t, cap(m.taken), 2*len(tt.in)+8192, name)
		if tt.want == nil {
			require.Equal(t, tt.in, m.taken, name)
		}
		for cut := range min(len(tt.in), 1000) {
			m = newIntake(bytes.NewReader(tt.in[:cut]), hosts)
			require.Error(t, m.message(tt.encrypted), "%s, cut after %d bytes", name, cut)
		}
	}
}

// A stranger states 3.4 GB, in every way that there is, or a million members, for which
// memberlist would reserve 150 MB, or 20 MB of reports, and sends as little as it can.
func TestA66StatedLengthsOfStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		hosts := five(t, n, host{})
		one, view, before := hosts[0], hosts[0].states(), hosts[0].g.Stats()
		var memory, after runtime.MemStats
		runtime.ReadMemStats(&memory)
		stated := [][]byte{exchange(t, header{Nodes: 1 << 20}, 1, nil), exchange(t, header{UserStateLen: 20 << 20}, 0, []byte("x"))}
		for _, kind := range []byte{0xdb, 0xc6, 0xc9, 0xdd, 0xdf} {
			b := []byte{pushPullMsg, 0x81, 0xa5, 'E', 'x', 't', 'r', 'a', kind}
			stated = append(stated, append(binary.BigEndian.AppendUint32(b, 3_400_000_000), 5)) // an extension's type, or a byte
		}
		for i, b := range stated {
			conn, err := n.listen(addrOf(90+i)).dial(t.Context(), addrOf(1))
			require.NoError(t, err)
			_, err = conn.Write(b)
			require.NoError(t, err)
			_, _ = io.Copy(io.Discard, conn) // what memberlist answers, and the end
		}
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-memory.TotalAlloc, uint64(10<<20), "bytes for all of them, and what the hosts do besides")
		require.Equal(t, before.Malformed+uint64(len(stated)), one.g.Stats().Malformed)
		require.Contains(t, one.log.String(), "MaxHosts")
		require.Equal(t, view, one.states())
		stopAll(hosts...)
	})
}

// Strangers that say nothing take all places, until their time is over; who waits
// behind them joins then.
func TestStreamsWaitForPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		hosts := five(t, n, host{})
		for i := range 2 * maxStreams {
			conn, err := n.listen(addrOf(100+i)).dial(t.Context(), addrOf(1))
			require.NoError(t, err)
			defer conn.Close()
		}
		synctest.Wait()
		require.Len(t, hosts[0].sock.conns, maxStreams, "the rest waits")
		pass(3 * streamTime)
		require.Empty(t, hosts[0].sock.conns)
		hosts = append(hosts, run(t, n, 6, host{}))
		within(t, 5*time.Second, func() bool { return agree(hosts, allUp(1, 6)) })
		stopAll(hosts...)
	})
}

// FuzzIntake takes no more than came, and what it takes whole is the same in pieces.
func FuzzIntake(f *testing.F) {
	f.Add(exchange(f, header{Nodes: 2, UserStateLen: 3}, 2, []byte("abc")), false)
	f.Add([]byte{labelMsg, 1, 'x', pingMsg, 0x81, 0xa5, 'S', 'e', 'q', 'N', 'o', 1}, false)
	f.Add([]byte{encryptMsg, 0, 0, 0, 3, gcm, 7, 7}, true)
	f.Add([]byte{pushPullMsg, 0x81, 0xa1, 'x', 0xc9, 0xcc, 0, 0, 0, 5}, false)
	f.Fuzz(func(t *testing.T, b []byte, encrypted bool) {
		whole, pieces := newIntake(bytes.NewReader(b), 10), newIntake(iotest.OneByteReader(bytes.NewReader(b)), 10)
		err := whole.message(encrypted)
		require.Equal(t, err, pieces.message(encrypted))
		require.Equal(t, whole.taken, pieces.taken)
		require.True(t, bytes.HasPrefix(b, whole.taken))
		require.LessOrEqual(t, cap(whole.taken), 2*len(b)+8192)
	})
}
