package dpr

import (
	"sync/atomic"
	"time"

	"github.com/carom-dpr/carom/internal/header"
)

// A Reason says why a packet was dropped.
type Reason uint8

// The reasons that the engine has of its own. Those below them are what is wrong
// with a packet's form; Reasons lists all.
const (
	// NotService: a peer sent a packet that is for no service of this host.
	NotService Reason = Reason(header.NumReasons) + iota
	// HopLimit: the TTL or hop limit is used up.
	HopLimit
	// TooBig: the packet does not fit the tunnel, and the sender was told so of
	// late; see Config.ErrorsPerSecond.
	TooBig
	// Refused: the policy turned the flow away, and no reset could be sent.
	Refused
	// FragmentLost: a fragment waited for the first one of its datagram, which
	// alone has ports, and it did not come, or too many waited.
	FragmentLost
	// NoChecksum: a UDP datagram over IPv6 has no checksum (RFC 8200, section 8.1).
	NoChecksum
	// Unsolicited: a peer sent an answer to no flow that it serves for this host.
	Unsolicited

	numReasons
)

func parseReason(r header.Reason) Reason { return Reason(r) }

// String returns the reason in lower-case words joined by hyphens, as labels of
// metrics are.
func (r Reason) String() string {
	switch r {
	case NotService:
		return "not-service"
	case HopLimit:
		return "hop-limit"
	case TooBig:
		return "too-big"
	case Refused:
		return "refused"
	case FragmentLost:
		return "fragment-lost"
	case NoChecksum:
		return "no-checksum"
	case Unsolicited:
		return "unsolicited"
	}
	return header.Reason(r).String()
}

// Reasons lists all reasons for which a packet can be dropped.
func Reasons() []Reason {
	var list []Reason
	for r := Reason(header.OK) + 1; r < numReasons; r++ {
		list = append(list, r)
	}
	return list
}

// The counters of a batch: verdicts first, then these, then reasons.
const (
	fromUplink = int(numVerdicts) + iota
	peerGone
	tableFull
	noPort
	unknownFlow
	errorsSent
	resetsSent
	firstReason
	numCounters = firstReason + int(numReasons)
)

type counters [numCounters]atomic.Uint64

// A tally holds the engine's counters several times over: batches that run at once mostly
// add to different ones, on cache lines that no other processor writes to.
type tally [8]struct {
	_ [cacheLine]byte
	counters
	_ [cacheLine]byte
}

// cacheLine is the distance, in bytes, at which two variables do not disturb each other:
// two lines, since x86 fetches them in pairs.
const cacheLine = 128

// of returns what has been counted.
func (t *tally) of(counter int) (sum uint64) {
	for i := range t {
		sum += t[i].counters[counter].Load()
	}
	return sum
}

// flush adds what a batch counted to the engine's counters.
func (b *batch) flush() {
	for i, n := range b.count {
		if n != 0 {
			b.stats[i].Add(uint64(n))
			b.count[i] = 0
		}
	}
}

// serviceCounters counts decisions, each once per flow.
type serviceCounters struct {
	served, out, in, refused atomic.Uint64
}

// Stats is what an engine has counted since it was made.
type Stats struct {
	// Verdicts counts packets by verdict.
	Verdicts map[Verdict]uint64
	// Drops counts dropped packets by reason.
	Drops map[Reason]uint64
	// FromPeers counts the packets that came from an uplink.
	FromPeers uint64
	// PeerGone counts flows whose peer was gone when their next packet came.
	PeerGone uint64
	// TableFull counts new flows for which the table had no room.
	TableFull uint64
	// NoPort counts new flows that a plain server would have got if a port had been free
	// for them: they are served here.
	NoPort uint64
	// NAT counts the ports of each endpoint of a plain server.
	NAT []NATPorts
	// Unknown counts TCP packets that open nothing and belong to no known flow.
	Unknown uint64
	// Errors counts ICMP errors and resets that the engine made, Resets those of them
	// that ended connections whose peer was gone.
	Errors, Resets uint64
	// Flows counts table entries by state.
	Flows map[State]int
	// Services counts decisions by service name.
	Services map[string]ServiceStats
	// Open counts the open flows that each peer was handed, by host ID and service
	// name.
	Open map[string]map[string]int
}

// ServiceStats counts a service's flows since the engine was made.
type ServiceStats struct {
	// Served counts new flows that this host kept, RedirectedOut those that it
	// handed to peers, Refused those that it turned away.
	Served, RedirectedOut, Refused uint64
	// RedirectedIn counts new flows that peers handed to this host.
	RedirectedIn uint64
}

// Stats returns the counters. They are read one after another while packets flow,
// so sums may be off by what was counted meanwhile.
func (e *Engine) Stats() Stats {
	s := Stats{
		Verdicts:  make(map[Verdict]uint64, numVerdicts),
		Drops:     make(map[Reason]uint64, numReasons),
		FromPeers: e.stats.of(fromUplink),
		PeerGone:  e.stats.of(peerGone),
		TableFull: e.stats.of(tableFull),
		NoPort:    e.stats.of(noPort),
		Unknown:   e.stats.of(unknownFlow),
		Errors:    e.stats.of(errorsSent),
		Resets:    e.stats.of(resetsSent),
		Flows:     make(map[State]int, numStates),
		Services:  make(map[string]ServiceStats),
		Open:      make(map[string]map[string]int),
	}
	for v := range numVerdicts {
		s.Verdicts[v] = e.stats.of(int(v))
	}
	for _, r := range Reasons() {
		s.Drops[r] = e.stats.of(firstReason + int(r))
	}
	for state := range numStates {
		s.Flows[state] = e.table.Count(tableClass(state))
	}
	v := e.view.Load()
	v.addTo(&s)
	for _, server := range v.servers {
		if server != nil {
			s.NAT = append(s.NAT, server.ports(seconds(time.Duration(e.ticked.Load()))))
		}
	}
	return s
}

func (v *view) addTo(s *Stats) {
	for _, service := range v.services {
		if service == nil {
			continue
		}
		c := &service.count
		s.Services[service.Name] = ServiceStats{
			Served:        c.served.Load(),
			RedirectedOut: c.out.Load(),
			Refused:       c.refused.Load(),
			RedirectedIn:  c.in.Load(),
		}
		for slot := range v.peers {
			p := &v.peers[slot]
			if p.id == 0 {
				continue
			}
			if s.Open[p.name] == nil {
				s.Open[p.name] = make(map[string]int)
			}
			s.Open[p.name][service.Name] = int(p.count[service.index].open.Load())
		}
	}
}
