package sim

import (
	"time"

	"github.com/carom-dpr/carom/lb"
	"github.com/carom-dpr/carom/loadinfo"
)

// headers are the bytes of an IPv4 and a UDP header.
const headers = 20 + 8

// messages are reports that are under way.
type messages struct {
	slab []message
	free []int32
}

type message struct {
	report *loadinfo.Report
	hearer int32
}

func (m *messages) add(x message) int32 {
	if n := len(m.free); n > 0 {
		i := m.free[n-1]
		m.free, m.slab[i] = m.free[:n-1], x
		return i
	}
	m.slab = append(m.slab, x)
	return int32(len(m.slab) - 1)
}

func (m *messages) take(i int32) message {
	x := m.slab[i]
	m.slab[i], m.free = message{}, append(m.free, i)
	return x
}

// report lets a host, or everybody, report, and schedules the next time.
func (s *simulation) report(n int32) {
	s.events.push(event{s.now + s.period(), report, n})
	if n != everybody {
		s.send(n)
		return
	}
	for i := range s.hosts {
		s.send(int32(i))
	}
}

// send sends a host's report to all who hear the host. It is encoded to see how long
// it is; what is heard is what was said, as loadinfo's own tests make sure.
func (s *simulation) send(n int32) {
	h := &s.hosts[n]
	if h.state == gone {
		return
	}
	h.board.SetResources(s.resources(h))
	said, _ := h.board.Report(clock(s.now))
	var err error
	if s.wire, err = said.Append(s.wire[:0], nil); err != nil {
		panic(err) // it is our own
	}
	hearers, broadcast := s.view.hearers(n)
	copies := uint64(len(hearers))
	if broadcast {
		copies = 1
	}
	s.tally.reports += copies
	s.tally.bytes += copies * uint64(len(s.wire)+headers)
	for _, to := range hearers {
		s.carry(&said, to)
	}
}

// resources is a host's load: of its processor, the share of slots that was busy;
// of its memory, the share of its limit of connections.
func (s *simulation) resources(h *host) lb.Resources {
	r := loadinfo.Unknown
	r.CPU = float32(min(h.busy(s.slots, s.now), 1))
	if s.sc.Limit > 0 {
		r.Memory = float32(h.conns.Load()) / float32(s.sc.Limit)
	}
	return r
}

// carry takes a report to one who hears it, unless it is lost.
func (s *simulation) carry(r *loadinfo.Report, to int32) {
	if s.sc.Loss > 0 && s.random.network.Float64() < s.sc.Loss {
		return
	}
	if s.sc.Delay == 0 && s.sc.Jitter == 0 {
		s.view.receive(to, r)
		return
	}
	late := lifetimes(s.sc.Delay)
	if s.sc.Jitter > 0 {
		late += time.Duration(s.random.network.ExpFloat64() * float64(lifetimes(s.sc.Jitter)))
	}
	s.events.push(event{s.now + late, deliver, s.messages.add(message{r, to})})
}

func (s *simulation) deliver(i int32) {
	m := s.messages.take(i)
	s.view.receive(m.hearer, m.report)
}

// newBoard makes the board of a host in one of its lives, which knows no one else.
func (s *simulation) newBoard(n int32, cfg loadinfo.BoardConfig) *loadinfo.Board {
	h := &s.hosts[n]
	cfg.Period = s.period()
	b := loadinfo.NewBoard(cfg)
	weight := s.sc.weight(int(n))
	if weight == 0 {
		weight = loadinfo.NoWeight
	}
	err := b.SetSelf(loadinfo.Self{
		ID: h.id, Boot: uint64(h.life) + 1, Weight: weight,
		Services: []loadinfo.OwnService{{Name: serviceName, Conns: &h.conns, Requests: h.meter}},
	})
	if err != nil {
		panic(err) // it is our own
	}
	return b
}
