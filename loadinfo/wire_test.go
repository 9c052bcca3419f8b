package loadinfo

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/lb"
)

func ring(t testing.TB, ids ...uint8) *Keyring {
	t.Helper()
	var keys []Key
	for _, id := range ids {
		keys = append(keys, Key{ID: id, Secret: []byte(fmt.Sprintf("the secret of key %03d", id))})
	}
	k, err := NewKeyring(keys...)
	require.NoError(t, err)
	return k
}

func encode(t testing.TB, r Report, k *Keyring) []byte {
	t.Helper()
	b, err := r.Append(nil, k)
	require.NoError(t, err)
	return b
}

// small is the ordinary report: one service, four resources.
func small() Report {
	return Report{
		ID: "www-berlin-01.eu", Boot: 1 << 60, Seq: 1_000_000, Weight: 100,
		Resources: lb.Resources{CPU: 1, Memory: 0.5, Disk: 0, Network: -1},
		Services:  []ServiceReport{{ID: HashService("www"), Conns: 70_000, Weight: 100, Healthy: true}},
	}
}

// large has as much of everything as a report may have.
func large() Report {
	r := Report{
		ID: strings.Repeat("x", MaxID), Boot: math.MaxUint64, Seq: math.MaxUint64, Weight: math.MaxUint16,
		State: Draining, Node: netip.MustParseAddrPort("[2001:db8::1]:65535"), Period: time.Second,
	}
	for i := range MaxDialled {
		r.Dialled = append(r.Dialled, netip.AddrFrom16([16]byte{0x20, 1, 15: byte(i)}))
	}
	for i := range MaxServices {
		r.Services = append(r.Services, ServiceReport{
			ID: ServiceID(i), Conns: math.MaxUint32, Weight: uint16(i),
			InFlight: 2047 << 20, Latency: 2000 * time.Microsecond, Since: 2047 << 31 * time.Millisecond,
		})
	}
	for i := range MaxNamed {
		r.Named = append(r.Named, NamedResource{
			Name: strings.Repeat(string(rune('a'+i)), MaxResourceName), Used: -1, Capacity: 2047 << 31, Age: time.Second,
		})
	}
	return r
}

func reports() map[string]Report {
	two := small()
	two.Node = netip.MustParseAddrPort("10.0.0.1:6080")
	two.State = Joining
	two.Dialled = []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8::2")}
	two.Services = append(two.Services, ServiceReport{ID: 7})
	busy := small()
	busy.ID, busy.Period = "web-0001", DefaultPeriod
	busy.Services[0].InFlight, busy.Services[0].Latency, busy.Services[0].Since = 9, 1024*time.Microsecond, time.Second
	named := two
	named.Named = []NamedResource{{Name: "accept queue", Used: 1, Capacity: 4096}, {Name: "é", Age: 2 * time.Second}}
	return map[string]Report{
		"small": small(), "large": large(), "two services": two, "busy": busy, "named": named,
		"least": {ID: "a", Resources: Unknown},
	}
}

func TestRoundTrip(t *testing.T) {
	for name, r := range reports() {
		for _, keys := range []*Keyring{nil, ring(t, 3)} {
			t.Run(fmt.Sprintf("%s/key %d", name, keys.sendID()), func(t *testing.T) {
				b := encode(t, r, keys)
				require.LessOrEqual(t, len(b), MaxReport)
				got, err := ParseReport(b, keys)
				require.NoError(t, err)
				require.InDelta(t, r.Resources.Memory, got.Resources.Memory, 1e-4)
				got.Resources.Memory = r.Resources.Memory // half of 65534 is not half of 1
				require.Equal(t, r, got)
			})
		}
	}
}

func TestSmallReportIsSmall(t *testing.T) {
	require.LessOrEqual(t, len(encode(t, small(), nil))-crcLen, 64)
	require.LessOrEqual(t, len(encode(t, reports()["busy"], nil))-crcLen, 64, "as a board makes it")
}

// The format is a contract between releases: these bytes must not change.
func TestGolden(t *testing.T) {
	r := Report{
		ID: "web-1", Boot: 0x0102030405060708, Seq: 300, Weight: 100, State: Draining,
		Node:      netip.MustParseAddrPort("10.0.0.1:6080"),
		Dialled:   []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8::2")},
		Resources: lb.Resources{CPU: 1, Memory: -1, Disk: 0, Network: -1},
		Services:  []ServiceReport{{ID: 0xaabbccdd, Conns: 258, Weight: 50, Healthy: true}},
	}
	fields := "ca0100020054" + "0102030405060708" + "0064" + "ac02" +
		"0105" + hex.EncodeToString([]byte("web-1")) +
		"0308fffeffff0000ffff" +
		"060baabbccdd00000102003201" +
		"02060a00000117c0" +
		"0404c6336401" +
		"0510" + "20010db8000000000000000000000002"
	got := hex.EncodeToString(encode(t, r, nil))
	require.Equal(t, fields, got[:len(got)-2*crcLen])
	back, err := ParseReport(encode(t, r, nil), nil)
	require.NoError(t, err)
	require.Equal(t, r, back)
}

func TestAppendKeepsWhatIsThere(t *testing.T) {
	r := small()
	b, err := r.Append([]byte("before"), nil)
	require.NoError(t, err)
	require.Equal(t, "before", string(b[:6]))
	_, err = ParseReport(b[6:], nil)
	require.NoError(t, err)
}

// A66: whatever damage a network does to one bit or to the end, is found.
func TestDamageIsRefused(t *testing.T) {
	for name, r := range reports() {
		for _, keys := range []*Keyring{nil, ring(t, 1, 2)} {
			t.Run(fmt.Sprintf("%s/key %d", name, keys.sendID()), func(t *testing.T) {
				b := encode(t, r, keys)
				for n := range b {
					_, err := ParseReport(b[:n], keys)
					require.ErrorIs(t, err, ErrTruncated, "the first %d of %d bytes", n, len(b))
				}
				_, err := ParseReport(append(slices.Clone(b), 0), keys)
				require.ErrorIs(t, err, ErrTruncated, "one byte more")
				for bit := range 8 * len(b) {
					b[bit/8] ^= 1 << (bit % 8)
					_, err := ParseReport(b, keys)
					require.Error(t, err, "bit %d", bit)
					b[bit/8] ^= 1 << (bit % 8)
				}
			})
		}
	}
}

func TestKeys(t *testing.T) {
	stranger, err := NewKeyring(Key{ID: 1, Secret: []byte("another secret of 16+ bytes")})
	require.NoError(t, err)
	for _, tt := range []struct {
		name         string
		sends, reads *Keyring
		want         error
	}{
		{"the same", ring(t, 1), ring(t, 1), nil},
		{"rotation: the reader has both, the sender the old", ring(t, 1), ring(t, 2, 1), nil},
		{"rotation: the reader has both, the sender the new", ring(t, 2), ring(t, 1, 2), nil},
		{"rotation missed (A67)", ring(t, 2, 1), ring(t, 1), ErrKey},
		{"another secret under the same ID", stranger, ring(t, 1), ErrTag},
		{"a tag where none is expected", ring(t, 1), nil, ErrKey},
		{"no tag where one is expected", nil, ring(t, 1), ErrKey},
		{"no keys", nil, nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ParseReport(encode(t, small(), tt.sends), tt.reads)
			if tt.want == nil {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, tt.want)
			}
		})
	}
}

func TestKeyringErrors(t *testing.T) {
	secret := []byte("sixteen bytes ok")
	for want, keys := range map[string][]Key{
		"needs a key":                          nil,
		"key ID 0 is reserved":                 {{ID: 0, Secret: secret}},
		"two keys have the ID 4":               {{ID: 4, Secret: secret}, {ID: 4, Secret: secret}},
		"the secret of key 5 has 15 bytes":     {{ID: 5, Secret: secret[1:]}},
		"the secret of key 6 has 0 bytes, few": {{ID: 5, Secret: secret}, {ID: 6}},
	} {
		k, err := NewKeyring(keys...)
		require.ErrorContains(t, err, want)
		require.Nil(t, k)
	}
}

func TestKeyringKeepsItsOwnSecret(t *testing.T) {
	secret := []byte("sixteen bytes ok")
	k, err := NewKeyring(Key{ID: 1, Secret: secret})
	require.NoError(t, err)
	b := encode(t, small(), k)
	clear(secret)
	_, err = ParseReport(b, k)
	require.NoError(t, err)
}

// retag makes a report out of a header and fields, with right length and CRC, so
// that a test gets past them.
func retag(head, fields []byte) []byte {
	b := append(slices.Clone(head), fields...)
	if len(b) >= 6 {
		binary.BigEndian.PutUint16(b[4:], uint16(len(b)+crcLen))
	}
	return (*Keyring)(nil).appendTag(b, 0, b)
}

// header is what comes before the fields: state Up, boot 1, weight 1, seq 1.
var header = []byte{magic, version, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 1}

func TestFields(t *testing.T) {
	id := []byte{fieldID, 1, 'a'}
	with := func(f ...byte) []byte { return append(slices.Clone(id), f...) }
	list := func(kind byte, n, size int) []byte {
		var items []byte
		for i := range n {
			item := make([]byte, size)
			item[0], item[1] = byte(i>>8), byte(i)
			items = append(items, item...)
		}
		return append(slices.Clone(id), appendList(nil, kind, items, size)...)
	}
	for _, tt := range []struct {
		name   string
		fields []byte
		ok     bool
	}{
		{"only an ID", id, true},
		{"no ID", nil, false},
		{"empty ID", []byte{fieldID, 0}, false},
		{"two IDs", with(id...), false},
		{"ID that is not UTF-8", []byte{fieldID, 1, 0xff}, false},
		{"ID too long", append([]byte{fieldID, MaxID + 1}, make([]byte, MaxID+1)...), false},
		{"unknown field before", append([]byte{200, 3, 1, 2, 3}, id...), true},
		{"unknown field after", with(200, 3, 1, 2, 3), true},
		{"unknown field, empty", with(255, 0), true},
		{"field beyond the end", with(200, 3, 1, 2), false},
		{"field without a length", with(200), false},
		{"resources with more to come", with(fieldResources, 10, 0, 0, 0, 0, 0, 0, 0, 0, 9, 9), true},
		{"resources cut", with(fieldResources, 7, 0, 0, 0, 0, 0, 0, 0), false},
		{"node", with(fieldNode, 6, 10, 0, 0, 1, 0, 80), true},
		{"node of 5 bytes", with(fieldNode, 5, 10, 0, 0, 1, 0), false},
		{"node twice", with(fieldNode, 6, 10, 0, 0, 1, 0, 80, fieldNode, 6, 10, 0, 0, 1, 0, 80), false},
		{"node as IPv4 in IPv6", with(fieldNode, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 1, 0, 80), false},
		{"dialled", list(fieldDialled4, MaxDialled, 4), true},
		{"dialled too many", list(fieldDialled4, MaxDialled+1, 4), false},
		{"dialled cut", with(fieldDialled4, 5, 1, 2, 3, 4, 5), false},
		{"dialled 6 cut", with(fieldDialled6, 4, 1, 2, 3, 4), false},
		{"services", list(fieldServices, MaxServices, serviceLen), true},
		{"services too many", list(fieldServices, MaxServices+1, serviceLen), false},
		{"service cut", with(fieldServices, 3, 1, 2, 3), false},
		{"work", append(list(fieldServices, 2, serviceLen), appendField(nil, fieldWork, make([]byte, 2*workLen))...), true},
		{"work before the services", append(appendField(nil, fieldWork, make([]byte, workLen)), list(fieldServices, 1, serviceLen)...), true},
		{"work on fewer services", append(list(fieldServices, 2, serviceLen), appendField(nil, fieldWork, make([]byte, workLen))...), false},
		{"work on none", with(fieldWork, 6, 0, 0, 0, 0, 0, 0), false},
		{"work cut", append(list(fieldServices, 1, serviceLen), fieldWork, 5, 0, 0, 0, 0, 0), false},
		{"period", with(fieldPeriod, 2, 255, 255), true},
		{"period cut", with(fieldPeriod, 1, 255), false},
		{"named", with(fieldNamed, 8, 1, 'q', 0, 0, 255, 255, 255, 255), true},
		{"named cut", with(fieldNamed, 7, 1, 'q', 0, 0, 255, 255, 255), false},
		{"named without a name", with(fieldNamed, 7, 0, 0, 0, 0, 0, 0, 0), false},
		{"named twice", with(fieldNamed, 16, 1, 'q', 0, 0, 0, 0, 0, 0, 1, 'q', 0, 0, 0, 0, 0, 0), false},
		{"service twice", append(list(fieldServices, 1, serviceLen), list(fieldServices, 1, serviceLen)[3:]...), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ParseReport(retag(header, tt.fields), nil)
			if tt.ok {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, ErrMalformed)
			}
		})
	}
}

func TestHeader(t *testing.T) {
	id := []byte{fieldID, 1, 'a'}
	set := func(at int, v byte) []byte {
		h := slices.Clone(header)
		h[at] = v
		return h
	}
	for name, tt := range map[string]struct {
		head []byte
		want error
	}{
		"zeroed version (A68)": {set(1, 0), ErrVersion},
		"next version (A68)":   {set(1, 2), ErrVersion},
		"another protocol":     {set(0, 0), ErrVersion},
		"state stale":          {set(3, byte(Stale)), ErrMalformed},
		"state of the future":  {set(3, 99), ErrMalformed},
		"key":                  {set(2, 1), ErrKey},
		"seq without an end":   {append(slices.Clone(header[:fixed]), slices.Repeat([]byte{0xff}, 11)...), ErrMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseReport(retag(tt.head, id), nil)
			require.ErrorIs(t, err, tt.want)
		})
	}
}

func TestValidate(t *testing.T) {
	for want, change := range map[string]func(r *Report){
		"ID":          func(r *Report) { r.ID = "" },
		"ID ":         func(r *Report) { r.ID = strings.Repeat("x", MaxID+1) },
		"State":       func(r *Report) { r.State = Down },
		"Node":        func(r *Report) { r.Node = netip.MustParseAddrPort("[fe80::1%eth0]:1") },
		"Dialled":     func(r *Report) { r.Dialled = []netip.Addr{netip.MustParseAddr("fe80::1%eth0")} },
		"Dialled:":    func(r *Report) { r.Dialled = make([]netip.Addr, MaxDialled+1) },
		"Services":    func(r *Report) { r.Services = make([]ServiceReport, MaxServices+1) },
		"Named:":      func(r *Report) { r.Named = make([]NamedResource, MaxNamed+1) },
		"Named: \"\"": func(r *Report) { r.Named = make([]NamedResource, 1) },
		"twice":       func(r *Report) { r.Services = make([]ServiceReport, 2) },
	} {
		r := small()
		change(&r)
		b, err := r.Append([]byte{1}, nil)
		require.ErrorContains(t, err, want)
		require.Equal(t, []byte{1}, b)
	}
}

func TestShares(t *testing.T) {
	for _, tt := range []struct{ in, want float32 }{
		{0, 0}, {1, 1}, {2, 1}, {-1, -1}, {-0.1, -1}, {float32(math.NaN()), -1}, {float32(math.Inf(1)), 1},
	} {
		require.Equal(t, tt.want, decodeShare(encodeShare(tt.in)), "%v", tt.in)
	}
	for i := range 101 {
		x := float32(i) / 100
		require.InDelta(t, x, decodeShare(encodeShare(x)), 1./fullShare)
	}
}

func TestQuantities(t *testing.T) {
	for _, x := range []uint64{0, 1, 2, 2046, 2047, 2048, 4094, 4096, 1 << 20, 2047 << 31} {
		require.Equal(t, x, decodeQuantity(encodeQuantity(x)))
	}
	for _, x := range []uint64{2049, 4095, 65535, 1e6 + 1, 1e9 + 1, 1e12 + 1} {
		require.InEpsilon(t, x, decodeQuantity(encodeQuantity(x)), 1./2048, x)
	}
	for _, x := range []uint64{2048 << 31, 1 << 63, math.MaxUint64} {
		require.Equal(t, uint64(2047<<31), decodeQuantity(encodeQuantity(x)), "cut")
	}
	for n := range math.MaxUint16 + 1 { // what was read can be said again
		x := decodeQuantity(uint16(n))
		require.Equal(t, x, decodeQuantity(encodeQuantity(x)))
	}
	require.Equal(t, time.Millisecond, decodeTime(encodeTime(1, time.Millisecond), time.Millisecond), "known stays known")
	require.Zero(t, encodeTime(-time.Second, time.Millisecond))
}

// FuzzParseReport gives any fields a right length and tag, for a fuzzer does not
// guess checksums, and the bytes as they are.
func FuzzParseReport(f *testing.F) {
	for _, r := range reports() {
		b, err := r.Append(nil, nil)
		require.NoError(f, err)
		f.Add(b[:len(b)-crcLen])
	}
	f.Add(retag(header, []byte{fieldID, 1, 'a', 200, 1, 1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = ParseReport(b, nil)
		_, _ = ParseReport(b, ring(t, 1))
		r, err := ParseReport(retag(b, nil), nil)
		if err != nil {
			return
		}
		again, err := ParseReport(encode(t, r, nil), nil)
		require.NoError(t, err, "what was read can be said again")
		slices.SortStableFunc(r.Dialled, byFamily)
		require.Equal(t, r, again)
	})
}

// byFamily is the order in which addresses are sent.
func byFamily(a, b netip.Addr) int { return a.BitLen() - b.BitLen() }

func BenchmarkParseReport(b *testing.B) {
	for _, keys := range []*Keyring{nil, ring(b, 1)} {
		msg := encode(b, small(), keys)
		b.Run(fmt.Sprintf("key %d", keys.sendID()), func(b *testing.B) {
			for b.Loop() {
				if _, err := ParseReport(msg, keys); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
