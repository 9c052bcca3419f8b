package sim

import (
	"math/rand/v2"
	"strconv"
	"sync/atomic"

	"github.com/carom-dpr/carom/lb"
)

// Jobs is the experiment of balls and bins: unit jobs come one after another to
// hosts that are empty at first, none ends, and the chooser, which serves nothing
// itself, sees the counts.
type Jobs struct {
	// Policy makes a policy for each trial.
	Policy func() lb.Policy
	// Hosts and Conns are how many there are.
	Hosts, Conns int
	// Moving gives hosts new IDs in each trial, and so other places, which policies
	// that hash depend on.
	Moving bool
}

// MaxLoad returns for each of so many trials the count of the fullest host.
func MaxLoad(j Jobs, trials int, seed uint64) []int {
	flows, most := rand.New(rand.NewPCG(seed, 5)), make([]int, 0, trials)
	c := newCrew(j.Hosts, seed, 0)
	for trial := range trials {
		if j.Moving && trial > 0 {
			c = newCrew(j.Hosts, seed, trial)
		}
		clear(c.counts)
		p := j.Policy().Build(&c.snapshot)
		for range j.Conns {
			x := flows.Uint64()
			if choice := p.Pick(lb.Flow{Conn: x, Client: ^x}, 0); choice.Do == lb.Send {
				c.counts[choice.Host].Add(1)
			}
		}
		most = append(most, c.fullest())
	}
	return most
}

// A crew is hosts with exact counts.
type crew struct {
	snapshot lb.Snapshot
	counts   []atomic.Int32
}

func newCrew(n int, seed uint64, trial int) *crew {
	c := &crew{snapshot: lb.Snapshot{Hosts: make([]lb.Host, n), Self: none}, counts: make([]atomic.Int32, n)}
	prefix := strconv.FormatUint(hash(uint64(trial), seed), 36) + "-"
	id := []byte(prefix)
	for i := range c.snapshot.Hosts {
		id = strconv.AppendInt(id[:len(prefix)], int64(i)+1e8, 10) // all of one length, so they are in order
		c.snapshot.Hosts[i] = lb.Host{ID: string(id), Weight: 1, Live: &c.counts[i]}
	}
	c.snapshot.Members = lb.HashMembers(c.snapshot.Hosts)
	return c
}

func (c *crew) fullest() int {
	most := int32(0)
	for i := range c.counts {
		most = max(most, c.counts[i].Load())
	}
	return int(most)
}

// LargestShare returns, for a policy that hashes, the share of keys that the
// luckiest of n hosts gets, by so many random keys.
func LargestShare(p lb.Policy, n, keys int, seed uint64) float64 {
	j := Jobs{Policy: func() lb.Policy { return p }, Hosts: n, Conns: keys}
	return float64(MaxLoad(j, 1, seed)[0]) / float64(keys)
}

// Disruption removes so many of n hosts, drawn at random, and returns the share of
// random keys whose host changes, and the share of those that change although
// their host stayed.
func Disruption(p lb.Policy, n, removed, keys int, seed uint64) (moved, needless float64) {
	r := rand.New(rand.NewPCG(seed, 6))
	c := newCrew(n, seed, 0)
	left := lb.Snapshot{Hosts: append([]lb.Host(nil), c.snapshot.Hosts...), Self: none}
	for _, i := range distinct(r, removed, n, none) {
		left.Hosts[i].Flags = lb.Unhealthy
	}
	before, after := p.Build(&c.snapshot), p.Build(&left)
	for range keys {
		f := lb.Flow{Conn: r.Uint64()}
		was, is := before.Pick(f, 0).Host, after.Pick(f, 0).Host
		if was != is {
			moved++
			if left.Hosts[was].Eligible() {
				needless++
			}
		}
	}
	return moved / float64(keys), needless / float64(keys)
}
