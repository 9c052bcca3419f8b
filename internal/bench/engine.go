package main

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/lb"
)

// engine feeds one of dpr's in batches of a given length. Several may share it.
type engine struct {
	*dpr.Engine
	pkts     []dpr.Packet
	filled   int // of pkts
	template []byte
	now      time.Time
}

var (
	benchClient = netip.MustParseAddrPort("10.0.0.1:40000")
	benchVIP    = netip.MustParseAddrPort("198.51.100.1:80")
)

// peerNames are those of the cluster that new flows are chosen for; this host is h0.
var peerNames = []string{"h1", "h2", "h3", "h4", "h5", "h6", "h7", "h8", "h9"}

// always sends every flow to the first peer.
type always struct{}

func (always) Build(*lb.Snapshot) lb.Picker          { return always{} }
func (always) Pick(lb.Flow, time.Duration) lb.Choice { return lb.Choice{Do: lb.Send, Host: 1} }

func packetTemplate(flags dprtest.Flags, payload int) []byte {
	return dprtest.TCP(benchClient, benchVIP, dprtest.Options{Flags: flags, Seq: 1, Payload: make([]byte, payload)})
}

// newEngine returns an engine with room for so many flows.
func newEngine(room int, policy lb.Policy) (*engine, error) {
	e, err := dpr.New(dpr.Config{
		MaxFlows: room,
		Services: []dpr.Service{{Name: "web", Proto: dpr.TCP, Port: 80, Addrs: []netip.Addr{benchVIP.Addr()}}},
	})
	if err != nil {
		return nil, err
	}
	var peers []dpr.Peer
	snap := &lb.Snapshot{Hosts: []lb.Host{{ID: "h0", Weight: 1, Flags: lb.Local}}}
	for _, name := range peerNames {
		peers = append(peers, dpr.Peer{ID: name})
		snap.Hosts = append(snap.Hosts, lb.Host{ID: name, Weight: 1})
	}
	if err := e.SetPeers(peers); err != nil {
		return nil, err
	}
	if err := e.SetSnapshot("web", policy, snap); err != nil {
		return nil, err
	}
	return (&engine{Engine: e, now: time.Now()}).batches(32, dprtest.SYN), nil
}

// batches returns a feeder of the same engine.
func (e *engine) batches(n int, flags dprtest.Flags) *engine {
	return &engine{Engine: e.Engine, pkts: dpr.NewPackets(n, 256), template: packetTemplate(flags, 24), now: e.now}
}

// fill establishes flows, all redirected.
func (e *engine) fill(flows int) {
	for _, flags := range []dprtest.Flags{dprtest.SYN, dprtest.ACK} {
		f := e.batches(32, flags)
		var batch [32]uint32
		for at := 0; at < flows; at += 32 {
			for k := range batch {
				batch[k] = uint32(min(at+k, flows-1))
			}
			f.run(&batch)
		}
	}
}

// client puts the flow's number into the client's address.
func client(pkt []byte, flow uint32) { binary.BigEndian.PutUint32(pkt[12:], 10<<24|flow) }

func (e *engine) run(flows *[32]uint32) {
	for _, f := range flows {
		p := &e.pkts[e.filled]
		p.Off, p.Peer, p.Len = dpr.Headroom, 0, copy(p.Buf[dpr.Headroom:], e.template)
		client(p.Bytes(), f)
		if e.filled++; e.filled == len(e.pkts) {
			e.Process(e.pkts, e.now)
			e.filled = 0
		}
	}
}

// opener opens a new flow with each packet, whatever the contest's order.
type opener struct {
	*engine
	next uint32
}

func (o *opener) run(flows *[32]uint32) {
	var fresh [32]uint32
	for i := range flows {
		o.next++
		fresh[i] = o.next & 0xffffff // what fits the client's address
	}
	o.engine.run(&fresh)
}
