package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/node"
	"github.com/carom-dpr/carom/lb"
	"github.com/carom-dpr/carom/loadinfo"
	"github.com/carom-dpr/carom/loadinfo/gossip"
)

// errSettings marks errors of the configuration file.
var errSettings = errors.New("the configuration is wrong")

// settings are what a configuration file says.
type settings struct {
	node.Config
	policies map[string]string // by service: what lb.Parse takes; empty for the default
	seeds    []string          // of gossip
	gossip   *gossip.Gossip    // once it is open; nil with broadcast
	dns      *dnsSettings      // nil: no questions are answered
	doc      *document
}

// readSettings reads and validates a configuration file. The error names all that is
// wrong, each with its line, its field and the remedy.
func readSettings(file string) (*settings, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%w: %w: name a file that can be read with -config", errSettings, err)
	}
	s, err := parseSettings(file, text)
	if err != nil {
		return nil, fmt.Errorf("%w:\n%w", errSettings, err)
	}
	return s, nil
}

// warn logs what the file has that it may and should not have.
func (s *settings) warn(log *slog.Logger) {
	for _, w := range s.doc.warns {
		log.Warn("configuration: " + w)
	}
}

func parseSettings(file string, text []byte) (*settings, error) {
	d := &document{file: file}
	s := &settings{policies: make(map[string]string), doc: d}
	top := d.parse(text)
	if top == nil {
		return nil, d.err()
	}
	s.read(top)
	if len(d.errs) == 0 {
		if err := s.Validate(); err != nil {
			d.errs = append(d.errs, s.locate(err))
		} else {
			s.checkPorts()
		}
	}
	return s, d.err()
}

func (s *settings) read(top *section) {
	top.text("id", &s.ID)
	top.scalar("addr", func(text string) (err error) { s.Addr, err = parseAddr(text); return err })
	top.text("interface", &s.Interface)
	items(top, "interfaces", &s.Interfaces, func(text string) (string, error) { return text, nil })
	top.list("services", func(n *yaml.Node, path string) { s.readService(top.doc.section(path, n)) })
	top.list("servers", func(n *yaml.Node, path string) { s.readServer(top.doc.section(path, n)) })
	top.scalar("nat_ports", func(text string) (err error) {
		s.NAT.First, s.NAT.Last, err = parsePorts(text)
		return err
	})
	s.readReports(top)
	s.readDNS(top)
	top.list("keys", func(n *yaml.Node, path string) { s.readKey(top.doc.section(path, n)) })
	readWeight(top, &s.Weight)
	items(top, "alias_prefixes", &s.AliasPrefixes, parsePrefix)
	top.duration("period", &s.Period)
	top.scalar("method", func(text string) (err error) {
		s.Method, err = node.ParseMethod(text)
		return err
	})
	top.scalar("capture", func(text string) error {
		s.CaptureByRouting = text == "routing"
		if text != "routing" && text != "auto" {
			return errors.New("give auto or routing")
		}
		return nil
	})
	top.port("tunnel_port", &s.TunnelPort)
	top.port("report_port", &s.ReportPort)
	top.number("queues", &s.Queues, 1, 256)
	top.number("max_flows", &s.MaxFlows, 1, 1<<30)
	top.number("syn_rate", &s.SYNRate, 1, 1<<30)
	s.readTimeouts(top)
	top.done()
}

func (s *settings) readTimeouts(top *section) {
	n := top.get("timeouts")
	if n == nil {
		return
	}
	t := top.doc.section("timeouts", n)
	t.duration("embryonic", &s.Timeouts.Embryonic)
	t.duration("unconfirmed", &s.Timeouts.Unconfirmed)
	t.duration("established", &s.Timeouts.Established)
	t.duration("closing", &s.Timeouts.Closing)
	t.duration("closed", &s.Timeouts.Closed)
	t.duration("udp_new", &s.Timeouts.UDPNew)
	t.duration("udp", &s.Timeouts.UDP)
	t.duration("fragment", &s.Timeouts.Fragment)
	t.done()
}

func (s *settings) readService(f *section) {
	var service node.Service
	var policy string
	f.text("name", &service.Name)
	f.scalar("protocol", func(text string) error {
		service.Proto = map[string]dpr.Proto{"tcp": dpr.TCP, "udp": dpr.UDP}[text]
		if service.Proto == 0 {
			return errors.New("give tcp or udp")
		}
		return nil
	})
	f.scalar("port", func(text string) (err error) {
		service.Port, service.PortEnd, err = parsePorts(text)
		return err
	})
	items(f, "addrs", &service.Addrs, parseAddr)
	f.scalar("reply", func(text string) (err error) {
		service.Reply, err = dpr.ParseReplyMode(text)
		return err
	})
	f.scalar("policy", func(text string) (err error) {
		policy = text
		service.Policy, err = lb.Parse(text)
		return err
	})
	readWeight(f, &service.Weight)
	f.done()
	s.Services = append(s.Services, service)
	s.policies[service.Name] = policy
}

func (s *settings) readServer(f *section) {
	server := node.Server{Services: make(map[string][]netip.AddrPort)}
	f.text("id", &server.ID)
	f.list("services", func(n *yaml.Node, path string) {
		var name string
		var at []netip.AddrPort
		service := f.doc.section(path, n)
		service.text("name", &name)
		items(service, "at", &at, parseEndpoint)
		service.done()
		if _, twice := server.Services[name]; twice {
			f.doc.fail(n, path, "%q is there twice: remove one", name)
		}
		server.Services[name] = at
	})
	readWeight(f, &server.Weight)
	f.done()
	s.Servers = append(s.Servers, server)
}

func parseEndpoint(text string) (netip.AddrPort, error) {
	a, err := netip.ParseAddrPort(text)
	if err != nil || a.Port() == 0 {
		return a, errors.New("give the address and port of a server, such as 192.0.2.31:8080 or \"[2001:db8::31]:8080\"")
	}
	return a, nil
}

// readWeight reads a weight. 0 is no weight, which is something else than no field.
func readWeight(f *section, to *int) {
	const none = -1
	n := none
	f.number("weight", &n, 0, 65535)
	switch n {
	case none:
	case 0:
		*to = loadinfo.NoWeight
	default:
		*to = n
	}
}

func parsePorts(text string) (first, last uint16, err error) {
	from, to, isRange := strings.Cut(text, "-")
	a, errA := strconv.ParseUint(strings.TrimSpace(from), 10, 16)
	b, errB := a, error(nil)
	if isRange {
		b, errB = strconv.ParseUint(strings.TrimSpace(to), 10, 16)
	}
	if errA != nil || errB != nil || a == 0 || b < a {
		return 0, 0, errors.New("give a port from 1 to 65535, or a range such as 8000-8010")
	}
	return uint16(a), uint16(b), nil
}

func parseTarget(text string) (netip.AddrPort, error) {
	a, err := netip.ParseAddrPort(text)
	if err != nil || a.Port() == 0 || a.Addr().IsUnspecified() {
		return a, errors.New("give an address and the report port, such as 192.0.2.255:6082 or \"[2001:db8::2]:6082\"")
	}
	return a, nil
}

func parsePrefix(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, errors.New("give a prefix, such as 192.0.2.0/24 or 2001:db8::/64")
	}
	return p.Masked(), nil
}

// minSecret is the least length of a secret, in bytes: that of the tag of a report.
const minSecret = 16

// readByOthers is the bit of a file's mode that lets those read it who are neither its
// owner nor of its group. Windows, which has no such bit, shows it always.
const readByOthers = 0o004

func (s *settings) readKey(f *section) {
	var id int
	var secret []byte
	f.number("id", &id, 1, 255)
	if n := f.get("secret"); n != nil {
		var err error
		if secret, err = parseSecret(n.Value); err != nil {
			f.doc.fail(n, f.at("secret"), "%v", err)
		}
	}
	f.scalar("file", func(text string) error {
		if f.fields["secret"] != nil {
			return errors.New("there is a secret, too: give one of both")
		}
		content, err := os.ReadFile(filepath.Clean(text))
		if err != nil {
			return fmt.Errorf("%w: name a file that can be read", err)
		}
		if info, err := os.Stat(text); err == nil && info.Mode().Perm()&readByOthers != 0 && runtime.GOOS != "windows" {
			f.doc.warn(f.fields["file"], f.at("file"), fmt.Sprintf("%q can be read by all on this host: chmod o-r", text))
		}
		secret, err = parseSecret(strings.TrimSpace(string(content)))
		return err
	})
	f.done()
	if f.node.Kind == yaml.MappingNode && id == 0 && f.fields["id"] == nil {
		f.doc.fail(f.node, f.at("id"), "is missing: number the cluster's keys from 1")
	}
	if f.node.Kind == yaml.MappingNode && f.fields["secret"] == nil && f.fields["file"] == nil {
		f.doc.fail(f.node, f.path, "secret or file is missing: make one with \"openssl rand -hex 32\"")
	}
	if id != 0 && slices.ContainsFunc(s.Keys, func(k loadinfo.Key) bool { return k.ID == uint8(id) }) {
		f.doc.fail(f.fields["id"], f.at("id"), "%d is another key's, too: give each its own number", id)
	}
	s.Keys = append(s.Keys, loadinfo.Key{ID: uint8(id), Secret: secret})
}

// parseSecret returns an error that does not repeat the secret.
func parseSecret(text string) ([]byte, error) {
	secret, err := hex.DecodeString(text)
	if err != nil || len(secret) < minSecret {
		return nil, fmt.Errorf("give at least %d hexadecimal digits, as \"openssl rand -hex 32\" makes", 2*minSecret)
	}
	return secret, nil
}
