package lb

import "math"

// Rendezvous scores every host with a hash of the key and the host's ID, and the
// best score has the key. Weights count exactly: host i gets w_i of their sum.
//
// Source: Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit
// Rates", IEEE/ACM ToN 6(1), 1998; weights as in Schindelhauer and Schomaker,
// "Weighted Distributed Hash Tables", SPAA 2005.
//
// It wins where the same client shall meet the same server and hosts come and go:
// if one goes exactly its keys move, in equal parts to all others, and there is
// no table to build or to agree on.
//
// It loses with many hosts, since each pick looks at all of them, and like all
// hashing to policies that know loads: keys are spread as at random, so that of
// a thousand hosts with 65 keys each the fullest has 40 % more than the average.
type Rendezvous struct {
	// By is what a connection's key is. Default ByConn.
	By Key
}

// Build implements [Policy].
func (p Rendezvous) Build(s *Snapshot) Picker {
	m := membersOf(s)
	r := &rendezvous{equal: true}
	for _, h := range m.list {
		n := numbers(h.id)
		r.hosts = append(r.hosts, scored{n.next(), 1 / float64(h.weight), int(h.host)})
		r.equal = r.equal && h.weight == m.list[0].weight
	}
	return &placed{r, p.By, s.Self}
}

type rendezvous struct {
	hosts []scored
	equal bool // all weights are
}

type scored struct {
	seed    uint64
	inverse float64 // of the weight
	host    int
}

func (r *rendezvous) place(key uint64) int {
	if !r.equal {
		return r.weighted(key)
	}
	best, host := uint64(0), -1
	for i := range r.hosts {
		if score := scramble(key ^ r.hosts[i].seed); host < 0 || score > best {
			best, host = score, r.hosts[i].host
		}
	}
	return host
}

// weighted lets the hosts race: -ln(u)/w, where u is uniform, is the time to an
// event that happens at rate w, so host i is first with probability w_i / sum.
func (r *rendezvous) weighted(key uint64) int {
	first, host := math.Inf(1), -1
	for i := range r.hosts {
		h := &r.hosts[i]
		if t := -math.Log(unit(scramble(key^h.seed))) * h.inverse; t < first {
			first, host = t, h.host
		}
	}
	return host
}
