package node

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"github.com/carom-dpr/carom/loadinfo"
)

// seed derives the seed of the flow hashes, which all hosts must share, from the
// cluster's key. It is not the key: who learns it can predict choices, not forge.
// While keys are rotated hosts may differ in it, which only costs consistent
// policies their agreement.
func (c *Config) seed() (seed [16]byte) {
	if len(c.Keys) > 0 {
		sum := sha256.Sum256(append([]byte("carom flow hash seed\x00"), c.Keys[0].Secret...))
		copy(seed[:], sum[:])
	}
	return seed
}

// keyring returns the keys in the form that reports need; nil without keys.
func (c *Config) keyring() (*loadinfo.Keyring, error) {
	if len(c.Keys) == 0 {
		return nil, nil
	}
	ring, err := loadinfo.NewKeyring(c.Keys...)
	if err != nil {
		return nil, fmt.Errorf("node: Keys: %w", err)
	}
	return ring, nil
}

// transport returns what sends this host's reports and receives those of others.
func (n *Node) transport() (loadinfo.Transport, error) {
	ring, err := n.cfg.keyring()
	if err != nil {
		return nil, err
	}
	if n.cfg.Transport != nil {
		t, err := n.cfg.Transport(n.board, ring)
		if err == nil && t == nil {
			err = errors.New("node: Transport returned nil and no error: return what carries reports")
		}
		return t, err
	}
	return loadinfo.NewBroadcaster(loadinfo.BroadcasterConfig{
		Board:  n.board,
		Conn:   n.host.Reports,
		To:     n.cfg.targets(),
		Period: n.cfg.Period,
		Keys:   ring,
		Logger: n.cfg.Logger,
	})
}

// keysFollow reports why a cluster cannot change from the old keys to these while it
// runs, one host at a time; nil if it can: what this host sends must be understood
// by hosts that have the old keys, and what those send must be understood here.
func (c *Config) keysFollow(old *Config) error {
	switch {
	case len(c.Keys) == 0 && len(old.Keys) == 0:
		return nil
	case len(c.Keys) == 0 || len(old.Keys) == 0:
		return errors.New("node: Keys: whether there are any cannot change while the node runs: restart all nodes of the cluster")
	case !contains(old.Keys, c.Keys[0]) || !contains(c.Keys, old.Keys[0]):
		return fmt.Errorf("node: Keys: from key %d to key %d in one step would cut off the hosts that are not there yet: "+
			"add the new key behind the old one on all hosts, then put it first on all, then remove the old one",
			old.Keys[0].ID, c.Keys[0].ID)
	}
	return nil
}

func contains(keys []loadinfo.Key, key loadinfo.Key) bool {
	return slices.ContainsFunc(keys, func(k loadinfo.Key) bool {
		return k.ID == key.ID && bytes.Equal(k.Secret, key.Secret)
	})
}
