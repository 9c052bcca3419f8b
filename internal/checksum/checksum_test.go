package checksum_test

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/internal/checksum"
)

// slowSum is the definition of RFC 1071: words one by one, the carry added back
// at each step.
func slowSum(b []byte, sum uint16) uint16 {
	for i := 0; i < len(b); i += 2 {
		word := uint32(b[i]) << 8
		if i+1 < len(b) {
			word |= uint32(b[i+1])
		}
		wide := uint32(sum) + word
		sum = uint16(wide>>16 + wide&0xffff)
	}
	return sum
}

func fill(rng *rand.Rand, b []byte) {
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
}

func TestSumAgainstDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	buf := make([]byte, 400)
	for n := range len(buf) - 8 {
		for offset := range 8 {
			b := buf[offset : offset+n]
			fill(rng, b)
			initial := uint16(rng.Uint32())
			require.Equal(t, slowSum(b, initial), checksum.Fold(checksum.Sum(b, uint32(initial))),
				"%d bytes at offset %d", n, offset)
		}
	}
}

func TestSumCarries(t *testing.T) {
	ones := make([]byte, 65536)
	for i := range ones {
		ones[i] = 0xff
	}
	for _, n := range []int{0, 1, 2, 7, 8, 9, 31, 32, 33, 40, 64, 1500, 65535, 65536} {
		require.Equal(t, slowSum(ones[:n], 0), checksum.Fold(checksum.Sum(ones[:n], 0)), "%d bytes", n)
		require.Equal(t, slowSum(ones[:n], 0xffff), checksum.Fold(checksum.Sum(ones[:n], 0xffffffff)), "%d bytes", n)
	}
	require.Zero(t, checksum.Sum(make([]byte, 100), 0), "only zeros sum to zero")
}

func TestFold(t *testing.T) {
	for sum, want := range map[uint32]uint16{
		0: 0, 0xffff: 0xffff, 0x10000: 1, 0x1ffff: 1, 0x1fffe: 0xffff, 0xffff0000: 0xffff, 0xffffffff: 0xffff, 0xfffeffff: 0xfffe,
	} {
		require.Equal(t, want, checksum.Fold(sum), "%#x", sum)
	}
}

// The example header of RFC 1071's successors: a UDP packet with a known header
// checksum.
func TestKnownHeader(t *testing.T) {
	header := []byte{
		0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11,
		0xb8, 0x61, 0xc0, 0xa8, 0x00, 0x01, 0xc0, 0xa8, 0x00, 0xc7,
	}
	require.Equal(t, uint16(0xffff), checksum.Fold(checksum.Sum(header, 0)))
	header[10], header[11] = 0, 0
	require.Equal(t, uint16(0xb861), ^checksum.Fold(checksum.Sum(header, 0)))
}

func TestPseudo(t *testing.T) {
	v4 := checksum.Pseudo([]byte{192, 0, 2, 10}, []byte{198, 51, 100, 1}, 17, 0x1fffe)
	want := slowSum([]byte{192, 0, 2, 10, 198, 51, 100, 1, 0, 1, 0xff, 0xfe, 0, 17}, 0)
	require.Equal(t, want, checksum.Fold(v4))

	mapped := checksum.Pseudo(
		[]byte{10: 0xff, 11: 0xff, 12: 192, 13: 0, 14: 2, 15: 10},
		[]byte{10: 0xff, 11: 0xff, 12: 198, 13: 51, 14: 100, 15: 1}, 17, 0x1fffe)
	require.Equal(t, want, checksum.Fold(mapped), "v4-mapped addresses give an equal sum")
}

// RFC 1624, section 4: an old checksum 0xDD2F and a word changed from 0x5555 to
// 0x3285 give 0x0000, where RFC 1141 gave 0xFFFF (A03).
func TestUpdateExampleOfRFC1624(t *testing.T) {
	require.Equal(t, uint16(0), checksum.Update16(0xdd2f, 0x5555, 0x3285))
}

// A run of random headers, rewritten at random places, compared with the checksum
// computed from zero.
func TestUpdateAgainstRecomputation(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	b := make([]byte, 60)
	for range 20_000 {
		fill(rng, b)
		sum := ^slowSum(b, 0)
		from, n := 2*rng.IntN(20), 2*rng.IntN(9)
		old := append([]byte(nil), b[from:from+n]...)
		fill(rng, b[from:from+n])
		require.Equal(t, ^slowSum(b, 0), checksum.Update(sum, old, b[from:from+n]))

		word := uint16(rng.Uint32())
		before := binary.BigEndian.Uint16(b[40:])
		sum = ^slowSum(b, 0)
		binary.BigEndian.PutUint16(b[40:], word)
		require.Equal(t, ^slowSum(b, 0), checksum.Update16(sum, before, word))
	}
}

func TestUpdateNeverLaunders(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	b := make([]byte, 40)
	for range 20_000 {
		fill(rng, b)
		right, wrong := ^slowSum(b, 0), uint16(rng.Uint32())
		difference := residue(right) - residue(wrong)
		old := append([]byte(nil), b[12:28]...)
		fill(rng, b[12:28])
		right, wrong = ^slowSum(b, 0), checksum.Update(wrong, old, b[12:28])
		require.Equal(t, residueOf(difference), residueOf(residue(right)-residue(wrong)))
	}
}

// residue is the value of a ones-complement number modulo 0xFFFF.
func residue(sum uint16) int { return int(sum) % 0xffff }

func residueOf(n int) int { return ((n % 0xffff) + 0xffff) % 0xffff }

func TestUpdatePartial(t *testing.T) {
	client, vip, host := []byte{192, 0, 2, 10}, []byte{198, 51, 100, 1}, []byte{203, 0, 113, 2}
	before := checksum.Fold(checksum.Pseudo(client, vip, 6, 1400))
	after := checksum.Fold(checksum.Pseudo(client, host, 6, 1400))
	require.Equal(t, after, checksum.UpdatePartial(before, vip, host))
}

func TestUpdateUDP(t *testing.T) {
	for _, tt := range []struct {
		name          string
		sum, old, new uint16
		want          uint16
	}{
		{"none stays none (A01)", 0, 0x1234, 0x4321, 0},
		{"a computed zero becomes 0xFFFF (A02)", 0xdd2f, 0x5555, 0x3285, 0xffff},
		{"0xFFFF is a valid sum (A02)", 0xffff, 0x1111, 0x1111, 0xffff},
		{"0xFFFF and a change", 0xffff, 0x0001, 0x0002, 0xfffe},
		{"an ordinary one", 0x1000, 0x0002, 0x0001, 0x1001},
	} {
		t.Run(tt.name, func(t *testing.T) {
			old, new := binary.BigEndian.AppendUint16(nil, tt.old), binary.BigEndian.AppendUint16(nil, tt.new)
			require.Equal(t, tt.want, checksum.UpdateUDP(tt.sum, old, new))
		})
	}
}

// All 2^32 pairs of an old checksum and a new word, for three old words. The
// oracle knows the sum of the rest of the packet, R, that makes the old checksum
// right, and adds the new word to it afresh. R is a ones-complement number other
// than 0, as the sum of a real packet always is; with it the oracle's running
// value goes up by one for each new word and wraps from 0xFFFF to 1.
func TestUpdateAllPairs(t *testing.T) {
	if testing.Short() {
		t.Skip("2^32 updates for each of three words take seconds")
	}
	for name, old := range map[string]uint16{"0x0000": 0, "0x5555": 0x5555, "0xffff": 0xffff} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for sum := range 0xffff { // 0xFFFF: see TestUpdateOfNegativeZero
				word, found := firstWrong(uint16(sum), old)
				require.False(t, found, "checksum %#04x, %#04x replaced by %#04x", sum, old, word)
			}
		})
	}
}

// firstWrong tries all new words and returns the first whose updated checksum is
// not the one that is computed afresh.
func firstWrong(sum, old uint16) (word uint16, found bool) {
	rest := (int(^sum) - int(old) + 2*0xffff) % 0xffff
	fresh := uint16(rest) // the sum with the new word, of which 0 comes first
	if fresh == 0 {
		fresh = 0xffff
	}
	for new := range 0x10000 {
		if checksum.Update16(sum, old, uint16(new)) != ^fresh {
			return uint16(new), true
		}
		fresh++
		if fresh == 0 {
			fresh = 1
		}
	}
	return 0, false
}

// A checksum of 0xFFFF stands for a packet whose sum is 0, which only UDP's rule
// for a zero makes of a real packet. The update is then right modulo 0xFFFF.
func TestUpdateOfNegativeZero(t *testing.T) {
	for _, old := range []uint16{0, 1, 0x5555, 0xfffe, 0xffff} {
		for new := range 0x10000 {
			want := residueOf(0 - int(old) + new)
			got := residue(^checksum.Update16(0xffff, old, uint16(new)))
			require.Equal(t, want, got, "%#04x replaced by %#04x", old, new)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	b := make([]byte, 1500)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		sink += uint32(checksum.Fold(checksum.Sum(b, checksum.Pseudo(b[:16], b[16:32], 6, 1500))))
		sink += uint32(checksum.Update(1, b[:4], b[4:8]))
	}))
}

func FuzzSum(f *testing.F) {
	f.Add([]byte(nil), uint16(0))
	f.Add([]byte{1}, uint16(0xffff))
	f.Add([]byte("a run of bytes that is longer than one block of thirty-two"), uint16(7))
	f.Fuzz(func(t *testing.T, b []byte, initial uint16) {
		require.Equal(t, slowSum(b, initial), checksum.Fold(checksum.Sum(b, uint32(initial))))
	})
}

var sink uint32

func BenchmarkSum(b *testing.B) {
	for name, n := range map[string]int{"20": 20, "1500": 1500, "65535": 65535} {
		buf := make([]byte, n)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				sink = checksum.Sum(buf, 0)
			}
		})
	}
}

func BenchmarkUpdate4(b *testing.B) {
	old, new := []byte{1, 2, 3, 4}, []byte{5, 6, 7, 8}
	for b.Loop() {
		sink = uint32(checksum.Update(7, old, new))
	}
}
