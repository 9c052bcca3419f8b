package lb

import "time"

// Stay never redirects: every connection is served by the host that the client
// dialled, whatever the state of that host.
//
// It is what round-robin DNS alone gives, and the measure of all other policies.
// It wins when the clients spread evenly and every host is far from full. It
// loses otherwise: at load 0.9 the mean response is 10 service times, as each
// host queues by itself, and a popular resolver's cache can fill one host.
type Stay struct{}

// Build implements [Policy].
func (Stay) Build(*Snapshot) Picker { return stay{} }

type stay struct{}

func (stay) Pick(Flow, time.Duration) Choice { return Choice{} }
