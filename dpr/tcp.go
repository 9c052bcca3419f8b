package dpr

import (
	"fmt"

	"github.com/carom-dpr/carom/internal/flowtable"
	"github.com/carom-dpr/carom/internal/header"
)

// State is how far a flow has come, as the entry host sees it: with direct replies
// only the client's half passes, so the states follow the client alone. Both halves of
// a flow to a plain server pass, and its states follow both.
type State uint8

// The states of a flow. Each has its own idle timeout; see Timeouts.
const (
	Embryonic   State = iota // a SYN, and nothing after it
	Established              // an ACK, and nothing against it
	Closing                  // the client's FIN, or the plain server's
	Closed                   // the client's RST, or the plain server's, or both FINs
	UDPNew                   // one datagram
	UDPFlow                  // more than one
	Fragment                 // not a flow: the fragments of one datagram
	Handover                 // a TCP flow that is the kernel's once it has a socket
	Unconfirmed              // an ACK, of which the serving host has not said yet that it opened anything

	numStates
)

// String returns the state's name in lower case.
func (s State) String() string {
	if s >= numStates {
		return fmt.Sprintf("state %d", uint8(s))
	}
	return [...]string{"embryonic", "established", "closing", "closed", "udp-new", "udp", "fragment", "handover", "unconfirmed"}[s]
}

// The flags of a table entry.
const (
	// counted marks a flow that has not ended and is in its peer's counts.
	counted = 1 << iota
	// late marks a closed flow that has seen one more packet, which may just have
	// been overtaken by the RST.
	late
	// denied marks a closed flow that was not ended by its client: its serving host
	// said that there is no such connection.
	denied
	// heard marks an unconfirmed flow that has had a packet in this round: those are
	// asked about by their age, since a busy connection is never silent.
	heard
	// leapt marks a flow whose expected sequence number has moved over more than
	// endWindow that was not seen: data was lost on the way here, or somebody forged
	// some. Whoever forged it knows where the flow now is, so no FIN or RST counts any
	// more: the serving host says when it ends.
	leapt
	// answered marks a translated flow whose server has answered its SYN.
	answered
	// finished marks a flow whose client has said FIN; ended, a translated one whose
	// server has said FIN or RST, so that what its client says does not revive it.
	finished
	ended
)

// back marks the fragments of a datagram from a plain server, which have no other flag.
const back = late

const (
	// endWindow is how far, in bytes, a FIN or RST may be from the expected
	// sequence number to count: reordering needs some room, a blind forger gets 1
	// chance in 32,768.
	endWindow = 64 << 10
	// dataWindow is how far, in bytes, data may run ahead and still be followed:
	// the largest window that common stacks open by themselves.
	dataWindow = 16 << 20
)

// reopens reports whether a packet of a known flow starts a new connection on its
// ports: a SYN with a new sequence number, after the old connection's end or after
// its kernel took over. Before the end it is a retransmission, or the server's to
// judge.
func (b *batch) reopens(entry *flowtable.Entry, h *header.Packet) bool {
	switch State(entry.Class()) {
	case Closing, Closed, Handover:
		return opens(h) && h.Seq != entry.ISN
	}
	return false
}

// track follows the flow's state and restarts its idle timeout.
func (b *batch) track(shard *flowtable.Shard, entry *flowtable.Entry, h *header.Packet) {
	state := UDPFlow
	if h.Proto == header.ProtoTCP {
		state = b.tcpState(entry, h)
	}
	if state == Unconfirmed && State(entry.Class()) == Unconfirmed {
		entry.Mark(heard)
		return
	}
	entry.SetWaits(0)
	shard.Move(entry, flowtable.Class(state), b.millis)
}

// tcpState returns the state after one more packet from the client, and moves the
// expected sequence number and the counts along.
func (b *batch) tcpState(entry *flowtable.Entry, h *header.Packet) State {
	state, bound := State(entry.Class()), entry.Binding()
	seq := bound.Seq()
	switch {
	case state == Handover:
		return state
	case opens(h):
		return b.repeatedSYN(entry, h, state)
	case h.TCPFlags&header.RST != 0:
		if entry.Flags()&leapt != 0 || !near(h.Seq, seq, endWindow) {
			return state
		}
		b.end(entry)
		entry.Unmark(late | denied)
		return Closed
	case h.TCPFlags&header.ACK == 0:
		return state
	case entry.Server != 0 && state == Embryonic && !b.knows(entry, h):
		return state
	case near(h.Seq, seq, dataWindow):
	case h.Seq == entry.ISN+1 && (state == Established || state == Unconfirmed):
		seq = h.Seq // the server took a repeated SYN for a new connection
		entry.SetSeq(seq)
		bound = entry.Binding()
		entry.Mark(leapt)
	default:
		return state
	}
	if int32(h.Seq-seq) > endWindow {
		entry.Mark(leapt)
	}
	ends := h.TCPFlags&header.FIN != 0 && entry.Flags()&leapt == 0 && near(h.Seq, seq, endWindow)
	ahead := int32(h.Seq + segmentLen(h) - seq)
	next := b.revive(entry, state, ahead, h.Seq == seq)
	if ahead > 0 {
		entry.Advance(bound, uint32(ahead))
	}
	if ends {
		b.end(entry)
		entry.Mark(finished)
		return Closing
	}
	return afterBoth(entry, next)
}

// repeatedSYN keeps the choice. The sequence number is that of the client's latest
// attempt; an open connection keeps its own until the attempt's ACK.
func (b *batch) repeatedSYN(entry *flowtable.Entry, h *header.Packet, state State) State {
	if state == Closed && entry.Flags()&denied != 0 {
		entry.Unmark(denied | leapt) // the first SYN did not arrive, or its socket had yet to be made
		b.begin(entry)
		state = Embryonic
	}
	if state == Embryonic {
		entry.SetSeq(h.Seq + 1)
	}
	if state == Embryonic || state == Established || state == Unconfirmed {
		entry.ISN = h.Seq
	}
	return state
}

// revive returns the state after an ACK: an open one, unless the flow has ended and
// the ACK may be from before. A FIN or RST that data follows was forged, or the
// client's data could not lie ahead of it; of ACKs without data, at the very number
// of the RST, the second one proves the same.
func (b *batch) revive(entry *flowtable.Entry, state State, ahead int32, exact bool) State {
	switch {
	case state == Established || state == Unconfirmed:
		return state
	case state == Embryonic:
		return b.opened(entry)
	case entry.Flags()&ended != 0:
		return state
	case ahead > 0 || entry.Flags()&denied != 0:
	case state == Closed && exact && entry.Flags()&late != 0:
	case state == Closed && exact:
		entry.Mark(late)
		return state
	default:
		return state
	}
	entry.Unmark(denied | finished)
	b.begin(entry)
	return b.opened(entry)
}

// opened returns the state of a flow whose client says that it is open.
func (b *batch) opened(entry *flowtable.Entry) State {
	p := b.view.peer(PeerID(entry.Peer()))
	if b.engine.cfg.Confirm && p != nil && p.plain == nil && p.listener.answers(b.now) {
		return Unconfirmed
	}
	return Established
}

// segmentLen is the room, in sequence numbers, that the packet takes.
func segmentLen(h *header.Packet) uint32 {
	n := uint32(h.PayloadLen)
	if h.TCPFlags&header.FIN != 0 {
		n++
	}
	if h.TCPFlags&header.SYN != 0 {
		n++
	}
	return n
}

// near reports whether two sequence numbers are at most window apart.
func near(a, b uint32, window int32) bool {
	d := int32(a - b)
	return -window <= d && d <= window
}

// begin counts a flow as one that its peer has; end, as one that has ended. Both
// may be called any number of times.
func (b *batch) begin(entry *flowtable.Entry) { b.view.begin(entry) }
func (b *batch) end(entry *flowtable.Entry)   { b.view.end(entry) }

func (v *view) begin(entry *flowtable.Entry) {
	if c := v.countsOf(entry); c != nil && entry.Flags()&counted == 0 {
		entry.Mark(counted)
		c.add(1)
	}
}

func (v *view) end(entry *flowtable.Entry) {
	if c := v.countsOf(entry); c != nil && entry.Flags()&counted != 0 {
		entry.Unmark(counted)
		c.add(-1)
	}
}
