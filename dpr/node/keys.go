package node

import (
	"crypto/sha256"
	"fmt"

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

// broadcaster returns what sends this host's reports and receives those of others.
func (n *Node) broadcaster() (*loadinfo.Broadcaster, error) {
	var ring *loadinfo.Keyring
	if len(n.cfg.Keys) > 0 {
		var err error
		if ring, err = loadinfo.NewKeyring(n.cfg.Keys...); err != nil {
			return nil, fmt.Errorf("node: Keys: %w", err)
		}
	}
	return loadinfo.NewBroadcaster(loadinfo.BroadcasterConfig{
		Board:  n.board,
		Conn:   n.host.Reports,
		To:     n.cfg.Report,
		Period: n.cfg.Period,
		Keys:   ring,
		Logger: n.cfg.Logger,
	})
}
