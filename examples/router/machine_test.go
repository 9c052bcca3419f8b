package main

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/hostnet"
	"github.com/carom-dpr/carom/dpr/node"
	"github.com/carom-dpr/carom/lb"
	"github.com/carom-dpr/carom/loadinfo"
)

// A pipe is a device whose packets come from the test. What is written to it is
// gone.
type pipe struct {
	in     chan dpr.Packet
	closed chan struct{}
	once   sync.Once
}

func newPipe() *pipe { return &pipe{in: make(chan dpr.Packet), closed: make(chan struct{})} }

func (p *pipe) Read(pkts []dpr.Packet) (int, error) {
	select {
	case x := <-p.in:
		pkts[0].Off, pkts[0].GSO, pkts[0].Peer = dpr.Headroom, dpr.GSO{}, x.Peer
		pkts[0].Len = copy(pkts[0].Buf[dpr.Headroom:], x.Buf)
		return 1, nil
	case <-p.closed:
		return 0, os.ErrClosed
	}
}

func (p *pipe) Write(pkts []dpr.Packet) (int, error) { return len(pkts), nil }

func (p *pipe) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// A reportPipe is a socket for reports. A nil datagram makes Read fail.
type reportPipe struct {
	in     chan []byte
	closed chan struct{}
	once   sync.Once
	refuse atomic.Bool // writes
}

func (r *reportPipe) ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error) {
	select {
	case msg := <-r.in:
		if msg == nil {
			return 0, netip.AddrPort{}, errors.New("some ICMP error")
		}
		return copy(b, msg), peerReports, nil
	case <-r.closed:
		return 0, netip.AddrPort{}, net.ErrClosed
	}
}

func (r *reportPipe) WriteToUDPAddrPort(b []byte, _ netip.AddrPort) (int, error) {
	if r.refuse.Load() {
		return 0, errors.New("no route")
	}
	return len(b), nil
}

func (r *reportPipe) Close() error {
	r.once.Do(func() { close(r.closed) })
	return nil
}

var (
	ownAddr     = netip.MustParseAddr("192.0.2.11")
	ownAddr6    = netip.MustParseAddr("2001:db8::11")
	peerTunnel  = netip.MustParseAddrPort("192.0.2.12:6080")
	peerReports = netip.MustParseAddrPort("192.0.2.12:6082")
)

// A machine is a host in memory that a node runs on.
type machine struct {
	kernel, uplink *pipe
	reports        *reportPipe
	control        func(from dpr.PeerID, message []byte) // takes what peers say
	life           atomic.Uint32                         // a dpr.Life, of all connections

	mu      sync.Mutex
	capture hostnet.Stats
	tunnel  node.TunnelStats
	peer    dpr.PeerID
}

func newMachine() *machine {
	return &machine{
		kernel: newPipe(), uplink: newPipe(),
		reports: &reportPipe{in: make(chan []byte), closed: make(chan struct{})},
		tunnel:  node.TunnelStats{Dropped: map[string]uint64{"bad-tag": 0}},
	}
}

// open is an opener.
func (m *machine) open(cfg node.Config) (*node.Node, error) {
	return node.New(cfg, node.Host{
		Devices: []dpr.Device{m.kernel}, Uplinks: []dpr.Device{m.uplink}, Replies: newPipe(),
		Reports: m.reports, MTU: 1400,
		SetPeers: func(peers []node.Peer) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			for _, p := range peers {
				m.peer = p.ID
			}
			return nil
		},
		SetAliases: func([]netip.Addr) error { return nil },
		// Questions come back as the peer's own, and so do the answers to them.
		Control:     func(to dpr.PeerID, message []byte) error { m.control(to, message); return nil },
		TakeControl: func(take func(dpr.PeerID, []byte)) { m.control = take },
		Lives: func(_ []dpr.Question, lives []dpr.Life) error {
			for i := range lives {
				lives[i] = dpr.Life(m.life.Load())
			}
			return nil
		},
		Abort: func(lost []netip.Addr) (int, error) { return len(lost), nil },
		Capture: func() (hostnet.Stats, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.capture, nil
		},
		Tunnel: func() node.TunnelStats {
			m.mu.Lock()
			defer m.mu.Unlock()
			t := m.tunnel
			t.Dropped = maps.Clone(t.Dropped)
			return t
		},
	})
}

// change changes what the host counts.
func (m *machine) change(f func(*machine)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(m)
}

// peerReport is what a peer says.
func peerReport(id string, seq uint64) *loadinfo.Report {
	return &loadinfo.Report{
		ID: id, Boot: 1, Seq: seq, Weight: 100, Node: peerTunnel, Resources: loadinfo.Unknown,
		Dialled:  []netip.Addr{peerTunnel.Addr()},
		Services: []loadinfo.ServiceReport{{ID: loadinfo.HashService("web"), Weight: 100, Healthy: true, Conns: 3}},
	}
}

func encode(t *testing.T, r *loadinfo.Report, keys *loadinfo.Keyring) []byte {
	t.Helper()
	msg, err := r.Append(nil, keys)
	require.NoError(t, err)
	return msg
}

// A switchable policy does with every connection what it is told.
type switchable struct{ do *atomic.Int32 }

func (p switchable) Build(s *lb.Snapshot) lb.Picker {
	other := slices.IndexFunc(s.Hosts, func(h lb.Host) bool { return h.Flags&lb.Local == 0 && h.Eligible() })
	return switchablePicker{p, other}
}

type switchablePicker struct {
	switchable
	other int
}

func (p switchablePicker) Pick(lb.Flow, time.Duration) lb.Choice {
	do := lb.Action(p.do.Load())
	if do == lb.Send && p.other < 0 {
		return lb.Choice{}
	}
	return lb.Choice{Do: do, Host: p.other}
}

// counters returns the router's own counters that a registry has now, by name and
// labels; of histograms, how often something was observed.
func counters(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	values := make(map[string]float64)
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "carom_") {
			continue
		}
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			switch {
			case m.GetCounter() != nil:
				values[name] = m.GetCounter().GetValue()
			case m.GetHistogram() != nil:
				values[name] = float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return values
}
