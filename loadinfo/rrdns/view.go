package rrdns

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/carom-dpr/carom/loadinfo"
)

// view is who may be named, at one moment, as records. It is not changed.
type view struct {
	made   time.Time
	v4, v6 []address
	at     map[netip.Addr]int // where in v4 or v6
	local  []netip.Addr       // this host's own
	ttl    uint32
}

// address is one address of a host.
type address struct {
	rr     dns.RR
	weight float64
}

// viewAge is how old a view may be. It bounds what a flood of queries costs.
const viewAge = 100 * time.Millisecond

// current returns a view of the board that is not too old. One query makes a new
// one, while the others go on with the last.
func (s *Server) current(now time.Time) *view {
	v := s.view.Load()
	if v != nil && now.Sub(v.made) < viewAge {
		return v
	}
	if v == nil {
		s.refresh.Lock()
	} else if !s.refresh.TryLock() {
		return v
	}
	defer s.refresh.Unlock()
	v = s.build(now)
	s.view.Store(v)
	return v
}

func (s *Server) build(now time.Time) *view {
	v := &view{made: now, at: map[netip.Addr]int{}, ttl: s.ttl()}
	members := s.cfg.Board.Members(now)
	best := loadinfo.Draining // no worse than any that is named
	for _, m := range members {
		if named(m) && rank(m.State) < rank(best) {
			best = m.State
		}
		if m.Local {
			v.local = once(m.Dialled)
		}
	}
	for _, m := range members {
		if named(m) && m.State == best && best != loadinfo.Draining {
			v.add(m, s.zone)
		}
	}
	return v
}

func named(m loadinfo.Member) bool { return m.Weight > 0 && len(m.Dialled) > 0 }

// rank orders the states in which a host may be named; Draining stands for all in
// which it may not.
func rank(s loadinfo.State) int {
	switch s {
	case loadinfo.Up:
		return 0
	case loadinfo.Stale:
		return 1
	case loadinfo.Joining:
		return 2
	}
	return 3
}

// add names a host. An address at which several are dialled has the weight of all: a set
// of records holds none twice (RFC 2181, section 5).
func (v *view) add(m loadinfo.Member, zone string) {
	for _, a := range once(m.Dialled) {
		list := &v.v6
		if a.Is4() {
			list = &v.v4
		}
		at, known := v.at[a]
		if !known {
			at = len(*list)
			v.at[a] = at
			*list = append(*list, address{rr: record(zone, a, v.ttl)})
		}
		(*list)[at].weight += float64(m.Weight)
	}
}

// once returns the addresses in their shortest form, each once.
func once(addrs []netip.Addr) (list []netip.Addr) {
	for _, a := range addrs {
		if a = a.Unmap(); !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	return list
}

func record(name string, a netip.Addr, ttl uint32) dns.RR {
	h := dns.RR_Header{Name: name, Class: dns.ClassINET, Ttl: ttl}
	if a.Is4() {
		h.Rrtype = dns.TypeA
		return &dns.A{Hdr: h, A: a.AsSlice()}
	}
	h.Rrtype = dns.TypeAAAA
	return &dns.AAAA{Hdr: h, AAAA: a.AsSlice()}
}

// own answers for this host's own name.
func (v *view) own(q dns.Question) (list []dns.RR) {
	for _, a := range v.local {
		if rr := record(q.Name, a, v.ttl); rr.Header().Rrtype == q.Qtype {
			list = append(list, rr)
		}
	}
	return list
}

// pick returns up to n records in random order: each host is as likely to be first
// as any other, or as its weight says, and so on for the second among the rest.
func pick(from []address, n int, weighted bool) []dns.RR {
	n = min(n, len(from))
	out := make([]dns.RR, n)
	if weighted {
		for i, x := range lightest(from, n) {
			out[i] = x.rr
		}
		return out
	}
	// A random sample in order, by Fisher and Yates on a list that is only thought
	// of: moved holds where it differs from the true one.
	moved := make(map[int]int, n)
	at := func(i int) int {
		if j, ok := moved[i]; ok {
			return j
		}
		return i
	}
	for i := range out {
		j := i + rand.IntN(len(from)-i)
		out[i] = from[at(j)].rr
		moved[j] = at(i)
	}
	return out
}

// lightest draws without replacement by weight: an exponential variable of rate w
// for each, the n least of them in order (Efraimidis and Spirakis, 2006).
func lightest(from []address, n int) []address {
	type drawn struct {
		address
		key float64
	}
	list := make([]drawn, len(from))
	for i, x := range from {
		list[i] = drawn{x, -math.Log(1-rand.Float64()) / x.weight}
	}
	slices.SortFunc(list, func(a, b drawn) int {
		if a.key < b.key {
			return -1
		}
		return 1
	})
	out := make([]address, n)
	for i := range out {
		out[i] = list[i].address
	}
	return out
}
