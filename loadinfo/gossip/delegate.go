package gossip

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/carom-dpr/carom/loadinfo"
)

// delegate is what memberlist calls. Events come while memberlist is locked.
type delegate struct{ g *Gossip }

// NodeMeta says nothing: reports do.
func (d *delegate) NodeMeta(int) []byte { return nil }

// NotifyMsg takes a report.
func (d *delegate) NotifyMsg(msg []byte) { d.g.receive(msg, time.Now()) }

// GetBroadcasts returns the reports for a datagram. memberlist says how much of its
// share the news of members has left; the reports' own share comes on top. It asks
// unless that news has filled its share to the last three bytes.
func (d *delegate) GetBroadcasts(overhead, limit int) [][]byte {
	now := time.Now()
	if !d.g.budget.open(now) {
		return nil
	}
	return d.g.table.take(now, overhead, limit+d.g.reserved(), d.g.copies())
}

// LocalState returns all reports, for an exchange by a stream.
func (d *delegate) LocalState(bool) []byte { return d.g.table.all(time.Now(), nil) }

// MergeRemoteState takes those of a peer.
func (d *delegate) MergeRemoteState(state []byte, _ bool) {
	now := time.Now()
	for len(state) > 0 {
		msg, rest, ok := nextMessage(state)
		if !ok {
			d.g.count(func(s *loadinfo.Stats) { s.Count(loadinfo.ErrTruncated) })
			return
		}
		d.g.receive(msg, now)
		state = rest
	}
}

// nextMessage takes a message from behind its length.
func nextMessage(b []byte) (msg, rest []byte, ok bool) {
	if len(b) < 2 {
		return nil, nil, false
	}
	n := int(binary.BigEndian.Uint16(b))
	if len(b) < 2+n {
		return nil, nil, false
	}
	return b[2 : 2+n], b[2+n:], true
}

// protocol is the version of memberlist's protocol that this package speaks.
const protocol = 5

// NotifyAlive refuses members that are not hosts of this package, and those that do
// not speak its version of the protocol: memberlist lets nobody join a cluster whose
// members have no version in common, and goes by what each member says.
func (d *delegate) NotifyAlive(n *memberlist.Node) error {
	if _, _, ok := parseMemberName(n.Name); !ok {
		return fmt.Errorf("gossip: %q is no name of a host", n.Name)
	}
	if n.PCur != protocol || n.PMin > protocol || n.PMax < protocol || n.DMin != 0 || n.DCur != 0 {
		return fmt.Errorf("gossip: %q speaks version %d of %d to %d, not %d", n.Name, n.PCur, n.PMin, n.PMax, protocol)
	}
	return nil
}

// NotifyJoin notes who need not be looked for.
func (d *delegate) NotifyJoin(n *memberlist.Node) { d.g.lost.found(nodeAddr(n)) }

// NotifyUpdate is about NodeMeta.
func (d *delegate) NotifyUpdate(*memberlist.Node) {}

// NotifyLeave brings the verdict on the board.
func (d *delegate) NotifyLeave(n *memberlist.Node) {
	id, boot, ok := parseMemberName(n.Name)
	if !ok || n.Name == d.g.name {
		return
	}
	d.g.cfg.Board.Fail(id, boot, time.Now())
	if !d.g.table.drained(id, boot) { // memberlist does not say whether it left or died
		d.g.lost.add(nodeAddr(n), n.Name)
	}
}

func nodeAddr(n *memberlist.Node) netip.AddrPort {
	addr, _ := netip.AddrFromSlice(n.Addr)
	return netip.AddrPortFrom(addr.Unmap(), n.Port)
}

// logWriter takes memberlist's log. Most of it is the weather of networks. What
// tells of a peer with another key is counted and told, and so is a member that was
// refused; the rest is for debugging.
type logWriter struct{ g *Gossip }

func (w *logWriter) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	_, from, _ := strings.Cut(text, "from=")
	from, _, _ = strings.Cut(from, " ")
	switch {
	case strings.Contains(text, "keys could decrypt"),
		strings.Contains(text, "is not encrypted"),
		strings.Contains(text, "encryption is not configured"),
		strings.Contains(text, "Decrypt packet failed"):
		w.g.refused(loadinfo.ErrKey, from)
	case strings.Contains(text, "with unacceptable label"):
		w.g.refused(errCluster, from)
	case strings.Contains(text, "gnoring an alive message"), strings.Contains(text, "ignoring alive message"):
		w.g.count(func(s *loadinfo.Stats) { s.Count(loadinfo.ErrVersion) })
		w.g.warn("member", "gossip: a member was refused", "why", text)
	default:
		w.g.cfg.Logger.Debug(text)
	}
	return len(line), nil
}

var errCluster = fmt.Errorf("%w: of another cluster", loadinfo.ErrMalformed)

// refused counts what came from an address and was not taken, and tells of a peer
// with another key, or of a larger cluster.
func (g *Gossip) refused(err error, from string) {
	g.count(func(s *loadinfo.Stats) { s.Count(err) })
	switch err {
	case errTooLong:
		g.warn("length from "+hostOf(from), "gossip: a stream was refused: it says more than a cluster of this host's BoardConfig.MaxHosts can have to say",
			"from", from, "hosts", g.cfg.Board.MaxHosts())
	case errCluster:
		g.warn("cluster of "+hostOf(from), "gossip: a host of another cluster was refused: has it the same Config.Cluster?",
			"from", from, "cluster", g.cfg.Cluster)
	case loadinfo.ErrKey:
		g.warn("key of "+hostOf(from), "gossip: undecryptable; the host is not heard: has it the cluster's key?", "from", from)
	}
}

// hostOf drops the port, of which a host has many.
func hostOf(addr string) string {
	if a, err := netip.ParseAddrPort(addr); err == nil {
		return a.Addr().String()
	}
	return addr
}
