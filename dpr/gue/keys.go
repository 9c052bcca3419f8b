package gue

import (
	"crypto/sha256"
	"fmt"

	"github.com/carom-dpr/carom/internal/header"
	"github.com/carom-dpr/carom/internal/siphash"
)

// A Key is a secret that all hosts of a cluster share.
type Key struct {
	// ID names the key on the wire, 1 to 255, so that keys can be changed one host
	// at a time: give all hosts the new key behind the old one, then make it the
	// first on all hosts, then take the old one away.
	ID uint8
	// Secret is the key itself: 16 bytes from a good random source.
	Secret [siphash.KeySize]byte
}

// keyring is an immutable set of keys, by ID. ID 0 is no key.
type keyring struct {
	send uint8 // 0: without keys
	have [256]bool
	keys [256]siphash.Key
	// control are the keys of control messages. They are derived, since no key
	// should serve two algorithms.
	control map[uint8][]byte
}

// newKeyring returns a ring that sends with the first key and accepts all.
func newKeyring(keys []Key) (*keyring, error) {
	r := &keyring{control: make(map[uint8][]byte, len(keys))}
	for i, k := range keys {
		switch {
		case k.ID == 0:
			return nil, fmt.Errorf("gue: Keys[%d].ID is 0, which means no key: number keys from 1", i)
		case r.have[k.ID]:
			return nil, fmt.Errorf("gue: Keys[%d].ID %d is that of another key: give each its own", i, k.ID)
		case k.Secret == [siphash.KeySize]byte{}:
			return nil, fmt.Errorf("gue: Keys[%d].Secret is all zeros: take 16 random bytes", i)
		}
		r.have[k.ID], r.keys[k.ID] = true, siphash.KeyFromBytes(k.Secret[:])
		sum := sha256.Sum256(append([]byte("carom control messages\x00"), k.Secret[:]...))
		r.control[k.ID] = sum[:]
	}
	if len(keys) > 0 {
		r.send = keys[0].ID
	}
	return r, nil
}

// taggedInner is how much of the inner packet the tag covers: the longest IPv4
// header and TCP's, or IPv6's and TCP's with room for extension headers.
const taggedInner = 80

// tag computes the tag of a datagram. hdr is its GUE header, and the inner packet
// lies in two pieces, a and b.
func (r *keyring) tag(hdr []byte, src, dst *header.Addr, a, b []byte) uint64 {
	var in [4 + 16 + 16 + taggedInner]byte
	in[0], in[1], in[2], in[3] = hdr[0], hdr[1], hdr[baseLen], hdr[baseLen+1]
	copy(in[4:], src[:])
	copy(in[20:], dst[:])
	n := copy(in[36:], a)
	copy(in[36+n:], b)
	return siphash.Sum64(r.keys[hdr[baseLen+1]], in[:])
}
