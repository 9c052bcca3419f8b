package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/internal/beat"
	"github.com/carom-dpr/carom/internal/header"
	"github.com/carom-dpr/carom/lb"
	"github.com/carom-dpr/carom/loadinfo"
)

// A Path is what became of the probes that went the way of clients' packets: through
// the tunnel to a peer, and back from there by the address that was dialled.
type Path struct {
	// Service is what was dialled.
	Service string
	// Dialled is where: an address of this host.
	Dialled netip.AddrPort
	// OK says that the peer answers. Until it does it gets no connections of the
	// service.
	OK bool
	// Why says what is wrong, for people; it is empty if OK.
	Why string
}

const (
	// probeEvery is the time between two probes of a path: a peer that answers no
	// more is noticed in three times as long.
	probeEvery = time.Second
	// probeSoon is that time for a path of which nothing is known, at first: soon
	// enough to be ready when the peer has joined.
	probeSoon = 100 * time.Millisecond
	// soonProbes is how many go out so soon.
	soonProbes = 20
	// probeFall is how many probes in a row are lost before the path counts as broken.
	probeFall = 3
	// probeSpacing bounds what a large cluster's probes cost: 100 a second.
	probeSpacing = 10 * time.Millisecond
)

// Why a path is not OK.
const (
	whyUnanswered = "no answer comes from the dialled address: the tunnel or the way back is closed, or the peer does not answer for it"
	whyRefused    = "the peer answers for the dialled address, and no server of its listens there: is it bound to another address?"
)

// A pathKey names a path.
type pathKey struct {
	peer, service string
	dialled       netip.AddrPort
}

// A path is one that is probed.
type path struct {
	key     pathKey
	peer    dpr.PeerID
	client  netip.Addr // an address of this host, where the answer comes
	ranged  bool       // the service has several ports, of which one is probed
	seq     uint32     // the SYN's sequence number, by which the answer is known
	open    int        // probes that were not answered
	why     string     // what is wrong; empty if nothing is
	settled bool       // it was answered once, or given up for now
}

// A prober probes the paths to the peers: a SYN from a client that there is not,
// through the tunnel to the peer, must bring a SYN-ACK from the address that was
// dialled. A reset through the tunnel then ends it. No server notices.
type prober struct {
	on      bool          // there is somebody who hears answers
	changed chan struct{} // holds a value when a path has changed
	peers   chan struct{} // holds a value when peers have come or gone

	mu    sync.Mutex
	paths map[pathKey]*path
	bySeq map[uint32]*path
	round time.Time // when all paths are probed next
}

func newProber(on bool) *prober {
	return &prober{
		on: on, changed: make(chan struct{}, 1), peers: make(chan struct{}, 1),
		paths: make(map[pathKey]*path), bySeq: make(map[uint32]*path),
	}
}

// probe probes the paths to the peers until ctx is done.
func (n *Node) probe(ctx context.Context) error {
	if !n.prober.on {
		return nil
	}
	var readers sync.WaitGroup
	for _, answers := range n.host.Answers {
		readers.Go(func() { n.hear(answers) })
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			err := n.host.closeAnswers()
			readers.Wait()
			return err
		case <-timer.C:
		case <-n.prober.peers:
		}
		n.prober.follow(n.targets())
		probes, wait := n.prober.next(time.Now(), n.cfg.logPath)
		if len(probes) > 0 {
			_, _ = n.host.Uplinks[0].Write(probes) // the router reports a tunnel that is gone
		}
		timer.Reset(wait)
	}
}

// targets returns the paths that there are to probe: to each peer, for each TCP service
// that it serves and each family that this host is dialled in.
func (n *Node) targets() (list []path) {
	s := n.current.Load()
	for _, m := range n.board.Members(time.Now()) {
		peer := n.engine.PeerID(m.ID)
		if m.Local || peer == 0 {
			continue
		}
		for i := range s.Services {
			service := &s.Services[i]
			if service.Proto != dpr.TCP || !serves(&m, service.Name) {
				continue
			}
			for _, dialled := range firstOfEach(service.Addrs) {
				list = append(list, path{
					key:  pathKey{m.ID, service.Name, netip.AddrPortFrom(dialled, service.Port)},
					peer: peer, client: s.client(dialled), ranged: service.PortEnd > service.Port,
				})
			}
		}
	}
	return list
}

// serves reports whether the member says that its server answers.
func serves(m *loadinfo.Member, service string) bool {
	id := loadinfo.HashService(service)
	return slices.ContainsFunc(m.Services, func(s loadinfo.ServiceReport) bool { return s.ID == id && s.Healthy })
}

// firstOfEach returns the first address of each family.
func firstOfEach(addrs []netip.Addr) (list []netip.Addr) {
	for _, a := range addrs {
		if !slices.ContainsFunc(list, func(b netip.Addr) bool { return a.Is4() == b.Is4() }) {
			list = append(list, a)
		}
	}
	return list
}

// client returns the address of this host that a probe comes from: where peers reach
// it, or else the dialled one itself. The peer's kernel takes that for a client, too.
func (c *Config) client(dialled netip.Addr) netip.Addr {
	if c.Addr.Is4() == dialled.Is4() {
		return c.Addr
	}
	return dialled
}

// follow takes on the paths that are new, and forgets those that are not in the list.
func (p *prober) follow(list []path) {
	p.mu.Lock()
	defer p.mu.Unlock()
	keep := make(map[pathKey]bool, len(list))
	for _, x := range list {
		keep[x.key] = true
		if have := p.paths[x.key]; have != nil {
			have.peer, have.client, have.ranged = x.peer, x.client, x.ranged
			continue
		}
		x.why = whyUnanswered
		for x.seq = rand.Uint32(); p.bySeq[x.seq] != nil; {
			x.seq = rand.Uint32()
		}
		p.paths[x.key], p.bySeq[x.seq] = &x, &x
	}
	for key, x := range p.paths {
		if !keep[key] {
			delete(p.paths, key)
			delete(p.bySeq, x.seq)
		}
	}
}

// next judges the probes that went out, and returns those that are due and how long
// to wait for the ones after them. It tells log of paths that break.
//
// Paths of which nothing is known do not make the others' probes come faster: those
// would be taken for lost before their answers could be there.
func (p *prober) next(now time.Time, log func(*path)) (probes []dpr.Packet, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := !now.Before(p.round)
	if all {
		p.round = now.Add(max(beat.Wait(now, probeEvery), time.Duration(len(p.paths))*probeSpacing))
	}
	unknown := 0
	for _, x := range p.paths {
		if x.settled && !all {
			continue
		}
		if x.settled && x.why == "" && x.open >= probeFall {
			p.set(x, whyUnanswered, log)
		}
		if !x.settled && x.open == soonProbes {
			x.settled = true
			log(x)
		}
		if !x.settled {
			unknown++
		}
		x.open++
		probes = append(probes, x.packet(header.SYN, x.seq))
	}
	wait = p.round.Sub(now)
	if unknown > 0 {
		wait = min(wait, max(probeSoon, time.Duration(unknown)*probeSpacing))
	}
	return probes, wait
}

// set changes what is known of a path.
func (p *prober) set(x *path, why string, log func(*path)) {
	if x.why == why && x.settled {
		return
	}
	quiet := !x.settled && why == "" // the first answer is what everybody expects
	x.why, x.settled = why, true
	if !quiet {
		log(x)
	}
	signal(p.changed)
}

// signal has the channel hold a value.
func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default: // it does already
	}
}

// logPath tells operators of a path that broke, or works again.
func (c *Config) logPath(x *path) {
	if x.why != "" {
		c.Logger.Warn("a peer does not answer through the tunnel; it gets no connections",
			"peer", x.key.peer, "service", x.key.service, "dialled", x.key.dialled, "why", x.why)
		return
	}
	c.Logger.Info("a peer answers through the tunnel again",
		"peer", x.key.peer, "service", x.key.service, "dialled", x.key.dialled)
}

// packet returns a segment of the client that there is not.
func (x *path) packet(flags uint8, seq uint32) dpr.Packet {
	p := bare(netip.AddrPortFrom(x.client, dpr.ProbePort), x.key.dialled, flags, seq)
	p.Peer, p.Verdict = x.peer, dpr.Forward
	return p
}

// bare returns a TCP segment without data.
func bare(from, to netip.AddrPort, flags uint8, seq uint32) dpr.Packet {
	ip := header.IPv4Len
	if to.Addr().Is6() {
		ip = header.IPv6Len
	}
	p := dpr.Packet{Buf: make([]byte, dpr.Headroom+ip+header.TCPLen), Off: dpr.Headroom, Len: ip + header.TCPLen}
	src, dst := header.Addr(from.Addr().As16()), header.Addr(to.Addr().As16())
	b := p.Bytes()
	header.PutTCP(b[ip:], &header.TCPFields{SrcPort: from.Port(), DstPort: to.Port(), Seq: seq, Flags: flags, Window: 1024})
	header.PutChecksum(b[ip:], header.ProtoTCP, &src, &dst)
	const ttl = 64
	if to.Addr().Is6() {
		header.PutIPv6(b, &header.IPv6Fields{PayloadLen: header.TCPLen, NextHeader: header.ProtoTCP, HopLimit: ttl, Src: src, Dst: dst})
	} else {
		header.PutIPv4(b, &header.IPv4Fields{TotalLen: len(b), DF: true, TTL: ttl, Protocol: header.ProtoTCP, Src: src, Dst: dst})
	}
	return p
}

// hear takes answers until they are closed.
func (n *Node) hear(answers io.Reader) {
	buf := make([]byte, maxAnswer)
	for {
		size, err := answers.Read(buf)
		if err != nil {
			return
		}
		var h header.Packet
		if h.ParseFrame(buf[:size]) != header.OK {
			continue
		}
		if x := n.prober.answered(&h, n.cfg.logPath); x != nil {
			_, _ = n.host.Uplinks[0].Write([]dpr.Packet{x.packet(header.RST, x.seq+1)})
		}
	}
}

// maxAnswer is longer than any answer to a SYN, in bytes.
const maxAnswer = 256

// answered takes an answer. It returns a path whose peer waits for more.
func (p *prober) answered(h *header.Packet, log func(*path)) *path {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.bySeq[h.Ack-1]
	if x == nil || h.Source() != x.key.dialled || h.Destination() != netip.AddrPortFrom(x.client, dpr.ProbePort) {
		return nil
	}
	x.open = 0
	switch h.TCPFlags & (header.SYN | header.ACK | header.RST) {
	case header.SYN | header.ACK:
		p.set(x, "", log)
		ended := *x
		return &ended
	case header.RST | header.ACK:
		if x.ranged { // another of its ports may have the server; the way is open
			p.set(x, "", log)
		} else {
			p.set(x, whyRefused, log)
		}
	}
	return nil
}

// mark keeps new connections of a TCP service from hosts that do not answer, or have
// not been asked yet.
func (p *prober) mark(s *lb.Snapshot, service string) {
	if !p.on {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	probed, broken := make(map[string]bool), make(map[string]bool)
	for key, x := range p.paths {
		if key.service == service {
			probed[key.peer] = true
			broken[key.peer] = broken[key.peer] || x.why != ""
		}
	}
	for i := range s.Hosts {
		if id := s.Hosts[i].ID; i != s.Self && (!probed[id] || broken[id]) {
			s.Hosts[i].Flags |= lb.Unhealthy
		}
	}
}

// all returns the paths by peer, in order.
func (p *prober) all() map[string][]Path {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make(map[string][]Path)
	for key, x := range p.paths {
		list[key.peer] = append(list[key.peer], Path{key.service, key.dialled, x.why == "", x.why})
	}
	for _, paths := range list {
		slices.SortFunc(paths, func(a, b Path) int {
			return cmp.Or(strings.Compare(a.Service, b.Service), a.Dialled.Compare(b.Dialled))
		})
	}
	return list
}

// closeAnswers wakes those who wait for answers.
func (h *Host) closeAnswers() error {
	var errs []error
	for _, a := range h.Answers {
		if err := a.Close(); err != nil {
			errs = append(errs, fmt.Errorf("node: %w", err))
		}
	}
	h.Answers = nil
	return errors.Join(errs...)
}
