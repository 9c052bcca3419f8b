package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/confirm"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/dpr/node"
	"github.com/carom-dpr/carom/lb"
	"github.com/carom-dpr/carom/loadinfo"
	"github.com/carom-dpr/carom/loadinfo/health"
	"github.com/carom-dpr/carom/loadinfo/rrdns"
)

var (
	client  = netip.MustParseAddr("198.51.100.1")
	client6 = netip.MustParseAddr("2001:db8:c::1")
	nobody  = netip.MustParseAddr("127.0.0.9") // who cannot be answered
	web     = netip.AddrPortFrom(ownAddr, 80)
	web6    = netip.AddrPortFrom(ownAddr6, 80)
	game    = netip.AddrPortFrom(ownAddr, 27015)
	game6   = netip.AddrPortFrom(ownAddr6, 27015)
)

// A scene is a node on a machine, with a peer, and what makes its counters move.
type scene struct {
	*machine
	t       *testing.T
	node    *node.Node
	metrics *metrics
	do      *atomic.Int32
	port    uint16 // of the next client
	seq     atomic.Uint64
	quiet   atomic.Bool // the peer is silent
}

const (
	scenePeriod = 500 * time.Millisecond
	sceneFlows  = 64
)

func (s *scene) from(addr netip.Addr) netip.AddrPort {
	s.port++
	return netip.AddrPortFrom(addr, 1024+s.port)
}

// get has a packet come from the kernel, fromPeer from the tunnel.
func (s *scene) get(pkt []byte) {
	s.kernel.in <- dpr.Packet{Buf: pkt}
	synctest.Wait()
}

func (s *scene) fromPeer(pkt []byte) {
	s.uplink.in <- dpr.Packet{Buf: pkt, Peer: s.peer}
	synctest.Wait()
}

func (s *scene) hear(msg []byte) {
	s.reports.in <- msg
	synctest.Wait()
}

// decide has the policy do something with every new connection.
func (s *scene) decide(do lb.Action) { s.do.Store(int32(do)) }

func (s *scene) syn(from netip.AddrPort) []byte {
	return dprtest.TCP(from, web, dprtest.Options{Flags: dprtest.SYN, Seq: 1, DF: true})
}

func (s *scene) ack(from netip.AddrPort, payload int) []byte {
	return dprtest.TCP(from, web, dprtest.Options{Flags: dprtest.ACK, Seq: 2, Payload: make([]byte, payload), DF: true})
}

func (s *scene) answer(to netip.AddrPort) []byte {
	return dprtest.TCP(web, to, dprtest.Options{Flags: dprtest.ACK, DF: true})
}

// handed opens a flow that the peer serves.
func (s *scene) handed(from netip.AddrPort) netip.AddrPort {
	s.decide(lb.Send)
	s.get(s.syn(from))
	s.get(s.ack(from, 0))
	return from
}

// chat opens a connection to the plain server, for which there is one port.
func (s *scene) chat() {
	s.decide(lb.Send)
	s.get(dprtest.TCP(s.from(client), netip.AddrPortFrom(ownAddr, 5222), dprtest.Options{Flags: dprtest.SYN}))
}

func (s *scene) speak() {
	if !s.quiet.Load() {
		s.hear(encode(s.t, peerReport("b", s.seq.Add(1)), nil))
	}
}

// pass lets time pass, in which the peer reports.
func (s *scene) pass(periods int) {
	for range periods {
		s.speak()
		<-time.After(scenePeriod) // virtual
		synctest.Wait()
	}
}

func play(t *testing.T, test func(s *scene)) {
	synctest.Test(t, func(t *testing.T) {
		s := &scene{machine: newMachine(), t: t, metrics: newMetrics(), do: new(atomic.Int32)}
		addrs := []netip.Addr{ownAddr, ownAddr6}
		n, err := s.open(node.Config{
			ID: "a", Addr: ownAddr, Period: scenePeriod, MaxFlows: sceneFlows,
			Report: []netip.AddrPort{peerReports},
			Services: []node.Service{
				{Name: "web", Port: 80, Addrs: addrs, Policy: timed{switchable{s.do}, s.metrics.decisions}},
				{Name: "game", Proto: dpr.UDP, Port: 27015, Addrs: addrs, Policy: lb.Stay{}},
				{Name: "chat", Port: 5222, Addrs: addrs, Policy: switchable{s.do}}, // which b has not
			},
			Servers: []node.Server{{
				ID: "c", Services: map[string][]netip.AddrPort{"chat": {netip.MustParseAddrPort("192.0.2.13:5222")}},
				Check: func(string, netip.AddrPort) health.Check { return func(context.Context) error { return nil } },
			}},
			NAT: dpr.NAT{First: 61000, Last: 61000},
		})
		require.NoError(t, err)
		s.node = n
		s.metrics.follow(n, nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- n.Run(ctx) }()
		s.pass(6) // both take part
		test(s)
		cancel()
		require.NoError(t, <-done)
	})
}

// silent opens a flow that the peer serves and is asked about, since it is silent.
func silent(life dpr.Life) func(*scene) {
	return func(s *scene) {
		s.life.Store(uint32(life))
		s.handed(s.from(client))
		s.pass(4)
	}
}

// changed returns a packet with other bytes at an offset.
func changed(pkt []byte, at int, value ...byte) []byte {
	copy(pkt[at:], value)
	return pkt
}

func (s *scene) web6With(ext ...dprtest.Extension) []byte {
	return dprtest.TCP(s.from(client6), web6, dprtest.Options{Flags: dprtest.SYN, Extensions: ext})
}

func (s *scene) synWith(options ...byte) []byte {
	return dprtest.TCP(s.from(client), web, dprtest.Options{Flags: dprtest.SYN, IPOptions: options})
}

// malformed is a report that is sent as it is and cannot be understood.
func malformed() []byte {
	msg := append(make([]byte, 17), 200, 9)
	msg[0], msg[1] = 0xca, 1
	binary.BigEndian.PutUint16(msg[4:], uint16(len(msg)+4))
	return binary.BigEndian.AppendUint32(msg, crc32.Checksum(msg, crc32.MakeTable(crc32.Castagnoli)))
}

// causes says for each counter what makes it move. The order matters: the last ones
// leave the node in no good state.
var causes = []struct {
	counter string
	happens func(s *scene)
}{
	{"carom_flows_decided_total redirected web", func(s *scene) { s.handed(s.from(client)) }},
	{"carom_packets_total forward", func(s *scene) { s.handed(s.from(client)) }},
	{"carom_flows_decided_total served web", func(s *scene) { s.decide(lb.Serve); s.get(s.syn(s.from(client))) }},
	{"carom_packets_total local", func(s *scene) { s.decide(lb.Serve); s.get(s.syn(s.from(client))) }},
	{"carom_flows_decided_total refused web", func(s *scene) { s.decide(lb.Refuse); s.get(s.syn(s.from(client))) }},
	{"carom_packets_dropped_total refused", func(s *scene) { s.decide(lb.Refuse); s.get(s.syn(s.from(nobody))) }},
	{"carom_flows_decided_total in web", func(s *scene) { s.fromPeer(s.syn(s.from(client))) }},
	{"carom_packets_from_peers_total", func(s *scene) { s.fromPeer(s.syn(s.from(client))) }},
	{"carom_flows_decided_total served game", func(s *scene) { s.get(dprtest.UDP(s.from(client), game, dprtest.Options{})) }},
	{"carom_flows_decided_total in game", func(s *scene) { s.fromPeer(dprtest.UDP(s.from(client), game, dprtest.Options{})) }},
	{"carom_packets_total pass", func(s *scene) {
		s.get(dprtest.TCP(s.from(client), netip.AddrPortFrom(ownAddr, 22), dprtest.Options{}))
	}},
	{"carom_packets_total drop", func(s *scene) { s.get([]byte{0}) }},
	{"carom_packets_unknown_total", func(s *scene) { s.get(s.ack(s.from(client), 1)) }},
	{"carom_packets_total reply", func(s *scene) { s.get(s.ack(s.handed(s.from(client)), 1400)) }},
	{"carom_errors_sent_total", func(s *scene) { s.get(s.ack(s.handed(s.from(client)), 1400)) }},
	{"carom_packets_dropped_total too-big", func(s *scene) { s.get(s.ack(s.handed(s.from(nobody)), 1400)) }},
	{"carom_packets_dropped_total hop-limit", func(s *scene) {
		s.get(dprtest.TCP(s.handed(s.from(nobody)), web, dprtest.Options{Flags: dprtest.ACK, Seq: 2, TTL: 1}))
	}},
	{"carom_packets_total hold", func(s *scene) {
		s.get(dprtest.Fragment(dprtest.UDP(s.from(client), game, dprtest.Options{ID: 1, Payload: make([]byte, 2000)}), 1500)[1])
	}},
	{"carom_packets_total transmit", func(s *scene) { s.chat() }},
	{"carom_nat_no_port_total", func(s *scene) { s.chat() }},
	{"carom_packets_dropped_total fragment-lost", func(s *scene) {
		s.get(dprtest.Fragment(dprtest.UDP(s.from(client), game, dprtest.Options{ID: 2, Payload: make([]byte, 2000)}), 1500)[1])
		s.pass(4)
	}},
	{"carom_packets_dropped_total not-service", func(s *scene) {
		s.fromPeer(dprtest.TCP(s.from(client), netip.AddrPortFrom(ownAddr, 22), dprtest.Options{}))
	}},
	{"carom_packets_total transmit", func(s *scene) { s.fromPeer(s.answer(s.handed(s.from(client)))) }},
	{"carom_packets_dropped_total unsolicited", func(s *scene) { s.fromPeer(s.answer(s.from(client))) }},
	{"carom_packets_dropped_total no-checksum", func(s *scene) {
		s.get(dprtest.UDP(s.from(client6), game6, dprtest.Options{Checksum: dprtest.None}))
	}},
	{"carom_packets_dropped_total short", func(s *scene) { s.get(s.syn(s.from(client))[:30]) }},
	{"carom_packets_dropped_total bad-version", func(s *scene) { s.get(changed(s.syn(s.from(client)), 0, 0x55)) }},
	{"carom_packets_dropped_total bad-header-length", func(s *scene) { s.get(changed(s.syn(s.from(client)), 0, 0x44)) }},
	{"carom_packets_dropped_total bad-total-length", func(s *scene) { s.get(changed(s.syn(s.from(client)), 2, 0, 0)) }},
	{"carom_packets_dropped_total bad-option", func(s *scene) { s.get(s.synWith(7, 0, 0, 0)) }},
	{"carom_packets_dropped_total source-route", func(s *scene) { s.get(s.synWith(131, 7, 4, 1, 2, 3, 4)) }},
	{"carom_packets_dropped_total bad-extension-header", func(s *scene) { s.get(s.web6With(dprtest.DestOpts(8), dprtest.HopByHop())) }},
	{"carom_packets_dropped_total too-many-extension-headers", func(s *scene) {
		s.get(s.web6With(slices.Repeat([]dprtest.Extension{dprtest.AtomicFragment(1)}, 100)...))
	}},
	{"carom_packets_dropped_total short-first-fragment", func(s *scene) { s.get(dprtest.Fragment(s.syn(s.from(client)), 28)[0]) }},
	{"carom_packets_dropped_total bad-fragment", func(s *scene) { s.get(dprtest.Fragment(s.syn(s.from(client)), 28)[1]) }},
	{"carom_packets_dropped_total bad-tcp-data-offset", func(s *scene) { s.get(changed(s.syn(s.from(client)), 32, 0x40)) }},
	{"carom_packets_dropped_total bad-udp-length", func(s *scene) {
		s.get(changed(dprtest.UDP(s.from(client), game, dprtest.Options{}), 24, 0, 99))
	}},
	{"carom_decision_duration_seconds", func(s *scene) {
		s.decide(lb.Refuse)
		for range 200 {
			s.get(s.syn(s.from(nobody)))
		}
	}},

	{"carom_confirm_asked_connections_total", silent(dpr.Unsaid)},
	{"carom_confirm_told_connections_total", silent(dpr.Open)},
	{"carom_confirm_gone_connections_total", silent(dpr.Gone)},
	{"carom_confirm_answered_connections_total", silent(dpr.Open)},
	{"carom_confirm_dropped_messages_total", func(s *scene) { s.control(s.peer, []byte{0}); synctest.Wait() }},
	{"carom_connections_reset_total", func(s *scene) {
		flow := s.handed(s.from(client))
		s.quiet.Store(true)
		s.pass(20)
		s.get(s.ack(flow, 1))
		s.quiet.Store(false)
		s.pass(6)
	}},

	{"carom_connections_aborted_total", func(s *scene) {
		s.quiet.Store(true)
		s.pass(20)
		s.quiet.Store(false)
		s.pass(6)
	}},

	{"carom_capture_packets_total not-service", func(s *scene) { s.change(func(m *machine) { m.capture.NotService++ }) }},
	{"carom_capture_packets_total local-socket", func(s *scene) { s.change(func(m *machine) { m.capture.LocalSocket++ }) }},
	{"carom_capture_packets_total captured-syn", func(s *scene) { s.change(func(m *machine) { m.capture.CapturedSYN++ }) }},
	{"carom_capture_packets_total captured-other", func(s *scene) { s.change(func(m *machine) { m.capture.CapturedOther++ }) }},
	{"carom_capture_packets_total limited-syn", func(s *scene) { s.change(func(m *machine) { m.capture.LimitedSYN++ }) }},
	{"carom_capture_packets_total tagged", func(s *scene) { s.change(func(m *machine) { m.capture.Tagged++ }) }},
	{"carom_capture_packets_total fail-open", func(s *scene) { s.change(func(m *machine) { m.capture.FailOpen++ }) }},
	{"carom_tunnel_sent_packets_total", func(s *scene) { s.change(func(m *machine) { m.tunnel.Sent++ }) }},
	{"carom_tunnel_received_packets_total", func(s *scene) { s.change(func(m *machine) { m.tunnel.Received++ }) }},
	{"carom_tunnel_sent_control_messages_total", func(s *scene) { s.change(func(m *machine) { m.tunnel.ControlsSent++ }) }},
	{"carom_tunnel_received_control_messages_total", func(s *scene) { s.change(func(m *machine) { m.tunnel.ControlsReceived++ }) }},
	{"carom_tunnel_dropped_packets_total bad-tag", func(s *scene) { s.change(func(m *machine) { m.tunnel.Dropped["bad-tag"]++ }) }},

	{"carom_reports_sent_total", func(s *scene) { s.pass(2) }},
	{"carom_reports_sent_bytes_total", func(s *scene) { s.pass(2) }},
	{"carom_reports_send_errors_total", func(s *scene) { s.reports.refuse.Store(true); s.pass(2) }},
	{"carom_reports_read_errors_total", func(s *scene) { s.hear(nil) }},
	{"carom_reports_received_total accepted", func(s *scene) { s.speak() }},
	{"carom_reports_received_total replayed", func(s *scene) { s.hear(encode(s.t, peerReport("b", 1), nil)) }},
	{"carom_reports_received_total conflict", func(s *scene) { s.hear(encode(s.t, peerReport("c", 1), nil)) }},
	{"carom_reports_received_total own", func(s *scene) {
		own := peerReport("a", 1)
		own.Boot = s.ownBoot()
		s.hear(encode(s.t, own, nil))
	}},
	{"carom_reports_received_total truncated", func(s *scene) { s.hear(encode(s.t, peerReport("b", 9), nil)[:30]) }},
	{"carom_reports_received_total bad-version", func(s *scene) { s.hear(changed(encode(s.t, peerReport("b", 9), nil), 1, 99)) }},
	{"carom_reports_received_total bad-tag", func(s *scene) { s.hear(changed(encode(s.t, peerReport("b", 9), nil), 14, 9)) }},
	{"carom_reports_received_total unknown-key", func(s *scene) {
		ring, err := loadinfo.NewKeyring(loadinfo.Key{ID: 9, Secret: make([]byte, 16)})
		require.NoError(s.t, err)
		s.hear(encode(s.t, peerReport("b", 9), ring))
	}},
	{"carom_reports_received_total malformed", func(s *scene) { s.hear(malformed()) }},
	{"carom_config_reloads_total success", func(s *scene) { s.metrics.reloaded(nil) }},
	{"carom_config_reloads_total failure", func(s *scene) { s.metrics.reloaded(errors.New("a mistake")) }},

	{"carom_flow_table_full_total", func(s *scene) {
		for range 2 {
			for range sceneFlows {
				s.handed(s.from(client))
			}
			silent(dpr.Open)(s) // established flows do not give way
		}
	}},
	{"carom_flows_lost_total", func(s *scene) {
		s.quiet.Store(true)
		s.pass(20)
		for range s.port { // whichever flows are in the table
			s.port--
			s.get(s.ack(netip.AddrPortFrom(client, 1025+s.port), 1))
		}
	}},
	{"carom_reports_received_total board-full", func(s *scene) {
		for i := range 5000 {
			r := peerReport(fmt.Sprint("x", i), 1)
			r.Node = netip.AddrPort{}
			s.hear(encode(s.t, r, nil))
		}
	}},
}

func (s *scene) ownBoot() uint64 {
	members := s.node.Status().Members
	return members[slices.IndexFunc(members, func(m loadinfo.Member) bool { return m.Local })].Boot
}

// scrape returns what Prometheus would get.
func scrape(t *testing.T, m *metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	return w.Body.String()
}

func TestEveryCounterMoves(t *testing.T) {
	play(t, func(s *scene) {
		caused := make(map[string]bool)
		for _, c := range causes {
			before := counters(t, s.metrics.registry)
			require.Contains(t, before, c.counter)
			c.happens(s)
			require.Greater(t, counters(t, s.metrics.registry)[c.counter], before[c.counter], c.counter)
			caused[c.counter] = true
		}
		for _, counter := range slices.Sorted(maps.Keys(counters(t, s.metrics.registry))) {
			name, service, _ := strings.Cut(strings.TrimPrefix(counter, "carom_flows_decided_total "), " ")
			if service == "chat" || service == "game" && (name == "redirected" || name == "refused") {
				continue // those of web show that they move
			}
			require.True(t, caused[counter], "%s: no cause is known", counter)
		}
	})
}

// A server without a router, with the ports that connections there leave from.
func TestStatusOfServers(t *testing.T) {
	at := netip.MustParseAddrPort("192.0.2.31:8080")
	view := newStatus(node.Status{
		Engine: dpr.Stats{NAT: []dpr.NATPorts{{Server: at, Proto: dpr.UDP, Used: 9}, {Server: at, Proto: dpr.TCP, Used: 1, Free: 2, Resting: 3}}},
		Servers: []node.ServerStatus{{ID: "c", Weight: 7, Services: map[string]node.ServerService{
			"web": {Proto: dpr.TCP, Endpoints: []netip.AddrPort{at}, Healthy: true, Conns: 1},
		}}},
	}, time.Now())
	require.Equal(t, []serverStatus{{"c", 7, map[string]serverService{
		"web": {Endpoints: []serverEndpoint{{at, 1, 2, 3}}, Healthy: true, Connections: 1},
	}}}, view.Servers)
	var out strings.Builder
	line := `{"service":"web","client":"198.51.100.1:1","dialled":"192.0.2.11:80","state":"established","peer":"c","source":"192.0.2.11:61000","server":"192.0.2.31:8080"}`
	require.NoError(t, printFlows(json.NewDecoder(strings.NewReader(line)), &out))
	require.Contains(t, out.String(), "c (192.0.2.11:61000 > 192.0.2.31:8080)")
}

// What the status shows beside the metrics, each under its own name.
func TestStatusCounts(t *testing.T) {
	view, err := json.Marshal(newStatus(node.Status{
		Engine:  dpr.Stats{Errors: 1, Resets: 2},
		Aborted: 12,
		Confirm: confirm.Stats{Asked: 3, Told: 4, Gone: 5, Answered: 6, Dropped: 7},
		Tunnel:  node.TunnelStats{Sent: 8, Received: 9, ControlsSent: 10, ControlsReceived: 11},
	}, time.Now()))
	require.NoError(t, err)
	var s struct {
		Packets, Confirm, Tunnel map[string]any
		Aborted                  int `json:"connections_aborted"`
	}
	require.NoError(t, json.Unmarshal(view, &s))
	require.EqualValues(t, 1, s.Packets["errors_sent"])
	require.EqualValues(t, 2, s.Packets["connections_reset"])
	require.Equal(t, 12, s.Aborted)
	require.Equal(t, map[string]any{
		"asked_connections": 3.0, "told_connections": 4.0, "gone_connections": 5.0,
		"answered_connections": 6.0, "dropped_messages": 7.0,
	}, s.Confirm)
	require.Equal(t, map[string]any{
		"sent": 8.0, "received": 9.0, "sent_control_messages": 10.0, "received_control_messages": 11.0,
		"dropped": nil, "mtu_bytes": nil,
	}, s.Tunnel)
}

// OPERATING.md lists the metrics, all of them and no others.
func TestMetricsAreListed(t *testing.T) {
	text, err := os.ReadFile("../../docs/OPERATING.md")
	require.NoError(t, err)
	listed := make(map[string]bool)
	for _, row := range regexp.MustCompile("(?m)^\\| `(carom_[a-z_]+)`").FindAllSubmatch(text, -1) {
		listed[string(row[1])] = true
	}
	play(t, func(s *scene) {
		s.metrics.registry.MustRegister(dnsCollector(func() (_ rrdns.Stats) { return }))
		s.handed(s.from(client))
		families, err := s.metrics.registry.Gather()
		require.NoError(t, err)
		for _, f := range families {
			if name := f.GetName(); strings.HasPrefix(name, "carom_") {
				require.True(t, listed[name], "%s is not listed", name)
				delete(listed, name)
			}
		}
	})
	delete(listed, "carom_peer_path_ok") // of hosts that can probe
	require.Empty(t, listed, "no such metrics")
}

func TestGauges(t *testing.T) {
	play(t, func(s *scene) {
		silent(dpr.Open)(s)
		text := scrape(t, s.metrics)
		for _, line := range []string{
			`carom_state{state="up"} 1`, `carom_state{state="draining"} 0`,
			`carom_peers{state="up"} 1`, `carom_peers{state="down"} 0`,
			`carom_flows{state="established"} 1`, `carom_redirected_flows{peer="b",service="web"} 1`,
			`carom_peer_connections{peer="b",service="web"} 3`, `carom_peer_report_age_seconds{peer="b"} 0.5`,
			`carom_connections{service="web"} 0`, `carom_service_healthy{service="web"} 1`,
		} {
			require.Contains(t, text, line+"\n")
		}
	})
}

func TestMetricsAreLintFree(t *testing.T) {
	play(t, func(s *scene) {
		families, err := s.metrics.registry.Gather()
		require.NoError(t, err)
		problems, err := promlint.NewWithMetricFamilies(families).Lint()
		require.NoError(t, err)
		require.Empty(t, problems)
	})
}
