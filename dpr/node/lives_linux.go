package node

import (
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/internal/sockdiag"
)

// A lookout sees which connections this host's sockets have.
type lookout struct {
	diag     *sockdiag.Socket
	services atomic.Pointer[[]dpr.Service] // the current ones first
}

func openLookout(services []dpr.Service) (*lookout, error) {
	diag, err := sockdiag.Open()
	if err != nil {
		return nil, err
	}
	l := &lookout{diag: diag}
	l.setServices(services)
	return l, nil
}

// setServices replaces the services. Those whose answers were ever rewritten are kept:
// connections from that time are still rewritten.
func (l *lookout) setServices(services []dpr.Service) {
	all := slices.Clone(services)
	if old := l.services.Load(); old != nil {
		for _, s := range *old {
			known := slices.ContainsFunc(all, func(o dpr.Service) bool {
				return o.Name == s.Name && o.Reply == s.Reply && o.Port == s.Port && o.PortEnd == s.PortEnd
			})
			if s.Reply == dpr.ReplyRewritten && !known {
				all = append(all, s)
			}
		}
	}
	l.services.Store(&all)
}

// lives says what the sockets know of connections that peers have redirected.
func (l *lookout) lives(flows []dpr.Question, lives []dpr.Life) error {
	pairs, states := make([]sockdiag.Pair, len(flows)), make([]sockdiag.State, len(flows))
	rewritten := make([]bool, len(flows))
	for i, f := range flows {
		pairs[i].Remote = f.Client
		pairs[i].Local, rewritten[i] = l.local(f.Dialled)
	}
	if err := l.diag.States(pairs, states); err != nil {
		return err
	}
	for i, state := range states {
		lives[i] = lifeOf(state)
		if lives[i] == dpr.Gone && rewritten[i] {
			lives[i] = dpr.Unsaid // its address may have been another, and the client's port, too
		}
	}
	return nil
}

// local returns the address that the server sees as its own: the dialled one, unless
// the service's answers are rewritten, or were once.
func (l *lookout) local(dialled netip.AddrPort) (own netip.AddrPort, rewritten bool) {
	for _, s := range *l.services.Load() {
		if s.Reply != dpr.ReplyRewritten || s.Proto != dpr.TCP ||
			dialled.Port() < s.Port || dialled.Port() > max(s.Port, s.PortEnd) {
			continue
		}
		own := slices.IndexFunc(s.Addrs, func(a netip.Addr) bool { return a.Unmap().Is4() == dialled.Addr().Is4() })
		if own >= 0 {
			return netip.AddrPortFrom(s.Addrs[own].Unmap(), dialled.Port()), true
		}
	}
	return dialled, false
}

// abort ends the connections whose own address is one of those that were dialled, or
// that are among the rewritten ones.
func (l *lookout) abort(dialled []netip.Addr, rewritten [][2]netip.AddrPort) (int, error) {
	others := make(map[sockdiag.Pair]bool, len(rewritten))
	for _, ends := range rewritten {
		others[sockdiag.Pair{Local: ends[0], Remote: ends[1]}] = true
	}
	return l.diag.Abort(func(p sockdiag.Pair) bool {
		return slices.Contains(dialled, p.Local.Addr()) || others[p]
	})
}

// lifeOf says what a socket's state means for its connection.
func lifeOf(state sockdiag.State) dpr.Life {
	switch state {
	case sockdiag.SynSent, sockdiag.SynReceived:
		return dpr.Opening
	case sockdiag.Established, sockdiag.FinWait1, sockdiag.FinWait2, sockdiag.CloseWait, sockdiag.LastAck, sockdiag.Closing:
		return dpr.Open
	}
	return dpr.Gone
}
