package loadinfo

import "errors"

// Stats counts what a Transport sent and what became of what it received. Each
// report received is in Received and in exactly one of the fields below it.
type Stats struct {
	// Sent counts datagrams and SentBytes their payload, SendErrors those that the
	// socket refused.
	Sent, SentBytes, SendErrors uint64
	// ReadErrors counts reads that failed.
	ReadErrors uint64
	// Received counts reports that came.
	Received uint64
	// Accepted counts those that the board took.
	Accepted uint64
	// Own counts this host's own, come back from a broadcast or a relay.
	Own uint64
	// Truncated, BadVersion, BadTag, UnknownKey and Malformed count what could not
	// be read, by reason.
	Truncated, BadVersion, BadTag, UnknownKey, Malformed uint64
	// Replayed, Conflicts and Full count what the board refused, by reason.
	Replayed, Conflicts, Full uint64
}

// Count counts a report that came, under the reason that ParseReport or
// Board.Receive gave for refusing it; nil means that the board took it.
func (s *Stats) Count(err error) {
	s.Received++
	*s.of(err)++
}

func (s *Stats) of(err error) *uint64 {
	if err == nil {
		return &s.Accepted
	}
	for _, by := range []struct {
		err   error
		count *uint64
	}{
		{ErrOwn, &s.Own},
		{ErrReplayed, &s.Replayed},
		{ErrConflict, &s.Conflicts},
		{ErrFull, &s.Full},
		{ErrTruncated, &s.Truncated},
		{ErrVersion, &s.BadVersion},
		{ErrTag, &s.BadTag},
		{ErrKey, &s.UnknownKey},
	} {
		if errors.Is(err, by.err) {
			return by.count
		}
	}
	return &s.Malformed
}
