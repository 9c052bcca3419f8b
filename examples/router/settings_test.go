package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/node"
	"github.com/carom-dpr/carom/lb"
	"github.com/carom-dpr/carom/loadinfo"
	"github.com/carom-dpr/carom/loadinfo/rrdns"
)

// The file of this example is right, also with all of its comments in force.
func TestExampleFile(t *testing.T) {
	text, err := os.ReadFile("router.yaml")
	require.NoError(t, err)
	s, err := parseSettings("router.yaml", text)
	require.NoError(t, err)
	require.Equal(t, netip.MustParseAddr("192.0.2.11"), s.Addr)
	require.Equal(t, []node.Service{
		{Name: "web", Port: 80, PortEnd: 80},
		{Name: "game", Proto: dpr.UDP, Port: 27015, PortEnd: 27030, Policy: lb.Rendezvous{By: lb.ByClient}},
	}, s.Services)

	full := regexp.MustCompile(`(?m)^( *)#((?:  +(?:- )?)?[a-z_]+:(?: |$)|- ")`).ReplaceAllString(string(text), "$1$2")
	full = strings.NewReplacer("id: the host's name", "id: a", "interface: the one that has addr", "interface: eth0",
		"weight: the weight below", "weight: 7", "/etc/carom/key2", secretFile(t)).Replace(full)
	s, err = parseSettings("router.yaml", []byte(full))
	require.NoError(t, err)
	require.Equal(t, "a", s.ID)
	require.Len(t, s.Keys, 2)
	require.Equal(t, 2*time.Hour+5*time.Minute, s.Timeouts.Established)
	for _, field := range knownFields(t) {
		require.Regexp(t, `(?m)^[ #-]*`+field+`:`, string(text), "router.yaml explains each field")
	}
}

// knownFields are all that there are.
func knownFields(t *testing.T) (fields []string) {
	_, err := parseSettings("f", []byte("x: 1\nservices: [{x: 1}]\nkeys: [{x: 1}]\ntimeouts: {x: 1}\ndns: {x: 1}\n"))
	require.Error(t, err)
	for _, m := range regexp.MustCompile(`there are (.*)`).FindAllStringSubmatch(err.Error(), -1) {
		fields = append(fields, strings.Split(m[1], ", ")...)
	}
	require.Greater(t, len(fields), 25)
	return fields
}

func secretFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("ab", 16)+"\n"), 0o600))
	return path
}

func TestSettings(t *testing.T) {
	s, err := parseSettings("f", []byte(`
id: x
addr: 2001:db8::1
services:
  - {name: a, port: 1, weight: 0, addrs: 192.0.2.1, policy: "least:threshold=3"}
  - &b {name: b, port: 8000 - 8010, addrs: [192.0.2.1, "2001:db8::1"]}
report: "[2001:db8::ff]:6082"
keys: [{id: 3, secret: 000102030405060708090a0b0c0d0e0f}]
weight: 5
timeouts: {udp_new: 1m30s}
interfaces: eth7
max_flows: 10
servers: {id: c, services: {name: a, at: 192.0.2.31:81}, weight: 0}
nat_ports: 40000-50000
`))
	require.NoError(t, err)
	require.Equal(t, node.Config{
		ID: "x", Addr: netip.MustParseAddr("2001:db8::1"), Interfaces: []string{"eth7"}, Weight: 5, MaxFlows: 10,
		Services: []node.Service{
			{Name: "a", Port: 1, PortEnd: 1, Weight: loadinfo.NoWeight, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
				Policy: lb.LeastConnections{Threshold: 3}},
			{Name: "b", Port: 8000, PortEnd: 8010, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}},
		},
		Report:   []netip.AddrPort{netip.MustParseAddrPort("[2001:db8::ff]:6082")},
		Keys:     []loadinfo.Key{{ID: 3, Secret: []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}}},
		Timeouts: dpr.Timeouts{UDPNew: 90 * time.Second},
		Servers: []node.Server{{
			ID: "c", Weight: loadinfo.NoWeight,
			Services: map[string][]netip.AddrPort{"a": {netip.MustParseAddrPort("192.0.2.31:81")}},
		}},
		NAT: dpr.NAT{First: 40000, Last: 50000},
	}, s.Config)
}

// One word has reports travel by gossip; what report names are then seeds.
func TestGossipSettings(t *testing.T) {
	s, err := parseSettings("f", []byte(`
addr: 192.0.2.1
services: {name: a, port: 1}
report: ["192.0.2.2:6082", "www.example.org:6082"]
transport: gossip
dns: {name: www.example.org, listen: "192.0.2.1:5353", ttl: 10s, max: 3, rate: 7, weighted: true, name_servers: ns.example.org, hostmaster: me.example.org}
`))
	require.NoError(t, err)
	require.Empty(t, s.Report)
	require.NotNil(t, s.Transport)
	require.Equal(t, []string{"192.0.2.2:6082", "www.example.org:6082"}, s.seeds)
	s.dns.Board = nil
	require.Equal(t, &dnsSettings{listen: netip.MustParseAddrPort("192.0.2.1:5353"), Config: rrdns.Config{
		Name: "www.example.org", TTL: 10 * time.Second, Max: 3, Rate: 7, Weighted: true,
		NameServers: []string{"ns.example.org"}, Hostmaster: "me.example.org",
	}}, s.dns)
}

// goodSettings is a configuration that each of badSettings makes a mistake in.
const goodSettings = `id: a
addr: 192.0.2.11
services:
  - name: web
    port: 80
report: 192.0.2.255:6082
keys:
  - {id: 1, secret: 00112233445566778899aabbccddeeff}
weight: 100
period: 500ms
tunnel_port: 6080
queues: 1
timeouts:
  closing: 4m
`

// badSettings are mistakes: what is replaced in goodSettings, by what, and what the
// error says: where, what field, and the remedy.
var badSettings = []struct{ name, old, new, where, says, remedy string }{
	{"not YAML", "addr: 192.0.2.11", "addr: [", "f: line ", "did not find", "correct the YAML"},
	{"a tab", "  - name: web", "\t- name: web", "f: line 4", "found character that cannot start any token", "correct the YAML"},
	{"a list at the top", goodSettings, "- 1\n", "f:1: the file", "this is a list", "give fields of the form name: value"},
	{"nothing", goodSettings, "", "f:1", "nothing in it", "begin with router.yaml"},
	{"only comments", goodSettings, "# later\n", "f:1", "nothing in it", "begin with router.yaml"},
	{"an unknown field", "weight: 100", "wieght: 100", "f:9: wieght", "no such field", "there are id, addr, "},
	{"an unknown field of a service", "    port: 80", "    port: 80\n    prot: tcp", "f:6: services[0].prot", "no such field", "there are name, protocol, port"},
	{"an unknown field of a key", "{id: 1, ", "{id: 1, name: x, ", "f:8: keys[0].name", "no such field", "there are id, secret, file"},
	{"an unknown timeout", "closing: 4m", "open: 4m", "f:14: timeouts.open", "no such field", "there are embryonic"},
	{"a field twice", "weight: 100", "weight: 100\nweight: 5", "f:10: weight", "there twice", "remove one"},
	{"a field of another kind", "period: 500ms", "period: [1]", "f:10: period", "this is a list", "give one value"},
	{"a list of fields", "report: 192.0.2.255:6082", "report: {a: b}", "f:6: report", "these are fields", "give one value"},
	{"a word for a service", "  - name: web\n    port: 80", "  - web", "f:4: services[0]", `"web"`, "give fields"},
	{"no address", "addr: 192.0.2.11\n", "", "f: addr", "is missing", "give the unicast address"},
	{"a name for an address", "addr: 192.0.2.11", "addr: example.org", "f:2: addr", `"example.org"`, "give an IPv4 or IPv6 address"},
	{"a zone", "addr: 192.0.2.11", "addr: fe80::1%eth0", "f:2: addr", "fe80::1%eth0", "give an IPv4 or IPv6 address"},
	{"a loopback address", "addr: 192.0.2.11", "addr: 127.0.0.1", "f:2: ", "addr 127.0.0.1", "give the unicast address"},
	{"a group's address", "addr: 192.0.2.11", "addr: 224.0.0.1", "f:2: ", "addr 224.0.0.1", "give the unicast address"},
	{"no services", "services:\n  - name: web\n    port: 80\n", "", "f: ", "services is empty", "give at least one"},
	{"a service without a name", "  - name: web\n    port: 80", "  - port: 80", "f:4: ", "name is empty", "give"},
	{"a name twice", "    port: 80", "    port: 80\n  - {name: web, port: 81}", "f:6: ", "twice", ""},
	{"a port twice", "    port: 80", "    port: 80-90\n  - {name: b, port: 85}", "f:6: ", "85", "give"},
	{"no port", "    port: 80\n", "", "f:4: ", "port is 0", "give the port that clients dial"},
	{"a port by name", "port: 80", "port: http", "f:5: services[0].port", `"http"`, "give a port from 1 to 65535"},
	{"port 0", "port: 80", "port: 0", "f:5: services[0].port", `"0"`, "give a port from 1 to 65535"},
	{"a port too high", "port: 80", "port: 65536", "f:5: services[0].port", `"65536"`, "give a port from 1 to 65535"},
	{"a range backwards", "port: 80", "port: 90-80", "f:5: services[0].port", `"90-80"`, "range such as 8000-8010"},
	{"a protocol", "    port: 80", "    port: 80\n    protocol: sctp", "f:6: services[0].protocol", `"sctp"`, "give tcp or udp"},
	{"a policy", "    port: 80", "    port: 80\n    policy: best", "f:6: services[0].policy", `"best"`, "there are home-or-other"},
	{"a capture", "services:", "capture: xdp\nservices:", "f:3: capture", `"xdp"`, "give auto or routing"},
	{"a method", "services:", "method: l2\nservices:", "f:3: method", `method: "l2"`, "give gue or ipip"},
	{"a way to answer", "    port: 80", "    port: 80\n    reply: quick", "f:6: services[0].reply", `reply: "quick"`, "give direct, rewritten or tunnelled"},
	{"two ways to answer", "    port: 80", "    port: 80\n  - {name: ssh, port: 22, reply: tunnelled}", "f:6: ", `that of "web" direct`, "give all tcp services direct or all tunnelled answers"},
	{"a policy's parameter", "    port: 80", "    port: 80\n    policy: \"least:d=3\"", "f:6: services[0].policy", `no parameter "d"`, "it takes threshold"},
	{"a service's address", "    port: 80", "    port: 80\n    addrs: [192.0.2.11, 0.0.0.0]", "f:4: ", "0.0.0.0", "unicast"},
	{"an item of addresses", "    port: 80", "    port: 80\n    addrs:\n      - 192.0.2.11\n      - x", "f:8: services[0].addrs[1]", `"x"`, "give an IPv4 or IPv6 address"},
	{"a service's weight", "    port: 80", "    port: 80\n    weight: -1", "f:6: services[0].weight", `"-1"`, "give a number from 0 to 65535"},
	{"a second document", "queues: 1", "queues: 1\n---\nwieght: 9", "f:", "a second document", "give one"},
	{"a rate of nothing", "queues: 1", "syn_rate: 0", "f:12: syn_rate", "0", "give"},
	{"no report", "report: 192.0.2.255:6082\n", "", "f: ", "report is empty", "give"},
	{"a report without a port", "192.0.2.255:6082", "192.0.2.255", "f:6: report", `"192.0.2.255"`, "give an address and the report port"},
	{"a report to nobody", "192.0.2.255:6082", "0.0.0.0:6082", "f:6: report", `"0.0.0.0:6082"`, "give an address and the report port"},
	{"a key without a number", "{id: 1, ", "{", "f:8: keys[0].id", "is missing", "number the cluster's keys from 1"},
	{"a key without a secret", ", secret: 00112233445566778899aabbccddeeff", "", "f:8: keys[0]", "secret or file is missing", "openssl rand"},
	{"a short secret", "00112233445566778899aabbccddeeff", "0011", "f:8: keys[0].secret", "", "at least 32 hexadecimal digits"},
	{"a secret in words", "00112233445566778899aabbccddeeff", "correct horse battery staple!!!!", "f:8: keys[0].secret", "", "at least 32 hexadecimal digits"},
	{"a secret's file", "secret: 00112233445566778899aabbccddeeff", "file: /nowhere", "f:8: keys[0].file", "no such file", "name a file that can be read"},
	{"a secret and a file", "{id: 1, ", "{id: 1, file: /nowhere, ", "f:8: keys[0].file", "there is a secret", "give one of both"},
	{"key 0", "id: 1,", "id: 0,", "f:8: keys[0].id", `"0"`, "give a number from 1 to 255"},
	{"a key twice", "keys:\n", "keys:\n  - {id: 1, secret: ffeeddccbbaa99887766554433221100}\n", "f:9: keys[1].id", "1 is another key's", "give each its own number"},
	{"a weight", "weight: 100", "weight: heavy", "f:9: weight", `"heavy"`, "give a number from 0 to 65535"},
	{"a weight too high", "weight: 100", "weight: 65536", "f:9: weight", `"65536"`, "give a number from 0 to 65535"},
	{"a time without a unit", "period: 500ms", "period: 500", "f:10: period", `"500"`, "give a time with its unit"},
	{"a time backwards", "period: 500ms", "period: -1s", "f:10: period", `"-1s"`, "give a time above 0"},
	{"a period too short", "period: 500ms", "period: 1ms", "f:10: ", "period 1ms", "to 1m0s"},
	{"equal ports", "tunnel_port: 6080", "tunnel_port: 6082", "f:11: ", "tunnel_port and report_port are both 6082", "give different ports"},
	{"a server without an endpoint", "queues: 1", "servers: [{id: c, services: [{name: web}]}]", "f:12: servers[0]", "no endpoint", "give an address and a port"},
	{"a server of nothing", "queues: 1", "servers: [{id: c}]", "f:12: servers[0]", "services is empty", "give the endpoints"},
	{"a server without a name", "queues: 1", "servers: [{services: [{name: web, at: 192.0.2.31:80}]}]", "f:12: servers[0]", "id", "give 1 to"},
	{"a server of another service", "queues: 1", "servers: [{id: c, services: [{name: www, at: 192.0.2.31:80}]}]", "f:12: servers[0]", "is none of services", "give the name of one"},
	{"a server's port", "queues: 1", "servers: [{id: c, services: [{name: web, at: 192.0.2.31}]}]", "f:12: servers[0].services[0].at", `"192.0.2.31"`, "give the address and port of a server"},
	{"a server's service twice", "queues: 1", "servers: [{id: c, services: [{name: web, at: 192.0.2.31:80}, {name: web, at: 192.0.2.31:81}]}]", "f:12: servers[0].services[1]", "is there twice", "remove one"},
	{"a server of the other family", "queues: 1", "servers: [{id: c, services: [{name: web, at: \"[2001:db8::31]:80\"}]}]", "f:12: servers[0]", "no address of its family", "give one"},
	{"a server here", "queues: 1", "servers: [{id: c, services: [{name: web, at: 192.0.2.11:8080}]}]", "f:12: servers[0]", "this host's own", "needs no entry"},
	{"an unknown field of a server", "queues: 1", "servers: [{id: c, port: 3}]", "f:12: servers[0].port", "no such field", "there are id, services, weight"},
	{"a range for servers", "queues: 1", "nat_ports: 9-8", "f:12: nat_ports", `"9-8"`, "range such as"},
	{"a range for servers that is taken", "queues: 1", "nat_ports: 70-90\nservers: [{id: c, services: [{name: web, at: 192.0.2.31:80}]}]", "f:12: nat_ports", `service "web"`, "give others"},
	{"a range for servers on the tunnel's port", "queues: 1", "nat_ports: 6000-7000\nservers: [{id: c, services: [{name: web, at: 192.0.2.31:80}]}]", "f:12: nat_ports", "tunnel_port", "give others"},
	{"a transport", "period: 500ms", "transport: pigeon", "f:10: transport", `"pigeon"`, "give broadcast or gossip"},
	{"a group to find hosts", "192.0.2.255:6082", "224.0.0.9:6082\ntransport: gossip", "f:6: report", "no host", "give those of some hosts"},
	{"a name without a port", "192.0.2.255:6082", "www.example.org\ntransport: gossip", "f:6: report", `"www.example.org"`, "give host:port"},
	{"a port of no host", "192.0.2.255:6082", "www.example.org:66082\ntransport: gossip", "f:6: report", `"www.example.org:66082"`, "give one from 1 to 65535"},
	{"a name to send to", "192.0.2.255:6082", "www.example.org:6082", "f:6: report", `"www.example.org:6082"`, "give an address and the report port"},
	{"an unknown field of dns", "queues: 1", "dns: {name: www.example.org, zone: x}", "f:12: dns.zone", "no such field", "there are name, listen"},
	{"dns without a name", "queues: 1", "dns: {ttl: 5s}", "f:12: dns.name", "is missing", "give the cluster's name"},
	{"dns without anything", "queues: 1", "dns: {}", "f:12: dns.name", "is missing", "give the cluster's name"},
	{"a domain of nothing", "queues: 1", "dns: {name: \"..\"}", "f:12: dns.name", `".."`, "not the name of a domain"},
	{"a domain with a space", "queues: 1", "dns: {name: www example.org}", "f:12: dns.name", `"www example.org"`, "without spaces"},
	{"a name server with a space", "queues: 1", "dns: {name: www.example.org, name_servers: [a b.org]}", "f:12: dns.name_servers[0]", `"a b.org"`, "without spaces"},
	{"a time to live", "queues: 1", "dns: {name: www.example.org, ttl: 5ms}", "f:12: dns.ttl: 5ms", "want", "1 s to a day"},
	{"a time to live for ever", "queues: 1", "dns: {name: www.example.org, ttl: 100h}", "f:12: dns.ttl: 100h", "want", "1 s to a day"},
	{"a time to live of nothing", "queues: 1", "dns: {name: www.example.org, ttl: 0s}", "f:12: dns.ttl", `"0s"`, "give a time above 0"},
	{"where to answer", "queues: 1", "dns: {name: www.example.org, listen: 192.0.2.1}", "f:12: dns.listen", `"192.0.2.1"`, "give an address of this host and a port"},
	{"a yes that is none", "queues: 1", "dns: {name: www.example.org, weighted: often}", "f:12: dns.weighted", `"often"`, "give true or false"},
	{"no queue", "queues: 1", "queues: 0", "f:12: queues", `"0"`, "give a number from 1 to 256"},
	{"flows", "queues: 1", "max_flows: 1e6", "f:12: max_flows", `"1e6"`, "give a number from 1"},
	{"an interface without a name", "queues: 1", "interfaces: [\"\", eth0]", "f:12: interfaces[0]", "is empty", "give the name"},
	{"an interface twice", "queues: 1", "interfaces: [eth0, eth1, eth0]", "f:12: interfaces[2]", `"eth0": it is there twice`, "remove one"},
	{"no interface's name", "queues: 1", "interface: \"eth 0\"", "f:12: interface", `"eth 0"`, "give the name"},
	{"an interface's name that is too long", "queues: 1", "interfaces: [abcdefghijklmnop]", "f:12: interfaces", "abcdefghijklmnop", "give the name"},
	{"reports by IPv6 from IPv4", "192.0.2.255:6082", "\"[2001:db8::2]:6082\"", "f:6: report[0]", "[2001:db8::2]:6082", "give IPv4 addresses"},
	{"a prefix", "queues: 1", "alias_prefixes: [192.0.2.0]", "f:12: alias_prefixes[0]", `"192.0.2.0"`, "give a prefix"},
	{"IPv6 by routing", "addr: 192.0.2.11", "capture: routing\naddr: 2001:db8::11", "f:3: addr 2001:db8::11", "capture: routing takes IPv4 alone", "give an IPv4 address"},
	{"an address of one link", "addr: 192.0.2.11", "addr: fe80::1", "f:2: addr fe80::1", "", "give the unicast address"},
	{"a service's address of one link", "    port: 80", "    port: 80\n    addrs: fe80::1", "f:4: ", "fe80::1", "beyond one link"},
	{"a service's address twice", "    port: 80", "    port: 80\n    addrs: [192.0.2.11, \"::ffff:192.0.2.11\"]", "f:6: services[0].addrs[1]", "is there twice", "remove one"},
	{"a report twice", "report: 192.0.2.255:6082", "report: [192.0.2.255:6082, 192.0.2.255:6082]", "f:6: report[1]", "is there twice", "remove one"},
	{"a seed twice", "report: 192.0.2.255:6082", "transport: gossip\nreport: [a.example:6082, a.example:6082]", "f:7: report[1]", "is there twice", "remove one"},
	{"a control character", "name: web", `name: "we\tb"`, "f:4: ", "name", "without control characters"},
	{"a service's name that is too long", "name: web", "name: " + strings.Repeat("x", 64), "f:4: ", "name", "1 to 63 bytes"},
	{"a port of two services of datagrams", "    port: 80", "    port: 80\n  - {name: u, protocol: udp, port: 1-9}\n  - {name: v, protocol: udp, port: 9}", "f:7: services[2]", `port 9 is one of "u"`, "give others"},
	{"another port than the hosts have", "192.0.2.255:6082", "192.0.2.255:7000", "f:6: report[0]", "192.0.2.255:7000", "report_port: 7000 on all hosts"},
	{"another port than report_port", "queues: 1", "report_port: 7000", "f:6: report[0]", "192.0.2.255:6082", "give 7000"},
	{"gossip on a service's port", "    port: 80", "    port: 6000-7000\ntransport: gossip", "f: report_port", `6082 is one of service "web"`, "choose another"},
	{"gossip on a service's own port", "    port: 80", "    port: 7000\ntransport: gossip\nreport_port: 7000", "f:7: report_port", `7000 is one of service "web"`, "choose another"},
	{"dns on a service's port", "port: 80", "port: 50-60\ndns: {name: www.example.org}", "f:6: dns.listen", `53 is one of service "web"`, "choose another"},
	{"dns on a datagram service's port", "    port: 80", "    port: 5353\n    protocol: udp\ndns: {name: www.example.org, listen: 192.0.2.11:5353}", "f:7: dns.listen", `5353 is one of service "web"`, "choose another"},
	{"dns on the reports' port", "queues: 1", "dns: {name: www.example.org, listen: 192.0.2.11:6082}", "f:12: dns.listen", "report_port", "choose another"},
	{"dns on the tunnel's port", "queues: 1", "dns: {name: www.example.org, listen: 192.0.2.11:6080}", "f:12: dns.listen", "tunnel_port", "choose another"},
	{"a timeout", "closing: 4m", "closing: 0s", "f:14: timeouts.closing", `"0s"`, "give a time above 0"},
	{"a timeout too long", "closing: 4m", "closing: 1000h", "f:14: ", "timeouts.closing", "must be between"},
}

func TestBadSettings(t *testing.T) {
	_, err := parseSettings("f", []byte(goodSettings))
	require.NoError(t, err)
	for _, tt := range badSettings {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parseSettings("f", bad(t, tt.old, tt.new))
			require.Error(t, err)
			require.True(t, strings.HasPrefix(err.Error(), tt.where), "%v does not begin with %q", err, tt.where)
			require.ErrorContains(t, err, tt.says)
			require.ErrorContains(t, err, tt.remedy)
			require.NotContains(t, err.Error(), "horse", "secrets are not repeated")
			require.NotContains(t, err.Error(), "\n", "one mistake, one line")
			require.NotRegexp(t, `\b(node|dpr|loadinfo): |\b(ID|Addrs?|Services|Report|Keys|Period|Port|PortEnd|Name|Proto|Timeouts|[A-Z][a-z]+[A-Z]\w+)\b`,
				err.Error(), "the file's words, not Go's")
		})
	}
}

func bad(t *testing.T, old, with string) []byte {
	t.Helper()
	require.Contains(t, goodSettings, old)
	return []byte(strings.Replace(goodSettings, old, with, 1))
}

// Messages of the packages below lose what is of Go, and keep what a user wrote.
func TestInWords(t *testing.T) {
	for text, want := range map[string]string{
		"node: Services[0] \"MaxFlows\": Port is 0":                         "services[0] \"MaxFlows\": port is 0",
		"dpr: MaxFlows is -1":                                               "max_flows is -1",
		"hostnet: SYNRate 2: give at most 1, or -1 for no limit":            "syn_rate 2: give at most 1, or -1 for no limit",
		"node: hostnet: set Interfaces\nhostnet: raw sockets (CAP_NET_RAW)": "set interfaces\nraw sockets (CAP_NET_RAW)",
		"node: tun: /dev/net/tun: permission denied: run as root":           "/dev/net/tun: permission denied: run as root",
		"node: TunnelPort 6080: gue: listen on 192.0.2.1:6080: in use":      "tunnel_port 6080: listen on 192.0.2.1:6080: in use",
		"node: Interface \"node: x\": no such interface, nor one with Addr": "interface \"node: x\": no such interface, nor one with addr",
	} {
		require.Equal(t, want, inWords(text))
	}
}

// What is allowed and should not be is told, too.
func TestSettingsWarn(t *testing.T) {
	for mode, warned := range map[os.FileMode]bool{0o600: false, 0o640: false, 0o644: runtime.GOOS != "windows"} {
		file := secretFile(t)
		require.NoError(t, os.Chmod(file, mode))
		s, err := parseSettings("f", bad(t, "secret: 00112233445566778899aabbccddeeff", "file: "+file))
		require.NoError(t, err)
		require.Equal(t, warned, len(s.doc.warns) == 1, "%v: %v", mode, s.doc.warns)
		if warned {
			require.Regexp(t, `^f:8: keys\[0\]\.file: .* can be read by all .*: chmod o-r$`, s.doc.warns[0])
		}
	}
}

// Names and ports that meet without harm.
func TestSettingsBesideOneAnother(t *testing.T) {
	for _, with := range []string{
		"port: 6082\n",
		"port: 6082\n    protocol: tcp\ndns: {name: www.example.org, listen: 192.0.2.12:6080}\n",
		"port: 80\n  - {name: a, protocol: udp, port: 9}\n  - {name: b, protocol: udp, port: 9, addrs: 192.0.2.12}\n",
		"port: 80\n  - {name: " + strings.Repeat("x", 63) + ", port: 81}\n",
	} {
		_, err := parseSettings("f", bad(t, "port: 80\n", with))
		require.NoError(t, err)
	}
}

// All mistakes are told at once.
func TestAllMistakesAtOnce(t *testing.T) {
	_, err := parseSettings("f", []byte("addr: x\nweight: y\nperiod: z\nfoo: 1\n"))
	require.Error(t, err)
	require.Len(t, strings.Split(err.Error(), "\n"), 4)
}

func FuzzSettings(f *testing.F) {
	f.Add(goodSettings)
	f.Add("a: &a [*a]\n")
	f.Add("services: &s [{name: x, port: 1, addrs: *s}]\naddr: *s\n")
	for _, tt := range badSettings {
		f.Add(strings.Replace(goodSettings, tt.old, tt.new, 1))
	}
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "file") {
			t.Skip("reads files")
		}
		s, err := parseSettings("f", []byte(text))
		if err == nil {
			require.NoError(t, s.Validate())
		}
	})
}
