package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/carom-dpr/carom/loadinfo"
	"github.com/carom-dpr/carom/loadinfo/rrdns"
)

const dnsPort = 53

// dnsSettings say which name to answer for, and where.
type dnsSettings struct {
	rrdns.Config
	listen netip.AddrPort // the zero AddrPort: addr, port 53
}

// readDNS reads the section dns, which need not be there.
func (s *settings) readDNS(top *section) {
	n := top.get("dns")
	if n == nil {
		return
	}
	before := len(top.doc.errs)
	f := top.doc.section("dns", n)
	d := &dnsSettings{Config: rrdns.Config{Board: loadinfo.NewBoard(loadinfo.BoardConfig{})}}
	f.scalar("name", func(text string) (err error) { d.Name, err = parseDomain(text); return err })
	f.scalar("listen", func(text string) (err error) {
		if d.listen, err = netip.ParseAddrPort(text); err != nil || d.listen.Port() == 0 {
			return errors.New("give an address of this host and a port, such as 192.0.2.11:53")
		}
		return nil
	})
	f.duration("ttl", &d.TTL)
	f.number("max", &d.Max, 1, 1000)
	f.number("rate", &d.Rate, 1, 1<<30)
	f.scalar("weighted", func(text string) error {
		d.Weighted = text == "true"
		if text != "true" && text != "false" {
			return errors.New("give true or false")
		}
		return nil
	})
	items(f, "name_servers", &d.NameServers, parseDomain)
	f.scalar("hostmaster", func(text string) (err error) { d.Hostmaster, err = parseDomain(text); return err })
	f.done()
	if f.get("name") == nil && n.Kind == yaml.MappingNode {
		f.doc.fail(n, f.at("name"), "is missing: give the cluster's name, such as www.example.org")
	}
	if len(f.doc.errs) == before {
		d.validate(f)
	}
	s.dns = d
}

// validate adds what the name server would refuse, at the field that it is about.
func (d *dnsSettings) validate(f *section) {
	if _, err := rrdns.New(d.Config); err != nil {
		text := inWords(err.Error())
		field := fieldOf.FindString(text)
		f.doc.fail(cmp.Or(f.fields[field], f.node), f.at(field), "%s", strings.TrimLeft(text[len(field):], ": "))
	}
}

func parseDomain(text string) (string, error) {
	if strings.ContainsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
		return "", errors.New("give the name of a domain, without spaces")
	}
	return text, nil
}

// at returns the address to answer at, on a host that has addr.
func (d *dnsSettings) at(addr netip.Addr) netip.AddrPort {
	if d.listen.IsValid() {
		return d.listen
	}
	return netip.AddrPortFrom(addr, dnsPort)
}

// sameDNS returns an error unless two routers answer alike.
func (s *settings) sameDNS(as *settings) error {
	said := func(d *dnsSettings) string {
		if d == nil {
			return ""
		}
		plain := *d
		plain.Board = nil
		return fmt.Sprint(plain)
	}
	if said(s.dns) == said(as.dns) {
		return nil
	}
	return fmt.Errorf("%s:%d: dns: cannot change while the router runs: restart it", s.doc.file, max(s.doc.lines["dns"], 1))
}

// A nameServer answers for the cluster's name. A nil one does nothing.
type nameServer struct {
	*rrdns.Server
	cfg  rrdns.Config
	conn net.PacketConn
	ln   net.Listener
}

// openDNS opens the sockets; nobody answers until run.
func (s *settings) openDNS() (*nameServer, error) {
	if s.dns == nil {
		return nil, nil
	}
	conn, ln, err := rrdns.Listen(s.dns.at(s.Addr))
	if err != nil {
		return nil, fmt.Errorf("dns: %w: choose another address or port with listen", err)
	}
	return &nameServer{cfg: s.dns.Config, conn: conn, ln: ln}, nil
}

// follow has it answer with the hosts of the board.
func (d *nameServer) follow(b *loadinfo.Board) (err error) {
	if d == nil {
		return nil
	}
	d.cfg.Board = b
	d.Server, err = rrdns.New(d.cfg)
	return err
}

// run answers until ctx is done.
func (d *nameServer) run(ctx context.Context) error {
	if d == nil {
		return nil
	}
	return d.Run(ctx, d.conn, d.ln)
}

func (d *nameServer) close() error {
	if d == nil {
		return nil
	}
	return errors.Join(d.conn.Close(), d.ln.Close())
}
