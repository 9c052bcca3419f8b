package lb

import (
	"slices"
	"sync"
)

// members is what the tables of policies that hash depend on.
type members struct {
	list []member
	// heaviest is the greatest weight of all hosts, the ineligible ones included:
	// weights are taken relative to it, and a host that drains must not change
	// what the others' weights mean.
	heaviest uint16
}

// A member is an eligible host.
type member struct {
	id     string
	weight uint16
	host   int32 // its index in the snapshot
}

func membersOf(s *Snapshot) members {
	var m members
	for i := range s.Hosts {
		h := &s.Hosts[i]
		m.heaviest = max(m.heaviest, h.Weight)
		if h.Eligible() {
			m.list = append(m.list, member{h.ID, h.Weight, int32(i)})
		}
	}
	return m
}

func (m members) equal(o members) bool {
	return m.heaviest == o.heaviest && slices.Equal(m.list, o.list)
}

// kept keeps what a policy last built from the members: most snapshots differ
// from the one before in their loads alone.
type kept[T any] struct {
	mu    sync.Mutex
	from  members
	built T
	some  bool
}

func (k *kept[T]) get(from members, build func(members) T) T {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.some || !k.from.equal(from) {
		k.from, k.built, k.some = from, build(from), true
	}
	return k.built
}
