package node

import (
	"context"

	"github.com/carom-dpr/carom/dpr/confirm"
)

// newConfirmer returns what confirms connections, nil where the host has no control
// messages for it.
func (n *Node) newConfirmer() (*confirm.Confirmer, error) {
	if n.host.Control == nil {
		return nil, nil
	}
	c, err := confirm.New(confirm.Config{
		Engine: n.engine,
		Send:   n.host.Control,
		Lives:  n.host.Lives,
		Log:    n.cfg.Logger,
	})
	if err == nil {
		n.host.TakeControl(c.Receive)
	}
	return c, err
}

// confirm asks and answers until ctx is done.
func (n *Node) confirm(ctx context.Context) error {
	if n.confirmer == nil {
		return nil
	}
	return n.confirmer.Run(ctx)
}

// confirmation returns the counters of the confirmer.
func (n *Node) confirmation() (s confirm.Stats) {
	if n.confirmer != nil {
		s = n.confirmer.Stats()
	}
	return s
}
