package rrdns

import (
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// ServeDNS answers a query.
func (s *Server) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	client, udp := clientOf(w.RemoteAddr())
	if udp && !s.limiter.allow(client, time.Now()) {
		s.stats.limited.Add(1)
		if s.limiter.slips() {
			_ = w.WriteMsg(truncated(q))
		}
		return
	}
	m := s.answer(q)
	size := dns.MaxMsgSize
	if opt := q.IsEdns0(); opt != nil {
		addEDNS(m, opt)
		size = min(max(int(opt.UDPSize()), dns.MinMsgSize), ednsSize)
	} else {
		size = dns.MinMsgSize
	}
	if !udp {
		size = dns.MaxMsgSize
	}
	m.Truncate(size)
	_ = w.WriteMsg(m) // who does not get it asks again
}

func clientOf(a net.Addr) (client netip.Addr, udp bool) {
	if a, ok := a.(*net.UDPAddr); ok {
		return a.AddrPort().Addr().Unmap(), true
	}
	return netip.Addr{}, false
}

// truncated sends a client that is limited to TCP, where its address is proven.
func truncated(q *dns.Msg) *dns.Msg {
	m := new(dns.Msg)
	m.SetReply(q)
	m.Truncated = true
	return m
}

// addEDNS answers the client's OPT record.
func addEDNS(m *dns.Msg, opt *dns.OPT) {
	own := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
	own.SetUDPSize(ednsSize)
	own.SetDo(opt.Do()) // RFC 3225: as it was asked
	m.Extra = append(m.Extra, own)
}

// accept leaves it to ServeDNS to refuse what makes no sense, and to count it.
func accept(h dns.Header) dns.MsgAcceptAction {
	const response = 1 << 15
	if h.Bits&response != 0 {
		return dns.MsgIgnore
	}
	return dns.MsgAccept
}

// answer makes the reply, but for EDNS.
func (s *Server) answer(q *dns.Msg) *dns.Msg {
	m := new(dns.Msg)
	m.SetReply(q)
	opt := q.IsEdns0()
	switch {
	case q.Opcode != dns.OpcodeQuery:
		m.Rcode = dns.RcodeNotImplemented
	case len(q.Question) != 1 || options(q) > 1:
		m.Rcode = dns.RcodeFormatError
	case opt != nil && opt.Version() != 0:
		m.Rcode = dns.RcodeBadVers
	default:
		s.resolve(m, q.Question[0])
		return m
	}
	s.stats.invalid.Add(1)
	return m
}

// options counts the OPT records, of which there is one at most (RFC 6891, section 6.1.1).
func options(q *dns.Msg) (n int) {
	for _, rr := range q.Extra {
		if rr.Header().Rrtype == dns.TypeOPT {
			n++
		}
	}
	return n
}

func (s *Server) resolve(m *dns.Msg, q dns.Question) {
	name := strings.ToLower(q.Name)
	if q.Qclass != dns.ClassINET || !dns.IsSubDomain(s.zone, name) ||
		q.Qtype == dns.TypeAXFR || q.Qtype == dns.TypeIXFR {
		s.stats.refused.Add(1)
		m.Rcode = dns.RcodeRefused
		return
	}
	m.Authoritative = true
	v := s.current(time.Now())
	switch name {
	case s.zone:
		s.apex(m, q, v)
	case s.ownServer():
		m.Answer = v.own(q)
	default:
		m.Rcode = dns.RcodeNameError
	}
	switch {
	case m.Rcode == dns.RcodeServerFailure:
		m.Authoritative = false
		s.stats.failed.Add(1)
	case len(m.Answer) > 0:
		s.stats.answered.Add(1)
	default:
		m.Ns = []dns.RR{s.soa} // how long there is nothing
		s.stats.empty.Add(1)
	}
}

// apex answers for the cluster's name itself.
func (s *Server) apex(m *dns.Msg, q dns.Question, v *view) {
	switch q.Qtype {
	case dns.TypeA:
		s.hosts(m, v, v.v4)
	case dns.TypeAAAA:
		s.hosts(m, v, v.v6)
	case dns.TypeSOA:
		m.Answer = []dns.RR{s.soa}
	case dns.TypeNS:
		m.Answer = s.ns
		if len(s.cfg.NameServers) == 0 {
			m.Extra = append(v.own(dns.Question{Name: s.ownServer(), Qtype: dns.TypeA}),
				v.own(dns.Question{Name: s.ownServer(), Qtype: dns.TypeAAAA})...)
		}
	case dns.TypeANY:
		m.Answer = []dns.RR{&dns.HINFO{Hdr: s.header(dns.TypeHINFO), Cpu: "RFC8482"}}
	}
}

// hosts names some hosts. A cluster without any address of the family has none of
// it; one without a host fails.
func (s *Server) hosts(m *dns.Msg, v *view, from []address) {
	if len(v.v4)+len(v.v6) == 0 {
		m.Rcode = dns.RcodeServerFailure
		return
	}
	m.Answer = pick(from, s.cfg.Max, s.cfg.Weighted)
}
