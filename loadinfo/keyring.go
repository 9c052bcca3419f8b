package loadinfo

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"hash/crc32"
)

// A Key is a secret that all hosts of a cluster share, and the number by which
// reports say which one they were tagged with.
type Key struct {
	// ID is any number but 0.
	ID uint8
	// Secret is 16 bytes or more, from a source of randomness.
	Secret []byte
}

// minSecret is the shortest secret, in bytes: as long as the tag.
const minSecret = 16

// tagLen and crcLen are the lengths, in bytes, of what closes a report.
const (
	tagLen = 16
	crcLen = 4
)

// A Keyring tags reports with one key and accepts those of several. It cannot be
// changed, and may be used by several goroutines. The nil Keyring is that of a
// cluster without keys.
//
// To change a cluster's key: give all hosts the new key as a second one, then make
// it the first, then drop the old one. Each step is a new keyring for each host,
// by Broadcaster.SetKeys or by a restart, and is done on all before the next.
type Keyring struct {
	send    uint8
	order   []uint8 // of the keys, as given
	secrets map[uint8][]byte
}

// NewKeyring returns a keyring that sends with the first key and accepts all.
func NewKeyring(keys ...Key) (*Keyring, error) {
	if len(keys) == 0 {
		return nil, fmt.Errorf("loadinfo: a keyring needs a key; use a nil *Keyring for none")
	}
	k := &Keyring{send: keys[0].ID, secrets: make(map[uint8][]byte, len(keys))}
	for _, key := range keys {
		switch _, twice := k.secrets[key.ID]; {
		case key.ID == 0:
			return nil, fmt.Errorf("loadinfo: key ID 0 is reserved: use 1 to 255")
		case twice:
			return nil, fmt.Errorf("loadinfo: two keys have the ID %d", key.ID)
		case len(key.Secret) < minSecret:
			return nil, fmt.Errorf("loadinfo: the secret of key %d has %d bytes, fewer than %d",
				key.ID, len(key.Secret), minSecret)
		}
		k.secrets[key.ID] = append([]byte(nil), key.Secret...)
		k.order = append(k.order, key.ID)
	}
	return k, nil
}

// Derive returns a secret of 32 bytes for another purpose from each key, the first
// key's first, by HKDF-SHA256 (RFC 5869): who learns one does not learn the key.
// Purposes have different names. The nil Keyring has none.
func (k *Keyring) Derive(purpose string) (secrets [][]byte) {
	if k == nil {
		return nil
	}
	for _, id := range k.order {
		secret, err := hkdf.Key(sha256.New, k.secrets[id], nil, purpose, sha256.Size)
		if err != nil {
			panic(err) // only for more than 255 hashes' worth of bytes
		}
		secrets = append(secrets, secret)
	}
	return secrets
}

// sendID returns the number of the key to send with, 0 for none.
func (k *Keyring) sendID() uint8 {
	if k == nil {
		return 0
	}
	return k.send
}

// trailer returns the length of what closes a report, in bytes.
func (k *Keyring) trailer() int {
	if k == nil {
		return crcLen
	}
	return tagLen
}

// appendTag closes the message b.
func (k *Keyring) appendTag(b []byte, id uint8, message []byte) []byte {
	if k == nil {
		sum := crc32.Checksum(message, castagnoli)
		return append(b, byte(sum>>24), byte(sum>>16), byte(sum>>8), byte(sum))
	}
	mac := hmac.New(sha256.New, k.secrets[id])
	mac.Write(message)
	return append(b, mac.Sum(nil)[:tagLen]...)
}

// verify checks the tag of a message that says it was made with key id.
func (k *Keyring) verify(id uint8, message, tag []byte) error {
	if k == nil && id != 0 {
		return fmt.Errorf("%w: the sender uses key %d, we have none", ErrKey, id)
	}
	if k != nil && k.secrets[id] == nil {
		return fmt.Errorf("%w: the sender uses key %d", ErrKey, id)
	}
	if !hmac.Equal(k.appendTag(nil, id, message), tag) {
		return ErrTag
	}
	return nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)
