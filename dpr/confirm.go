package dpr

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carom-dpr/carom/internal/flowtable"
)

// A Question is a TCP flow of which this host wants to know from the peer that serves
// it whether it is alive.
type Question struct {
	// Peer serves the flow.
	Peer PeerID
	// Client and Dialled are the flow's ends, as the client sees them.
	Client, Dialled netip.AddrPort
}

// A Life is what a serving host's sockets say of a flow. The zero Life says nothing.
type Life uint8

// What can be said of a flow.
const (
	Unsaid  Life = iota // the host cannot tell
	Opening             // a handshake is under way
	Open                // the connection exists, half closed or not
	Gone                // there is no such connection
)

// String returns the life in lower case.
func (l Life) String() string {
	if l > Gone {
		return fmt.Sprintf("life %d", uint8(l))
	}
	return [...]string{"unsaid", "opening", "open", "gone"}[l]
}

// A host that enters connections sees only what their clients say, and a client's ACK
// proves nothing: it may be a forger's. Nor does it see a server's reset. So it asks
// the serving hosts, which have the sockets: when lookSoon has passed, about flows that
// nobody has confirmed, and about others when they have been silent for lookLater, and
// then again after twice, four times, eight times as long.
const (
	// lookSoon is longer than most handshakes and many connections, which then cost
	// no question.
	lookSoon = time.Second
	// lookLater makes counts right within seconds, at one question for each silence
	// that lasts as long.
	lookLater = 15 * time.Second
	// silence is after how much time without an answer to any question a peer is
	// taken for one that does not answer: many round trips, and less than an
	// unconfirmed flow lives.
	silence = 10 * time.Second
	// maxQuestions bounds those that wait to be taken. What does not fit is asked
	// about later.
	maxQuestions = 4096
)

// look returns the time after which, in a state, a peer is asked about a flow; 0 if
// it is not.
func (s State) look() time.Duration {
	switch s {
	case Embryonic, Unconfirmed:
		return lookSoon
	case Established, Closing:
		return lookLater
	}
	return 0
}

// A watch is when flows of each state are looked at, and how often before they expire.
type watch struct {
	every  [numStates]time.Duration
	rounds [numStates]uint16 // 1: at their end only
}

// newWatch divides the timeouts into rounds. Without confirmation each is one round.
func newWatch(t *Timeouts, confirm bool) *watch {
	w := &watch{every: t.byClass()}
	for state, limit := range w.every {
		w.rounds[state] = 1
		if look := State(state).look(); confirm && look > 0 && limit > look {
			w.every[state] = look
			w.rounds[state] = uint16((limit + look - 1) / look)
		}
	}
	return w
}

// A questions list is what peers are to be asked.
type questions struct {
	mu   sync.Mutex
	list []Question
}

// A listener knows whether a peer answers: since when, after the engine's epoch, all
// questions have waited for an answer; 0: none does.
type listener struct{ waiting atomic.Int64 }

// answers reports whether the peer tells which flows are alive, as far as is known.
func (l *listener) answers(now time.Duration) bool {
	since := l.waiting.Load()
	return since == 0 || int64(now)-since < int64(silence)
}

// idle decides about an entry that had no packet for another round, or is unconfirmed
// for another.
func (e *Engine) idle(entry *flowtable.Entry) (flowtable.Class, bool) {
	w, now := e.watch.Load(), time.Duration(e.ticked.Load())
	p, state := e.view.Load().peer(PeerID(entry.Peer())), State(entry.Class())
	if p != nil && p.plain != nil {
		p = nil // it has nobody to ask, and hides nothing
	}
	busy := state == Unconfirmed && entry.Flags()&heard != 0
	entry.Unmark(heard)
	if busy && entry.Waits() > 8 {
		entry.SetWaits(4 + entry.Waits()%4) // far from its end, and in step with due
	}
	entry.SetWaits(entry.Waits() + 1)
	last := entry.Waits() >= w.rounds[state]
	switch {
	case state == Unconfirmed && (busy || last) && p != nil && !p.listener.answers(now):
		entry.SetWaits(0)
		return flowtable.Class(Established), true // nobody denies it
	case last:
		return entry.Class(), false
	case p != nil && (state.due(entry.Waits()) || e.pressed(now)):
		e.ask(p, entry, now)
	}
	return entry.Class(), true
}

// due reports whether a flow that was idle for so many rounds is asked about: each time
// that this has doubled, and before it would be forgotten so often that lost answers do
// no harm.
func (s State) due(rounds uint16) bool {
	if s.look() == lookSoon {
		return rounds <= 2 || rounds%4 == 0
	}
	return rounds&(rounds-1) == 0 || rounds >= 256 && rounds%16 == 0
}

// pressed reports whether the table was full within the last second, so that room
// matters.
func (e *Engine) pressed(now time.Duration) bool {
	full := e.full.Load()
	return full != 0 && int64(now)-full <= int64(time.Second)
}

func (e *Engine) ask(p *peer, entry *flowtable.Entry, now time.Duration) {
	e.questions.mu.Lock()
	defer e.questions.mu.Unlock()
	if len(e.questions.list) == maxQuestions {
		return
	}
	p.listener.waiting.CompareAndSwap(0, max(1, int64(now)))
	e.questions.list = append(e.questions.list, Question{
		Peer:    p.id,
		Client:  netip.AddrPortFrom(addrOf(entry.Key.Client), entry.Key.ClientPort),
		Dialled: netip.AddrPortFrom(e.view.Load().addrs[entry.Key.Addr], entry.Key.Port),
	})
}

// Questions appends to list what peers are to be asked since the last call, and
// returns it: at most 4096 after each Tick, and none unless Config.Confirm is set. A
// question that gets lost, or its answer, comes again.
func (e *Engine) Questions(list []Question) []Question {
	e.questions.mu.Lock()
	defer e.questions.mu.Unlock()
	list = append(list, e.questions.list...)
	e.questions.list = e.questions.list[:0]
	return list
}

// Answer tells the engine what the peer said to a question. An answer about a flow
// that is not there, or is another peer's by now, changes nothing. A Gone takes the
// flow out of the counts and lets it be forgotten soon, but its packets go on to the
// peer, and one that opens or continues a connection brings it back: it may have been
// on its way.
func (e *Engine) Answer(q *Question, life Life, now time.Time) {
	v := e.view.Load()
	p := v.peer(q.Peer)
	dst := q.Dialled.Addr().As16()
	service, addr := v.lookup(TCP, &dst, q.Dialled.Port())
	if p == nil || life == Unsaid {
		return
	}
	p.listener.waiting.Store(0)
	if service == nil {
		return
	}
	client := q.Client.Addr().As16()
	key := flowtable.Key{
		Client: words(&client), ClientPort: q.Client.Port(), Port: q.Dialled.Port(),
		Service: service.index, Addr: addr,
	}
	hash := e.table.Hash(&key)
	shard := e.table.Lock(hash)
	defer shard.Unlock()
	if entry := shard.Lookup(&key, hash); entry != nil && PeerID(entry.Peer()) == q.Peer {
		e.answered(v, shard, entry, life, e.millis(now))
	}
}

// answered changes an entry as the serving host's word wants it.
func (e *Engine) answered(v *view, shard *flowtable.Shard, entry *flowtable.Entry, life Life, now uint32) {
	state := State(entry.Class())
	switch {
	case state.look() == 0: // not asked about: the answer is late
	case life == Gone:
		v.end(entry)
		entry.Mark(denied)
		shard.Move(entry, flowtable.Class(Closed), now)
	case life != Open:
	case state == Embryonic || state == Unconfirmed:
		shard.Move(entry, flowtable.Class(Established), now)
		entry.SetWaits(0)
	case entry.Waits() > e.watch.Load().rounds[state]/4:
		entry.SetWaits(0) // alive, however long it has been silent
	}
}
