package lb

// Maglev looks the key up in a table whose entries the hosts have filled in turns,
// each in an order of its own. Weights count: a host of half the weight has half
// the turns. Use it by pointer: it keeps its table until hosts or weights change.
//
// Source: Eisenbud and others, "Maglev: A Fast and Reliable Software Network Load
// Balancer", NSDI 2016, §3.4.
//
// It wins where the same key shall meet the same host at a constant cost, however
// many hosts there are, and in even shares: hosts of equal weight have the same
// number of entries, give or take one, where a ring of 100 points per host gives
// the luckiest 40 % more.
//
// It loses to [Rendezvous] and [Ring] in disruption: if one of 100 hosts goes, of
// the entries that were not its own 0.55 % change hands too (0.14 % with ten times
// the size), and to policies that know loads where keys are unequally popular.
type Maglev struct {
	// Size is the number of entries, rounded up to a prime; 0 means 65537. A
	// hundred entries per host keep the shares within 1 %. An entry has 4 bytes.
	Size int
	// By is what a connection's key is. Default ByConn.
	By Key

	kept kept[maglev]
}

// maglevSize is the small size of the paper, enough for some 650 hosts.
const maglevSize = 65537

// maxMaglevSize bounds the table to 64 MiB, for 160,000 hosts.
const maxMaglevSize = 1 << 24

// Build implements [Policy].
func (p *Maglev) Build(s *Snapshot) Picker {
	table := p.kept.get(membersOf(s), func(m members) maglev {
		return newMaglev(m, p.Size)
	})
	return &placed{table, p.By, s.Self}
}

type maglev []int32 // the hosts

func (t maglev) place(key uint64) int {
	if len(t) == 0 {
		return -1
	}
	return int(t[scramble(key)%uint64(len(t))])
}

func newMaglev(m members, size int) maglev {
	if len(m.list) == 0 {
		return nil
	}
	if size <= 0 {
		size = maglevSize
	}
	size = nextPrime(min(size, maxMaglevSize))
	walks := make([]walk, len(m.list))
	for k, h := range m.list {
		n := numbers(h.id)
		walks[k] = walk{at: n.below(uint64(size)), skip: 1 + n.below(uint64(size)-1), weight: h.weight}
	}
	table := populate(walks, uint64(size))
	for i, k := range table {
		table[i] = m.list[k].host
	}
	return table
}

// A walk is the order in which a host wants the entries: as size is prime, steps
// of any length come past all of them.
type walk struct {
	at, skip uint64
	weight   uint16
	credit   int64 // a host that has saved up the heaviest one's weight has a turn
}

// populate is the paper's procedure of that name, with turns by weight.
func populate(walks []walk, size uint64) maglev {
	table, price := make(maglev, size), int64(0)
	for i := range table {
		table[i] = -1
	}
	for k := range walks {
		price = max(price, int64(walks[k].weight))
	}
	for filled := uint64(0); ; {
		for k := range walks {
			w := &walks[k]
			if w.credit += int64(w.weight); w.credit < price {
				continue
			}
			w.credit -= price
			table[w.free(table)] = int32(k)
			if filled++; filled == size {
				return table
			}
		}
	}
}

// free walks on to the next entry that nobody has.
func (w *walk) free(table maglev) uint64 {
	for table[w.at] >= 0 {
		if w.at += w.skip; w.at >= uint64(len(table)) {
			w.at -= uint64(len(table))
		}
	}
	return w.at
}

// nextPrime returns the least prime that is not below n, at least 3 so that a walk
// can have steps.
func nextPrime(n int) int {
	for n = max(n, 3); !prime(n); n++ {
	}
	return n
}

func prime(n int) bool {
	for d := 2; d*d <= n; d++ {
		if n%d == 0 {
			return false
		}
	}
	return true
}
