package lb

// Jump numbers the hosts in the order of their IDs and finds the key's number by
// jump consistent hashing, which needs no table. A host that is not eligible keeps
// its number, and its keys draw again; a lighter host takes a key with the
// probability of its weight relative to the heaviest, so the shares are right.
//
// Source: Lamping and Veach, "A Fast, Minimal Memory, Consistent Hash Algorithm",
// arXiv 1406.2294, 2014.
//
// It wins where hosts are numbered and are added at the end: going from n to n+1
// moves 1/(n+1) of the keys, all of them to the new host. Shares are as even as
// keys are random, a pick takes ln n steps, and there is nothing to build.
//
// It loses where hosts leave for good: if one that is not the last by its ID goes,
// the numbers of all after it change, and most of their keys move. While such a
// host merely drains or fails, only its own keys do. For hosts that come and go
// as they like, take [Rendezvous], [Maglev] or [Ring].
type Jump struct {
	// By is what a connection's key is. Default ByConn.
	By Key
}

// Build implements [Policy].
func (p Jump) Build(s *Snapshot) Picker {
	j := &jump{accept: make([]uint64, len(s.Hosts)), heaviest: uint64(membersOf(s).heaviest)}
	for i := range s.Hosts {
		if h := &s.Hosts[i]; h.Eligible() {
			j.accept[i], j.some = uint64(h.Weight), true
		}
	}
	return &placed{j, p.By, s.Self}
}

type jump struct {
	accept   []uint64 // by host: its weight, 0 if not eligible
	heaviest uint64
	some     bool // one is eligible
}

// jumpTries bounds the draws of a key. One host in ten being eligible, one key in
// a thousand needs more and goes to the next eligible host.
const jumpTries = 64

func (j *jump) place(key uint64) int {
	if !j.some {
		return -1
	}
	d, host := draws(key), 0
	for range jumpTries {
		host = jumpHash(d.next(), len(j.accept))
		if d.below(j.heaviest) < j.accept[host] {
			return host
		}
	}
	for j.accept[host] == 0 {
		host = (host + 1) % len(j.accept)
	}
	return host
}

// jumpHash returns the bucket of the key, of n. In the paper's words: the key
// jumps to bucket j when the number of buckets grows from j to j+1, and the next
// jump follows from the last one and one random number.
func jumpHash(key uint64, n int) int {
	at, next := int64(-1), int64(0)
	for next < int64(n) {
		at = next
		key = key*2862933555777941757 + 1
		next = int64(float64(at+1) * (float64(1<<31) / float64(key>>33+1)))
	}
	return int(at)
}
