package lb

import "time"

// A Key says what a policy that hashes takes for a connection's key.
type Key uint8

const (
	// ByConn hashes the whole connection: each connection of a client may go to
	// another host.
	ByConn Key = iota
	// ByClient hashes the client's address alone: a client's connections stay
	// together, for the sake of caches and sessions, and so do all the clients
	// behind one address translator.
	ByClient
)

func (k Key) of(f Flow) uint64 {
	if k == ByClient {
		return f.Client
	}
	return f.Conn
}

// A Finder is a picker whose choice for a flow is always one of a few hosts, which
// follow from the flow and the eligible hosts alone. A host that lost its table
// can so find a flow's owner among the candidates, instead of asking everybody.
type Finder interface {
	Picker
	// Candidates appends to dst the indexes of the hosts that the flow may have
	// been given to, the likeliest first and each but once. It blocks as little
	// as Pick, and allocates only if dst has no room; MaxD places suffice.
	Candidates(dst []int, f Flow) []int
}

// placed is the picker of the policies that hash: a table knows for each key its
// host.
type placed struct {
	table placer
	by    Key
	self  int
}

type placer interface {
	// place returns the host of a key, -1 if there are no hosts.
	place(key uint64) int
}

func (p *placed) Pick(f Flow, _ time.Duration) Choice {
	return to(p.table.place(p.by.of(f)), p.self)
}

func (p *placed) Candidates(dst []int, f Flow) []int {
	if i := p.table.place(p.by.of(f)); i >= 0 {
		dst = append(dst, i)
	}
	return dst
}

func (p *placed) key(f Flow) uint64 { return p.by.of(f) }

// numbers is a stream of random numbers that belongs to a host, the same on every
// chooser: FNV-1a over its ID starts it.
func numbers(id string) draws {
	return draws(HashMembers([]Host{{ID: id}}))
}

// scramble is a hash of x.
func scramble(x uint64) uint64 {
	d := draws(x)
	return d.next()
}
