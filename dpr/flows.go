package dpr

import (
	"iter"
	"net/netip"
	"time"

	"github.com/carom-dpr/carom/internal/flowtable"
)

// A Flow is one entry of the flow table, for people to look at.
type Flow struct {
	// Service is the service's name.
	Service string
	// Client is the client's address and port, Dialled those that it dialled.
	Client, Dialled netip.AddrPort
	// State is how far the flow has come.
	State State
	// Peer is the host that serves it; empty for this host.
	Peer string
	// Lost: the host that served it is no peer any more, so its next packet is answered
	// with a reset.
	Lost bool
	// Translation is what the flow looks like at a plain server.
	Translation
	// Idle is the time since the last packet.
	Idle time.Duration
}

// Flows iterates over the flow table, in no order. Packets flow on meanwhile: a
// flow that comes or goes may be seen or not, one that stays is seen once. The
// loop's body may take its time, no lock is held.
func (e *Engine) Flows(now time.Time) iter.Seq[Flow] {
	return func(yield func(Flow) bool) {
		v, w := e.view.Load(), e.watch.Load()
		for entry := range e.table.All() {
			f, ok := v.flow(&entry, e.millis(now))
			f.Idle += time.Duration(entry.Waits()) * w.every[entry.Class()]
			if ok && !yield(f) {
				return
			}
		}
	}
}

// words returns an address as the flow table has it; addrOf and bytes16 turn it back.
func words(a *[16]byte) [2]uint64 { return [2]uint64{be.Uint64(a[:]), be.Uint64(a[8:])} }

func bytes16(w [2]uint64) (a [16]byte) {
	be.PutUint64(a[:], w[0])
	be.PutUint64(a[8:], w[1])
	return a
}

func addrOf(w [2]uint64) netip.Addr { return netip.AddrFrom16(bytes16(w)).Unmap() }

func tableClass(s State) flowtable.Class { return flowtable.Class(s) }

// flow describes an entry; it fails for fragments and for services that are gone.
func (v *view) flow(e *flowtable.Entry, now uint32) (Flow, bool) {
	index := int(e.Key.Service)
	if index >= len(v.services) || v.services[index] == nil {
		return Flow{}, false
	}
	f := Flow{
		Service: v.services[index].Name,
		Client:  netip.AddrPortFrom(addrOf(e.Key.Client), e.Key.ClientPort),
		Dialled: netip.AddrPortFrom(v.addrs[e.Key.Addr], e.Key.Port),
		State:   State(e.Class()),
		Idle:    time.Duration(int32(now-e.Touched())) * time.Millisecond,
	}
	if p := v.peer(PeerID(e.Peer())); p != nil {
		f.Peer = p.name
	} else {
		f.Lost = e.Peer() != 0
	}
	f.Translation = v.translation(e)
	return f, true
}
