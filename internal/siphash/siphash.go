// Package siphash hashes short inputs under a secret key with SipHash-2-4.
//
// Whoever does not know the key can neither predict where a flow falls in a hash
// table nor forge a tag. The result depends on the bytes alone, not on the
// machine's byte order, so that hosts with one key agree on it. Source: Aumasson
// and Bernstein, "SipHash: a fast short-input PRF", 2012.
package siphash

import (
	"crypto/rand"
	"encoding/binary"
	"math/bits"
)

// KeySize is the length of a key, in bytes.
const KeySize = 16

// A Key is the secret of a family of hashes. Keys may be copied and compared.
type Key struct{ K0, K1 uint64 }

// KeyFromBytes returns the key that the first 16 bytes of b hold, in the byte
// order of the paper. Like an index out of range, a shorter b panics: the length
// of a key is checked where a configuration is read.
func KeyFromBytes(b []byte) Key {
	_ = b[KeySize-1]
	return Key{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}
}

// NewKey returns a key from the system's random source.
func NewKey() Key {
	var b [KeySize]byte
	rand.Read(b[:]) // never fails
	return KeyFromBytes(b[:])
}

// Sum64 returns the hash of b under the key. It does not allocate, and any number
// of goroutines may call it.
func Sum64(k Key, b []byte) uint64 {
	v0 := k.K0 ^ 0x736f6d6570736575 // "somepseu", "dorandom", "lygenera", "tedbytes":
	v1 := k.K1 ^ 0x646f72616e646f6d // the paper's constants, which keep the four
	v2 := k.K0 ^ 0x6c7967656e657261 // words of the state different
	v3 := k.K1 ^ 0x7465646279746573

	last := uint64(len(b)) << 56
	for ; len(b) >= 8; b = b[8:] {
		m := binary.LittleEndian.Uint64(b)
		v3 ^= m
		v0, v1, v2, v3 = round(v0, v1, v2, v3)
		v0, v1, v2, v3 = round(v0, v1, v2, v3)
		v0 ^= m
	}
	for i, c := range b {
		last |= uint64(c) << (8 * i)
	}
	v3 ^= last
	v0, v1, v2, v3 = round(v0, v1, v2, v3)
	v0, v1, v2, v3 = round(v0, v1, v2, v3)
	v0 ^= last

	v2 ^= 0xff
	for range 4 {
		v0, v1, v2, v3 = round(v0, v1, v2, v3)
	}
	return v0 ^ v1 ^ v2 ^ v3
}

// round is the paper's SipRound: two layers of add, rotate and xor.
func round(v0, v1, v2, v3 uint64) (uint64, uint64, uint64, uint64) {
	v0 += v1
	v2 += v3
	v1 = bits.RotateLeft64(v1, 13) ^ v0
	v3 = bits.RotateLeft64(v3, 16) ^ v2
	v0 = bits.RotateLeft64(v0, 32)

	v2 += v1
	v0 += v3
	v1 = bits.RotateLeft64(v1, 17) ^ v2
	v3 = bits.RotateLeft64(v3, 21) ^ v0
	v2 = bits.RotateLeft64(v2, 32)
	return v0, v1, v2, v3
}
