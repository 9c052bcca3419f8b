package flowtable

import (
	"crypto/rand"
	"encoding/binary"
	"math/bits"
)

// A hash is a secret function, drawn from a family of which no two keys are hashed alike
// by more than one in 2^63. So whoever does not know the secret cannot choose clients that
// share a bucket. It is NH, as in UMAC but of words of 64 bits (Black, Halevi, Krawczyk,
// Krovetz, Rogaway, "UMAC: fast and secure message authentication", 1999), followed by
// pair-multiply-shift (Thorup, "High speed hashing for integers and strings", 2015), which
// spreads its 128 bits evenly over all of the 64, and a mixer. It is a few
// multiplications, and the keys of a batch are hashed side by side.
type hash struct {
	nh                         [4]uint64
	a0, a1, b0, b1, add0, add1 uint64 // three numbers of 128 bits, the low half first
}

func newHash() hash {
	var b [10 * 8]byte
	rand.Read(b[:]) // never fails
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[i*8:]) }
	return hash{[4]uint64{word(0), word(1), word(2), word(3)}, word(4), word(5), word(6), word(7), word(8), word(9)}
}

// sum writes the hash of each key into sums.
func (h *hash) sum(keys []Key, sums []uint64) {
	nh, a0, a1, b0, b1, add0, add1 := h.nh, h.a0, h.a1, h.b0, h.b1, h.add0, h.add1
	sums = sums[:len(keys)]
	for i := range keys {
		w := keys[i].words()
		hi, lo := bits.Mul64(w[0]+nh[0], w[1]+nh[1])
		hi2, lo2 := bits.Mul64(w[2]+nh[2], nh[3])
		lo, carry := bits.Add64(lo, lo2, 0)
		hi, _ = bits.Add64(hi, hi2, carry)

		// The high half of (a + lo) * (b + hi) + add, all of 128 bits.
		x, carryX := bits.Add64(a0, lo, 0)
		y, carryY := bits.Add64(b0, hi, 0)
		top, low := bits.Mul64(x, y)
		top += x*(b1+carryY) + (a1+carryX)*y
		_, carry = bits.Add64(low, add0, 0)
		sums[i] = mix(top + add1 + carry)
	}
}

// mix scatters sums that lie at equal steps, as those of keys that follow each other do:
// one secret in some hundreds would have them crowd together. It is one to one, so what
// holds for two sums holds for what it makes of them. The numbers are David Stafford's
// ("Better Bit Mixing", 2011, variant 13).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
