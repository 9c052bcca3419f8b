package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/loadinfo"
)

// defaultTunnelPort is the node's default, which IANA gave GUE.
const defaultTunnelPort = 6080

func (s *settings) reportPort() uint16 { return cmp.Or(s.ReportPort, loadinfo.DefaultPort) }
func (s *settings) tunnelPort() uint16 { return cmp.Or(s.TunnelPort, defaultTunnelPort) }

// checkPorts refuses what a node by itself may have, and the hosts of a cluster or the
// other listeners of this program may not.
func (s *settings) checkPorts() {
	port := s.reportPort()
	for i, to := range s.Report {
		if to.Port() != port {
			s.refuse(fmt.Sprintf("report[%d]", i), "%v has another port than report_port: give %d, or report_port: %d on all hosts", to, port, to.Port())
		}
	}
	if name, ok := s.serviceAt(port, dpr.TCP); ok && s.Transport != nil {
		s.refuse("report_port", "%d is one of service %q, and gossip needs it by TCP: choose another on all hosts, or give the service others", port, name)
	}
	if s.dns != nil {
		s.checkDNSPort(s.dns.at(s.Addr))
	}
}

// checkDNSPort refuses a port that something else here has. A server of a service
// listens on all addresses, and so do broadcast reports.
func (s *settings) checkDNSPort(at netip.AddrPort) {
	const choose = "choose another port or address with listen"
	if name, ok := s.serviceAt(at.Port(), 0); ok {
		s.refuse("dns.listen", "port %d is one of service %q: %s", at.Port(), name, choose)
	}
	own := at.Addr().IsUnspecified() || at.Addr().Unmap() == s.Addr
	if at.Port() == s.reportPort() && (own || s.Transport == nil) {
		s.refuse("dns.listen", "%v has the port of report_port: %s", at, choose)
	}
	if at.Port() == s.tunnelPort() && own {
		s.refuse("dns.listen", "%v has the port of tunnel_port: %s", at, choose)
	}
}

// refuse adds an error, at the line of the field or of what it belongs to, if the file
// has either.
func (s *settings) refuse(field, format string, args ...any) {
	d := s.doc
	whole := field[:strings.IndexAny(field+".", ".[")]
	where := d.file
	if line := cmp.Or(d.lines[field], d.lines[whole]); line > 0 {
		where = fmt.Sprintf("%s:%d", d.file, line)
	}
	d.errs = append(d.errs, fmt.Errorf("%s: %s: %s", where, field, fmt.Sprintf(format, args...)))
}

// serviceAt returns the name of a service that has the port, by the protocol if that is
// not 0.
func (s *settings) serviceAt(port uint16, proto dpr.Proto) (string, bool) {
	for i := range s.Services {
		service := &s.Services[i]
		is := cmp.Or(service.Proto, dpr.TCP)
		if service.Port <= port && port <= max(service.Port, service.PortEnd) && (proto == 0 || is == proto) {
			return service.Name, true
		}
	}
	return "", false
}
