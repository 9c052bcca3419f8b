package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/internal/header"
	"github.com/carom-dpr/carom/lb"
)

// addServer parses id,service=address:port,service=address:port.
func (o *options) addServer(arg string) error {
	id, rest, more := strings.Cut(arg, ",")
	servers := make(map[string][]netip.AddrPort)
	for more {
		var field string
		field, rest, more = strings.Cut(rest, ",")
		service, at, _ := strings.Cut(field, "=")
		to, err := netip.ParseAddrPort(at)
		if err != nil {
			return fmt.Errorf("%q: must be like web=192.0.2.31:8080", field)
		}
		servers[service] = append(servers[service], to)
	}
	if id == "" || len(servers) == 0 {
		return errors.New("must be like old-web,web=192.0.2.31:8080")
	}
	o.hosts = append(o.hosts, lb.Host{ID: id, Weight: 1})
	o.peers = append(o.peers, dpr.Peer{ID: id, Servers: servers})
	return nil
}

// checkServers refuses servers of services that there are not.
func (o *options) checkServers() error {
	for _, p := range o.peers {
		for name := range p.Servers {
			if !slices.ContainsFunc(o.config.Services, func(s dpr.Service) bool { return s.Name == name }) {
				return fmt.Errorf("-server %s: service %q: add -service %s=…", p.ID, name, name)
			}
		}
	}
	return nil
}

// addSource parses address, or address,port-port.
func (o *options) addSource(arg string) error {
	text, ports, isRange := strings.Cut(arg, ",")
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return err
	}
	o.config.NAT.Sources = append(o.config.NAT.Sources, addr)
	if !isRange {
		return nil
	}
	first, last, _ := strings.Cut(ports, "-")
	if o.config.NAT.First, err = parsePort(first); err != nil {
		return err
	}
	o.config.NAT.Last, err = parsePort(last)
	return err
}

// ports says which ports of a packet that was translated have changed; all that has
// changed with them is the checksum if only is true.
func ports(in, out []byte) (list []string, only bool) {
	var was, is header.Packet
	if was.Parse(in) != header.OK || is.Parse(out) != header.OK || was.L4 != is.L4 || was.Len != is.Len {
		return nil, false
	}
	for _, p := range []struct {
		name    string
		was, is uint16
	}{{"source port", was.SrcPort, is.SrcPort}, {"destination port", was.DstPort, is.DstPort}} {
		if p.was != p.is {
			list = append(list, fmt.Sprintf("%s %d to %d", p.name, p.was, p.is))
		}
	}
	offset, ok := header.ChecksumOffset(was.Proto)
	if !ok || len(list) == 0 {
		return list, false
	}
	at := int(was.L4) + offset
	list = append(list, fmt.Sprintf("its checksum %s to %s", number(in[at:at+2]), number(out[at:at+2])))
	return list, bytes.Equal(in[was.L4+4:at], out[was.L4+4:at]) && bytes.Equal(in[at+2:was.Len], out[at+2:is.Len])
}
