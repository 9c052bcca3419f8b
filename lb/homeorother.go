package lb

// HomeOrOther is the default policy: compare the own host, whose count is exact,
// with one random peer, and hand the connection over only if the peer carries
// more than Theta connections less. Weights count: loads are compared per
// weight, and Theta is in connections of the own host.
//
// If the own host may not get connections, the lighter of two random peers does;
// if no peer may, the connection stays.
//
// Source: Mitzenmacher, "How Useful Is Old Information?", IEEE TPDS 11(1), 2000:
// two choices stay good when what one knows of the load is old, because they do
// not send everybody to the same host. Here one of the two choices is free.
//
// It wins when reports are older than half a mean connection lifetime, and when
// there are many hosts. With ten hosts at load 0.9 and Theta 1 the mean response
// is 3.4, 3.7 and 4.0 service times at report periods of 1, 5 and 10 lifetimes,
// where the lowest-in-the-table rule gives 3.4, 10.2 and 18.6 and serving
// everything at home 10.1; a quarter of the connections is handed over.
//
// It loses to [LeastConnections] when reports are fresh and hosts few, since it
// finds an idle peer only by luck, and to hashing when servers keep caches.
type HomeOrOther struct {
	// Theta is what a redirect must gain, in connections: it needs a peer with
	// more than Theta fewer. 0 means [DefaultTheta]; [AnyGain] asks for no margin, which
	// is theta=0 in the words of [Parse].
	Theta int
}

// DefaultTheta is the default of HomeOrOther.Theta, in connections. It saves
// three redirects in ten and costs 5 % of mean response time (ten hosts, load 0.9,
// reports five lifetimes apart).
const DefaultTheta = 1

// AnyGain, as a HomeOrOther's Theta, hands a connection over to any peer that
// carries less. Every negative Theta means the same.
const AnyGain = -1

// Build implements [Policy].
func (p HomeOrOther) Build(s *Snapshot) Picker {
	if p.Theta == 0 {
		p.Theta = DefaultTheta
	}
	return PowerOfD{D: 2, Threshold: p.Theta}.Build(s)
}
