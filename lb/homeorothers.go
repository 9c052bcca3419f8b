package lb

// HomeOrOthers compares the own host, whose count is exact, with D random peers,
// and hands the connection to the lightest only if that carries more than Theta
// connections less. With D of 1 it is [HomeOrOther]; if the own host may not get
// connections, D+1 peers are compared.
//
// Source: Mitzenmacher, "How Useful Is Old Information?", IEEE TPDS 11(1), 2000.
//
// It wins over HomeOrOther while reports are younger than some five mean
// connection lifetimes: with ten hosts at load 0.9 and two others the mean
// response is 2.8 service times instead of 3.2 at a report period of one
// lifetime.
//
// It loses when reports are older, as more choosers then agree on the same peer,
// and it redirects more: six connections in ten with two others and no margin.
type HomeOrOthers struct {
	// D is the number of peers to compare with; 0 means 2. MaxD-1 bounds it.
	D int
	// Theta is what a redirect must gain, in connections: it needs a peer with
	// more than Theta fewer. 0 means [DefaultTheta]; [AnyGain] asks for no margin, which
	// is theta=0 in the words of [Parse].
	Theta int
}

// Build implements [Policy].
func (p HomeOrOthers) Build(s *Snapshot) Picker {
	if p.D <= 0 {
		p.D = 2
	}
	if p.Theta == 0 {
		p.Theta = DefaultTheta
	}
	return PowerOfD{D: min(p.D, MaxD) + 1, Threshold: p.Theta}.Build(s)
}
