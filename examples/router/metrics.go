package main

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/carom-dpr/carom/dpr/confirm"
	"github.com/carom-dpr/carom/dpr/hostnet"
	"github.com/carom-dpr/carom/dpr/node"
	"github.com/carom-dpr/carom/loadinfo"
	"github.com/carom-dpr/carom/loadinfo/rrdns"
)

// metrics are what /metrics tells.
type metrics struct {
	registry  *prometheus.Registry
	decisions prometheus.Histogram
	reloads   *prometheus.CounterVec
	changed   prometheus.Gauge
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		decisions: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "carom_decision_duration_seconds",
			Help: "Time that the policy took to choose a host, of one new connection in 16.",
			// From a look at two hosts to one at a thousand; above, something is wrong.
			Buckets: []float64{50e-9, 100e-9, 200e-9, 500e-9, 1e-6, 2e-6, 5e-6, 10e-6, 100e-6, 1e-3},
		}),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "carom_config_reloads_total",
			Help: "Times that the configuration was read, the first time included.",
		}, []string{"result"}),
		changed: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "carom_config_last_success_timestamp_seconds",
			Help: "When a configuration last came into force.",
		}),
	}
	for _, result := range []string{"success", "failure"} {
		m.reloads.WithLabelValues(result)
	}
	m.registry.MustRegister(m.decisions, m.reloads, m.changed,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// follow adds the metrics of the node, and of the name server if there is one.
func (m *metrics) follow(n *node.Node, d *nameServer) {
	m.registry.MustRegister(collector(n.Status))
	if d != nil {
		m.registry.MustRegister(dnsCollector(d.Stats))
	}
}

// reloaded counts a reading of the configuration.
func (m *metrics) reloaded(err error) {
	if err != nil {
		m.reloads.WithLabelValues("failure").Inc()
		return
	}
	m.reloads.WithLabelValues("success").Inc()
	m.changed.Set(float64(time.Now().UnixNano()) / 1e9)
}

// What is known of the node.
var (
	descState   = newDesc("state", "Whether this host is in the state.", "state")
	descConns   = newDesc("connections", "Established connections that this host serves.", "service")
	descHealthy = newDesc("service_healthy", "Whether a server listens.", "service")

	descDecided = newDesc("flows_decided_total", "New flows by what became of them: served here, redirected to a peer, refused, or in: redirected here by a peer.",
		"service", "outcome")
	descOpen      = newDesc("redirected_flows", "Open flows that the peer serves for this host.", "service", "peer")
	descFlows     = newDesc("flows", "Entries of the flow table.", "state")
	descTableFull = newDesc("flow_table_full_total", "New flows for which the flow table had no room.")
	descPeerGone  = newDesc("flows_lost_total", "Flows whose peer was gone when their next packet came.")

	descReset = newDesc("connections_reset_total", "Connections that were reset because the peer that served them was gone.")

	descAborted = newDesc("connections_aborted_total", "Connections served here that were reset because the peer that they were dialled at was dead.")

	descAsked        = newDesc("confirm_asked_connections_total", "Connections that peers were asked about.")
	descTold         = newDesc("confirm_told_connections_total", "Connections of which peers said something when asked.")
	descGone         = newDesc("confirm_gone_connections_total", "Connections of which peers said that they are not there.")
	descAnswered     = newDesc("confirm_answered_connections_total", "Connections that peers have asked this host about.")
	descBadQuestions = newDesc("confirm_dropped_messages_total", "Questions and answers that were not understood, came too late, or found no room.")

	descPackets   = newDesc("packets_total", "Packets by the engine's verdict.", "verdict")
	descDropped   = newDesc("packets_dropped_total", "Packets that the engine dropped.", "reason")
	descFromPeers = newDesc("packets_from_peers_total", "Packets that came through the tunnel to the engine.")
	descUnknown   = newDesc("packets_unknown_total", "TCP packets that open nothing and belong to no known flow.")
	descErrors    = newDesc("errors_sent_total", "ICMP errors and TCP resets that the engine sent.")

	descCaptured  = newDesc("capture_packets_total", "Packets that came to this host, by what the capture program did with them.", "outcome")
	descTunnelOut = newDesc("tunnel_sent_packets_total", "Packets sent to peers.")
	descTunnelIn  = newDesc("tunnel_received_packets_total", "Packets received from peers.")
	descTunnelBad = newDesc("tunnel_dropped_packets_total", "Packets and control messages that the tunnel dropped.", "reason")

	descControlOut = newDesc("tunnel_sent_control_messages_total", "Control messages sent to peers through the tunnel.")
	descControlIn  = newDesc("tunnel_received_control_messages_total", "Control messages received from peers through the tunnel.")

	descReportsOut = newDesc("reports_sent_total", "Load reports sent.")
	descReportSize = newDesc("reports_sent_bytes_total", "Bytes of load reports sent.")
	descSendErrors = newDesc("reports_send_errors_total", "Load reports that the kernel refused to send.")
	descReadErrors = newDesc("reports_read_errors_total", "Reads of load reports that failed.")
	descReportsIn  = newDesc("reports_received_total", "Load reports received, by what became of them.", "result")

	descNATPorts = newDesc("nat_ports", "Ports that connections to an endpoint of a plain server leave from, by their use.", "endpoint", "protocol", "use")
	descNoPort   = newDesc("nat_no_port_total", "New flows served here since no port to a plain server was free.")
	descServerUp = newDesc("server_healthy", "Whether the plain server answers.", "service", "server")

	descPeers     = newDesc("peers", "Other hosts of the cluster.", "state")
	descAge       = newDesc("peer_report_age_seconds", "Age of the peer's last report.", "peer")
	descQueries   = newDesc("dns_queries_total", "DNS queries by what became of them.", "result")
	descPath      = newDesc("peer_path_ok", "Whether the peer answers what is handed to it, by the probes of all paths to it.", "service", "peer")
	descPeerConns = newDesc("peer_connections", "Established connections that the peer serves, by its last report.", "service", "peer")
)

func newDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("carom_"+name, help, labels, nil)
}

// A collector makes metrics of a node's status.
type collector func() node.Status

// Describe tells nothing: which metrics there are depends on services and peers.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector].
func (c collector) Collect(to chan<- prometheus.Metric) {
	s := c()
	out := sink(to)
	out.own(&s)
	out.engine(&s)
	out.confirm(&s.Confirm)
	out.network(&s)
	out.reports(&s)
	out.peers(&s)
	out.servers(&s)
}

// A dnsCollector makes metrics of a name server's counts.
type dnsCollector func() rrdns.Stats

// Describe implements [prometheus.Collector].
func (dnsCollector) Describe(to chan<- *prometheus.Desc) { to <- descQueries }

// Collect implements [prometheus.Collector].
func (c dnsCollector) Collect(to chan<- prometheus.Metric) {
	s, out := c(), sink(to)
	out.count(descQueries, s.Answered, "answered")
	out.count(descQueries, s.Empty, "empty")
	out.count(descQueries, s.Refused, "refused")
	out.count(descQueries, s.Invalid, "invalid")
	out.count(descQueries, s.Failed, "failed")
	out.count(descQueries, s.Limited, "limited")
}

// A sink takes metrics.
type sink chan<- prometheus.Metric

func (to sink) count(d *prometheus.Desc, n uint64, labels ...string) {
	to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
}

func (to sink) gauge(d *prometheus.Desc, x float64, labels ...string) {
	to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, x, labels...)
}

func (to sink) flag(d *prometheus.Desc, is bool, labels ...string) {
	x := 0.0
	if is {
		x = 1
	}
	to.gauge(d, x, labels...)
}

func (to sink) own(s *node.Status) {
	for _, state := range states[:3] { // the others are what peers conclude
		to.flag(descState, s.State == state, state.String())
	}
	for name, service := range s.Services {
		to.gauge(descConns, float64(service.Conns), name)
		to.flag(descHealthy, service.Healthy, name)
	}
}

func (to sink) engine(s *node.Status) {
	for name, n := range s.Engine.Services {
		to.count(descDecided, n.Served, name, "served")
		to.count(descDecided, n.RedirectedOut, name, "redirected")
		to.count(descDecided, n.Refused, name, "refused")
		to.count(descDecided, n.RedirectedIn, name, "in")
	}
	for peer, open := range s.Engine.Open {
		for service, n := range open {
			to.gauge(descOpen, float64(n), service, peer)
		}
	}
	for state, n := range s.Engine.Flows {
		to.gauge(descFlows, float64(n), state.String())
	}
	for verdict, n := range s.Engine.Verdicts {
		to.count(descPackets, n, verdict.String())
	}
	for reason, n := range s.Engine.Drops {
		to.count(descDropped, n, reason.String())
	}
	to.count(descTableFull, s.Engine.TableFull)
	to.count(descPeerGone, s.Engine.PeerGone)
	to.count(descFromPeers, s.Engine.FromPeers)
	to.count(descUnknown, s.Engine.Unknown)
	to.count(descErrors, s.Engine.Errors)
	to.count(descReset, s.Engine.Resets)
	to.count(descAborted, s.Aborted)
}

func (to sink) confirm(s *confirm.Stats) {
	to.count(descAsked, s.Asked)
	to.count(descTold, s.Told)
	to.count(descGone, s.Gone)
	to.count(descAnswered, s.Answered)
	to.count(descBadQuestions, s.Dropped)
}

func (to sink) network(s *node.Status) {
	for outcome, n := range captured(&s.Capture) {
		to.count(descCaptured, n, outcome)
	}
	to.count(descTunnelOut, s.Tunnel.Sent)
	to.count(descTunnelIn, s.Tunnel.Received)
	to.count(descControlOut, s.Tunnel.ControlsSent)
	to.count(descControlIn, s.Tunnel.ControlsReceived)
	for reason, n := range s.Tunnel.Dropped {
		to.count(descTunnelBad, n, reason)
	}
}

// captured returns the capture program's counts by outcome.
func captured(s *hostnet.Stats) map[string]uint64 {
	return map[string]uint64{
		"not-service": s.NotService, "local-socket": s.LocalSocket,
		"captured-syn": s.CapturedSYN, "captured-other": s.CapturedOther,
		"fail-open": s.FailOpen, "limited-syn": s.LimitedSYN, "tagged": s.Tagged,
	}
}

// received returns the counts of reports by what became of them.
func received(r *loadinfo.Stats) map[string]uint64 {
	return map[string]uint64{
		"accepted": r.Accepted, "own": r.Own, "truncated": r.Truncated, "bad-version": r.BadVersion,
		"bad-tag": r.BadTag, "unknown-key": r.UnknownKey, "malformed": r.Malformed,
		"replayed": r.Replayed, "conflict": r.Conflicts, "board-full": r.Full,
	}
}

func (to sink) reports(s *node.Status) {
	r := &s.Reports
	to.count(descReportsOut, r.Sent)
	to.count(descReportSize, r.SentBytes)
	to.count(descSendErrors, r.SendErrors)
	to.count(descReadErrors, r.ReadErrors)
	for result, n := range received(r) {
		to.count(descReportsIn, n, result)
	}
}

func (to sink) peers(s *node.Status) {
	for peer, paths := range s.Paths {
		for service, ok := range pathsOK(paths) {
			to.flag(descPath, ok, service, peer)
		}
	}
	byState := make(map[string]int)
	for i := range s.Members {
		m := &s.Members[i]
		if m.Local {
			continue
		}
		byState[m.State.String()]++
		to.gauge(descAge, m.Age.Seconds(), m.ID)
		for name, r := range reported(m, s.Services) {
			to.gauge(descPeerConns, float64(r.Conns), name, m.ID)
		}
	}
	for _, state := range states {
		to.gauge(descPeers, float64(byState[state.String()]), state.String())
	}
}

func (to sink) servers(s *node.Status) {
	for i := range s.Servers {
		for name, service := range s.Servers[i].Services {
			to.flag(descServerUp, service.Healthy, name, s.Servers[i].ID)
		}
	}
	for _, p := range s.Engine.NAT {
		for use, n := range map[string]int{"used": p.Used, "free": p.Free, "resting": p.Resting} {
			to.gauge(descNATPorts, float64(n), p.Server.String(), p.Proto.String(), use)
		}
	}
	to.count(descNoPort, s.Engine.NoPort)
}

// pathsOK says of each service whether all of its paths are well.
func pathsOK(paths []node.Path) map[string]bool {
	ok := make(map[string]bool)
	for _, p := range paths {
		was, known := ok[p.Service]
		ok[p.Service] = p.OK && (was || !known)
	}
	return ok
}
