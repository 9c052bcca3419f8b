package loadinfo

import (
	"errors"
	"sync/atomic"
)

// Stats counts what a Broadcaster sent and what became of what it received. Each
// datagram received is in Received and in exactly one of the fields below it.
type Stats struct {
	// Sent counts datagrams, SendErrors those that the socket refused.
	Sent, SendErrors uint64
	// ReadErrors counts reads that failed.
	ReadErrors uint64
	// Received counts datagrams that came.
	Received uint64
	// Accepted counts those that the board took.
	Accepted uint64
	// Own counts this host's own, come back from a broadcast.
	Own uint64
	// Truncated, BadVersion, BadTag, UnknownKey and Malformed count what could not
	// be read, by reason.
	Truncated, BadVersion, BadTag, UnknownKey, Malformed uint64
	// Replayed, Conflicts and Full count what the board refused, by reason.
	Replayed, Conflicts, Full uint64
}

// counts is Stats while it is being counted.
type counts struct {
	sent, sendErrors, readErrors, received, accepted, own atomic.Uint64
	truncated, badVersion, badTag, unknownKey, malformed  atomic.Uint64
	replayed, conflicts, full                             atomic.Uint64
}

// of returns the counter of a verdict on a datagram.
func (c *counts) of(err error) *atomic.Uint64 {
	if err == nil {
		return &c.accepted
	}
	for _, by := range []struct {
		err   error
		count *atomic.Uint64
	}{
		{ErrOwn, &c.own},
		{ErrReplayed, &c.replayed},
		{ErrConflict, &c.conflicts},
		{ErrFull, &c.full},
		{ErrTruncated, &c.truncated},
		{ErrVersion, &c.badVersion},
		{ErrTag, &c.badTag},
		{ErrKey, &c.unknownKey},
	} {
		if errors.Is(err, by.err) {
			return by.count
		}
	}
	return &c.malformed
}

// Stats returns the counts so far. They are read one after another, so that they
// may differ by a datagram that is under way.
func (b *Broadcaster) Stats() Stats {
	c := &b.counts
	return Stats{
		Sent: c.sent.Load(), SendErrors: c.sendErrors.Load(), ReadErrors: c.readErrors.Load(),
		Received: c.received.Load(), Accepted: c.accepted.Load(), Own: c.own.Load(),
		Truncated: c.truncated.Load(), BadVersion: c.badVersion.Load(), BadTag: c.badTag.Load(),
		UnknownKey: c.unknownKey.Load(), Malformed: c.malformed.Load(),
		Replayed: c.replayed.Load(), Conflicts: c.conflicts.Load(), Full: c.full.Load(),
	}
}
