package lb

import "math/bits"

// alias draws hosts with given probabilities in constant time: each of n equally
// likely slots belongs to a host up to a limit and to another one beyond it
// (Walker, ACM TOMS 3(3), 1977; built as by Vose, IEEE TSE 17(9), 1991).
type alias []aliasSlot

type aliasSlot struct {
	limit         uint64 // of the slot's 2^64
	below, beyond int32
}

// newAlias gives host who[k] the share weights[k] of their sum, which is positive.
// It uses up weights.
func newAlias(who []int32, weights []float64) alias {
	sum := 0.0
	for _, w := range weights {
		sum += w
	}
	t := make(alias, len(who))
	var small, large []int
	for k := range weights {
		weights[k] *= float64(len(who)) / sum
		t[k] = aliasSlot{^uint64(0), who[k], who[k]}
		if weights[k] < 1 {
			small = append(small, k)
		} else {
			large = append(large, k)
		}
	}
	for len(small) > 0 && len(large) > 0 {
		s, l := small[len(small)-1], large[len(large)-1]
		small = small[:len(small)-1]
		t[s].limit, t[s].beyond = uint64(weights[s]*(1<<63))<<1, who[l]
		if weights[l] -= 1 - weights[s]; weights[l] < 1 {
			large = large[:len(large)-1]
			small = append(small, l)
		}
	}
	return t
}

// at returns the host for a random number.
func (t alias) at(x uint64) int {
	slot, rest := bits.Mul64(x, uint64(len(t)))
	if s := &t[slot]; rest >= s.limit {
		return int(s.beyond)
	} else {
		return int(s.below)
	}
}
