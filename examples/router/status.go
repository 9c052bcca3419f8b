package main

import (
	"net/netip"
	"time"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/node"
	"github.com/carom-dpr/carom/loadinfo"
)

// status is what /status tells: node.Status with words for numbers.
type status struct {
	ID       string                   `json:"id"`
	State    string                   `json:"state"`
	Time     time.Time                `json:"time"`
	Services map[string]serviceStatus `json:"services"`
	Members  []member                 `json:"members"`
	Servers  []serverStatus           `json:"servers"`
	Paths    map[string][]path        `json:"paths"` // by peer
	Flows    map[string]int           `json:"flows"`
	Packets  packetStatus             `json:"packets"`
	Aborted  uint64                   `json:"connections_aborted"`
	Confirm  confirmStatus            `json:"confirm"`
	Capture  map[string]uint64        `json:"capture"`
	Tunnel   tunnelStatus             `json:"tunnel"`
	Reports  reportStatus             `json:"reports"`
}

// packetStatus is what the engine has counted, by the names of the metrics.
type packetStatus struct {
	Verdicts  map[string]uint64 `json:"verdicts"`
	Dropped   map[string]uint64 `json:"dropped"`
	FromPeers uint64            `json:"from_peers"`
	Unknown   uint64            `json:"unknown"`
	Errors    uint64            `json:"errors_sent"`
	Resets    uint64            `json:"connections_reset"`
	TableFull uint64            `json:"flow_table_full"`
	PeerGone  uint64            `json:"flows_lost"`
	NoPort    uint64            `json:"nat_no_port"`
}

// confirmStatus is what peers were asked about the connections that they serve, and
// this host by them.
type confirmStatus struct {
	Asked    uint64 `json:"asked_connections"`
	Told     uint64 `json:"told_connections"`
	Gone     uint64 `json:"gone_connections"`
	Answered uint64 `json:"answered_connections"`
	Dropped  uint64 `json:"dropped_messages"`
}

type tunnelStatus struct {
	Sent             uint64            `json:"sent"`
	Received         uint64            `json:"received"`
	ControlsSent     uint64            `json:"sent_control_messages"`
	ControlsReceived uint64            `json:"received_control_messages"`
	Dropped          map[string]uint64 `json:"dropped"`
	MTU              map[string]int    `json:"mtu_bytes"` // by peer
}

type reportStatus struct {
	Sent       uint64            `json:"sent"`
	SentBytes  uint64            `json:"sent_bytes"`
	SendErrors uint64            `json:"send_errors"`
	ReadErrors uint64            `json:"read_errors"`
	Received   map[string]uint64 `json:"received"` // by what became of them
}

type serviceStatus struct {
	Connections   int            `json:"connections"`
	Healthy       bool           `json:"healthy"`
	Served        uint64         `json:"served"`
	RedirectedOut uint64         `json:"redirected_out"`
	RedirectedIn  uint64         `json:"redirected_in"`
	Refused       uint64         `json:"refused"`
	RedirectedNow map[string]int `json:"redirected_now"` // open ones, by peer; the four above count from the start
}

// serverStatus is a host that runs no router. Its connections are those of this host.
type serverStatus struct {
	ID       string                   `json:"id"`
	Weight   uint16                   `json:"weight"`
	Services map[string]serverService `json:"services"`
}

type serverService struct {
	Endpoints   []serverEndpoint `json:"endpoints"`
	Healthy     bool             `json:"healthy"`
	Connections int              `json:"connections"`
}

type serverEndpoint struct {
	At netip.AddrPort `json:"at"`
	// The ports that connections there leave from, by their use.
	Used    int `json:"ports_used"`
	Free    int `json:"ports_free"`
	Resting int `json:"ports_resting"`
}

func newServer(s *node.ServerStatus, engine *dpr.Stats) serverStatus {
	view := serverStatus{s.ID, s.Weight, make(map[string]serverService)}
	for name, service := range s.Services {
		v := serverService{Healthy: service.Healthy, Connections: service.Conns}
		for _, at := range service.Endpoints {
			e := serverEndpoint{At: at}
			for _, p := range engine.NAT {
				if p.Server == at && p.Proto == service.Proto {
					e.Used, e.Free, e.Resting = p.Used, p.Free, p.Resting
				}
			}
			v.Endpoints = append(v.Endpoints, e)
		}
		view.Services[name] = v
	}
	return view
}

type member struct {
	ID       string                     `json:"id"`
	State    string                     `json:"state"`
	Local    bool                       `json:"local,omitempty"`
	Node     netip.AddrPort             `json:"node"`
	Dialled  []netip.Addr               `json:"dialled"`
	Age      float64                    `json:"report_age_seconds"`
	Services map[string]reportedService `json:"services"`
}

// path is a node.Path: whether a peer answers what is handed to it, and why not.
type path struct {
	Service string         `json:"service"`
	Dialled netip.AddrPort `json:"dialled"`
	OK      bool           `json:"ok"`
	Why     string         `json:"why,omitempty"`
}

type reportedService struct {
	Connections uint32 `json:"connections"`
	Weight      uint16 `json:"weight"`
	Healthy     bool   `json:"healthy"`
}

func newStatus(s node.Status, now time.Time) status {
	view := status{
		ID: s.ID, State: s.State.String(), Time: now.UTC(),
		Services: make(map[string]serviceStatus),
		Paths:    make(map[string][]path),
		Flows:    make(map[string]int),
		Packets:  newPacketStatus(&s.Engine),
		Aborted:  s.Aborted,
		Capture:  captured(&s.Capture),
		Confirm:  confirmStatus(s.Confirm),
		Tunnel: tunnelStatus{
			s.Tunnel.Sent, s.Tunnel.Received, s.Tunnel.ControlsSent, s.Tunnel.ControlsReceived, s.Tunnel.Dropped, s.MTU,
		},
		Reports: reportStatus{
			s.Reports.Sent, s.Reports.SentBytes, s.Reports.SendErrors, s.Reports.ReadErrors, received(&s.Reports),
		},
	}
	for name, own := range s.Services {
		count := s.Engine.Services[name]
		out := make(map[string]int)
		for peer, open := range s.Engine.Open {
			out[peer] = open[name]
		}
		view.Services[name] = serviceStatus{
			own.Conns, own.Healthy, count.Served, count.RedirectedOut, count.RedirectedIn, count.Refused, out,
		}
	}
	for i := range s.Members {
		view.Members = append(view.Members, newMember(&s.Members[i], s.Services))
	}
	for i := range s.Servers {
		view.Servers = append(view.Servers, newServer(&s.Servers[i], &s.Engine))
	}
	for peer, paths := range s.Paths {
		for _, p := range paths {
			view.Paths[peer] = append(view.Paths[peer], path(p))
		}
	}
	for state, n := range s.Engine.Flows {
		view.Flows[state.String()] = n
	}
	return view
}

func newPacketStatus(s *dpr.Stats) packetStatus {
	view := packetStatus{
		Verdicts: make(map[string]uint64), Dropped: make(map[string]uint64),
		FromPeers: s.FromPeers, Unknown: s.Unknown, Errors: s.Errors, Resets: s.Resets,
		TableFull: s.TableFull, PeerGone: s.PeerGone, NoPort: s.NoPort,
	}
	for verdict, n := range s.Verdicts {
		view.Verdicts[verdict.String()] = n
	}
	for reason, n := range s.Drops {
		view.Dropped[reason.String()] = n
	}
	return view
}

func newMember(m *loadinfo.Member, known map[string]node.ServiceStatus) member {
	view := member{
		ID: m.ID, State: m.State.String(), Local: m.Local, Node: m.Node, Dialled: m.Dialled,
		Age: m.Age.Seconds(), Services: make(map[string]reportedService),
	}
	for name, r := range reported(m, known) {
		view.Services[name] = reportedService{r.Conns, r.Weight, r.Healthy}
	}
	return view
}

// reported returns what a member says of the services that this host has, by name:
// reports hold but hashes of names.
func reported(m *loadinfo.Member, known map[string]node.ServiceStatus) map[string]loadinfo.ServiceReport {
	named := make(map[string]loadinfo.ServiceReport)
	for name := range known {
		id := loadinfo.HashService(name)
		for _, r := range m.Services {
			if r.ID == id {
				named[name] = r
			}
		}
	}
	return named
}
