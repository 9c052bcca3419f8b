package dpr

import (
	"github.com/carom-dpr/carom/internal/flowtable"
	"github.com/carom-dpr/carom/internal/header"
)

// aboutFlow sends an ICMP error to the host that serves the flow whose packet it
// quotes. Eight quoted bytes of the transport header are enough: the ports. The
// packet was sent by the server, so turned round it is like one of the client's.
func (b *batch) aboutFlow(p *Packet, j *job) {
	var quote header.Packet
	body := header.ICMP(p.Bytes()[j.hdr.L4:]).Body()
	if quote.ParseQuote(body) != header.OK || quote.FragOffset > 0 {
		b.notOurs(p)
		return
	}
	service, addr := b.view.lookup(Proto(quote.Proto), &quote.Src, quote.SrcPort)
	switch {
	case service == nil:
		b.aboutServer(p, j, &quote)
	case p.Peer != 0:
		p.Verdict = Local
	default:
		b.follow(p, j, b.owner(service, addr, turned(&quote)))
	}
}

// aboutServer sends an ICMP error about what this host has sent to a plain server to the
// flow's client. Others may be about clients' packets elsewhere.
func (b *batch) aboutServer(p *Packet, j *job, quote *header.Packet) {
	w, key, ok := b.translated(turned(quote))
	if !ok || p.Peer != 0 {
		b.aboutClient(p, j, quote)
		return
	}
	flow, _ := b.known(&key)
	w.peer = flow.peer
	b.follow(p, j, w)
}

// owner returns the way of the flow of a client's packet; to this host if it is unknown.
func (b *batch) owner(s *service, addr uint16, h *header.Packet) way {
	key := flowKey(s, addr, h)
	w, ok := b.known(&key)
	if !ok && b.wasFull() {
		return way{peer: b.stateless(s, b.flow(h))}
	}
	return w
}

// known returns the way of a flow that is in the table.
func (b *batch) known(key *flowtable.Key) (w way, ok bool) {
	hash := b.engine.table.Hash(key)
	shard := b.engine.table.Lock(hash)
	defer shard.Unlock()
	if entry := shard.Lookup(key, hash); entry != nil {
		return wayOf(entry), true
	}
	return w, false
}
