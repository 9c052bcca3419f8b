package confirm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/internal/beat"
)

// Config configures a Confirmer. Engine and Send have no default.
type Config struct {
	// Engine has the questions and gets the answers. Its Config.Confirm must be set.
	Engine *dpr.Engine
	// Send sends a message to the peer's Receive. It need not arrive. The bytes are
	// Send's only until it returns.
	Send func(to dpr.PeerID, message []byte) error
	// Lives fills lives, which is as long as flows, with what this host's sockets say
	// of them. Without it peers get no answers, and go on as without confirmation.
	Lives func(flows []dpr.Question, lives []dpr.Life) error
	// MaxMessage is the length of the longest message, in bytes. Default 1024.
	MaxMessage int
	// Log is told when sockets cannot be looked at. Default slog.Default().
	Log *slog.Logger
}

const (
	defaultMessage = 1024
	// minMessage has room for one connection over IPv6.
	minMessage = headLen + 1 + 18 + 1 + 18
	// period is how often questions are sent: short against the second after which
	// there are some, and long enough for many to travel together.
	period = beat.Period
	// inboxLen bounds the messages that wait to be looked at.
	inboxLen = 256
	// maxPending bounds the questions without an answer, and patience their age:
	// later the engine has asked again.
	maxPending = 256
	patience   = 5 * time.Second
)

// Stats counts what a Confirmer has done since it was made.
type Stats struct {
	// Asked counts connections that peers were asked about, Told those of which they
	// said something, Gone those of which they said that they are not there. What is
	// asked again counts again.
	Asked, Told, Gone uint64
	// Answered counts connections that peers have asked about.
	Answered uint64
	// Dropped counts messages that were not understood, came too late, or found no
	// room.
	Dropped uint64
}

// A Confirmer asks and answers for one host.
type Confirmer struct {
	cfg   Config
	inbox chan message
	free  sync.Pool // of *[]byte

	asked, told, gone, answered, dropped atomic.Uint64

	// Of Run alone.
	now     time.Time
	pending map[uint64]pending
	order   []uint64 // the keys of pending, the oldest first; some may be gone
	list    []dpr.Question
	lives   []dpr.Life
	out     []byte
}

type message struct {
	from dpr.PeerID
	b    *[]byte
}

// pending is a question that waits for its answer.
type pending struct {
	flows []dpr.Question
	since time.Time
}

// New returns a Confirmer that waits for Run.
func New(cfg Config) (*Confirmer, error) {
	if cfg.MaxMessage == 0 {
		cfg.MaxMessage = defaultMessage
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	switch {
	case cfg.Engine == nil:
		return nil, errors.New("confirm: Engine is nil: give it the engine that has the questions")
	case cfg.Send == nil:
		return nil, errors.New("confirm: Send is nil: give it a way to the peers")
	case cfg.MaxMessage < minMessage:
		return nil, fmt.Errorf("confirm: MaxMessage %d: at least %d", cfg.MaxMessage, minMessage)
	}
	return &Confirmer{cfg: cfg, inbox: make(chan message, inboxLen), pending: make(map[uint64]pending)}, nil
}

// Receive takes a message that a peer's Confirmer has sent. It does not wait, and
// keeps none of the bytes; any number of goroutines may call it.
func (c *Confirmer) Receive(from dpr.PeerID, b []byte) {
	buf, _ := c.free.Get().(*[]byte)
	if buf == nil {
		buf = new([]byte)
	}
	*buf = append((*buf)[:0], b...)
	select {
	case c.inbox <- message{from, buf}:
	default:
		c.dropped.Add(1)
		c.free.Put(buf)
	}
}

// Stats returns the counters.
func (c *Confirmer) Stats() Stats {
	return Stats{
		Asked: c.asked.Load(), Told: c.told.Load(), Gone: c.gone.Load(),
		Answered: c.answered.Load(), Dropped: c.dropped.Load(),
	}
}

// Run asks and answers until ctx is done, which is no error.
func (c *Confirmer) Run(ctx context.Context) error {
	tick := time.NewTimer(beat.Wait(time.Now(), period))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			c.now = time.Now()
			c.ask()
			tick.Reset(beat.Wait(time.Now(), period))
		case m := <-c.inbox:
			c.now = time.Now()
			if !c.receive(m.from, *m.b) {
				c.dropped.Add(1)
			}
			c.free.Put(m.b)
		}
	}
}

// ask sends the engine's questions, those of one peer and one dialled address
// together.
func (c *Confirmer) ask() {
	c.forget()
	c.list = c.cfg.Engine.Questions(c.list[:0])
	slices.SortFunc(c.list, func(a, b dpr.Question) int {
		return cmp.Or(cmp.Compare(a.Peer, b.Peer), a.Dialled.Compare(b.Dialled))
	})
	for list := c.list; len(list) > 0; {
		of := 1
		for of < len(list) && list[of].Peer == list[0].Peer {
			of++
		}
		for flows := list[:of]; len(flows) > 0; {
			flows = flows[c.send(flows):]
		}
		list = list[of:]
	}
}

// send sends one question about some of the flows, and returns about how many.
func (c *Confirmer) send(flows []dpr.Question) (n int) {
	id := rand.Uint64()
	c.out, n = appendQuestion(c.out[:0], id, flows, c.cfg.MaxMessage)
	if c.cfg.Send(flows[0].Peer, c.out) != nil {
		return n // like a message that is lost
	}
	c.asked.Add(uint64(n))
	c.pending[id] = pending{slices.Clone(flows[:n]), c.now}
	c.order = append(c.order, id)
	return n
}

// forget forgets the questions that have waited for too long, and the oldest of too
// many.
func (c *Confirmer) forget() {
	for len(c.order) > 0 {
		oldest, there := c.pending[c.order[0]]
		if there && len(c.order) <= maxPending && c.now.Sub(oldest.since) < patience {
			return
		}
		delete(c.pending, c.order[0])
		c.order = c.order[1:]
	}
	c.order = nil // and with it its memory
}

// receive deals with one message, and reports whether it was of use.
func (c *Confirmer) receive(from dpr.PeerID, b []byte) bool {
	if len(b) < headLen {
		return false
	}
	id := be.Uint64(b[1:])
	switch b[0] {
	case kindQuestion:
		return c.answer(from, id, b[headLen:])
	case kindAnswer:
		return c.learn(from, id, b[headLen:])
	}
	return false
}

// answer looks at this host's sockets for a peer.
func (c *Confirmer) answer(to dpr.PeerID, id uint64, b []byte) bool {
	if c.cfg.Lives == nil {
		return false
	}
	flows, ok := parseQuestion(b, c.list[:0])
	if !ok {
		return false
	}
	c.list = flows
	c.lives = slices.Grow(c.lives[:0], len(flows))[:len(flows)]
	clear(c.lives)
	if err := c.cfg.Lives(flows, c.lives); err != nil {
		c.cfg.Log.Warn("cannot tell a peer which connections are there", "err", err)
		return false
	}
	c.answered.Add(uint64(len(flows)))
	c.out = appendLives(appendHead(c.out[:0], kindAnswer, id), c.lives)
	return c.cfg.Send(to, c.out) == nil
}

// learn brings an answer to the engine. Only who was asked may answer, and once.
func (c *Confirmer) learn(from dpr.PeerID, id uint64, b []byte) bool {
	p, ok := c.pending[id]
	if !ok || p.flows[0].Peer != from {
		return false
	}
	c.lives = slices.Grow(c.lives[:0], len(p.flows))[:len(p.flows)]
	if !parseLives(b, c.lives) {
		return false
	}
	delete(c.pending, id)
	for i := range p.flows {
		c.cfg.Engine.Answer(&p.flows[i], c.lives[i], c.now)
		if c.lives[i] != dpr.Unsaid {
			c.told.Add(1)
		}
		if c.lives[i] == dpr.Gone {
			c.gone.Add(1)
		}
	}
	return true
}
