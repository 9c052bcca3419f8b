package node

import (
	"time"

	"github.com/carom-dpr/carom/dpr"
)

// tooBig tells the sender of a packet that it exceeds the MTU of its way, in bytes.
func (n *Node) tooBig(p *dpr.Packet, mtu int) {
	if !n.engine.TooBig(p, mtu, time.Now()) {
		return
	}
	to := n.host.Replies
	if p.Verdict == dpr.Forward {
		to = n.host.Uplinks[0]
	}
	_, _ = to.Write([]dpr.Packet{*p}) // the router reports what is gone
}
