package hostnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr"
)

// A rewriter keeps the nftables table that gives redirected packets of some
// services this host's own address, so that conntrack gives the answers back the
// dialled one.
type rewriter struct {
	conn  *nftables.Conn // nil until first needed
	table *nftables.Table
	done  string // what the table was last made for
}

// A rewriting is what the table is to do in one family: packets from the TUN for
// one of the aliases get the address own of the service.
type rewriting struct {
	family  int // netlink.FAMILY_V4 or V6
	mss     int // to announce at most, in bytes
	aliases []netip.Addr
	targets []target
}

// A target is where packets for some ports go.
type target struct {
	protocol    uint8
	first, last uint16
	own         netip.Addr
}

// rewritings returns what the services and the aliases ask for.
func (n *Net) rewritings() (list []rewriting, err error) {
	for _, f := range families {
		r := rewriting{family: f.id, aliases: n.aliasesOf(f.is)}
		for _, s := range n.services {
			own := slices.IndexFunc(s.Addrs, func(a netip.Addr) bool { return f.is(a.Unmap()) })
			if s.Reply == dpr.ReplyRewritten && own >= 0 {
				r.targets = append(r.targets, target{s.Protocol, s.Port, s.lastPort(), s.Addrs[own].Unmap()})
			}
		}
		if len(r.aliases) == 0 || len(r.targets) == 0 {
			continue
		}
		if r.mss, err = n.rewrittenMSS(f.id, f.headers); err != nil {
			return nil, err
		}
		list = append(list, r)
	}
	return list, nil
}

// rewrittenMSS returns the segment size to announce on rewritten connections. Their
// answers are routed while they still have this host's own address, so no table of
// routes tells them apart: the narrowest route is assumed for all.
func (n *Net) rewrittenMSS(family, headers int) (int, error) {
	mtu, err := n.tunnelMTU(family)
	return max(mtu-headers, 0), err
}

// syncRewriting makes the table what is asked for; without anything to do there is
// none. The whole table is replaced at once, and conntrack keeps the connections.
func (n *Net) syncRewriting() error {
	want, err := n.rewritings()
	if err != nil {
		return err
	}
	if err := n.rewrite.sync(n.cfg, want); err != nil {
		return fmt.Errorf("nftables, for services whose Reply is rewritten: %w", err)
	}
	return nil
}

func (r *rewriter) sync(cfg Config, want []rewriting) (err error) {
	if r.conn == nil {
		if r.conn, err = nftables.New(nftables.AsLasting()); err != nil {
			return err
		}
		r.table = &nftables.Table{Name: fmt.Sprintf("carom_%d", cfg.Table), Family: nftables.TableFamilyINet}
	}
	next := ""
	if len(want) > 0 {
		next = fmt.Sprint(want)
	}
	_, err = r.conn.ListTableOfFamily(r.table.Name, r.table.Family)
	switch {
	case len(want) == 0 && err != nil: // none, or nftables cannot be had here, which is no loss
		r.done = next
		return nil
	case err == nil && len(want) > 0 && next == r.done: // nobody has flushed the ruleset
		return nil
	}
	removed := errors.Is(err, unix.ENOENT) && r.done != "" // not by us
	r.conn.AddTable(r.table)                               // or there would be nothing to remove
	r.conn.DelTable(r.table)
	if len(want) > 0 {
		if err := r.fill(cfg, want); err != nil {
			return err
		}
	}
	r.done = ""
	if err = r.conn.Flush(); err != nil {
		return err
	}
	r.done = next
	if removed {
		cfg.Log.Warn("hostnet: another program had removed the nftables table of rewritten services; it is back."+
			" Redirected connections may have been reset meanwhile; a firewall's reload should flush its own tables alone",
			"table", "inet "+r.table.Name)
	}
	return nil
}

func (r *rewriter) close() error {
	if r.conn == nil {
		return nil
	}
	return r.conn.CloseLasting()
}

// afterNAT is right behind where conntrack gives answers the dialled address.
var afterNAT = nftables.ChainPriorityRef(*nftables.ChainPriorityNATSource + 1)

// fill adds the table with its chains and rules to the batch.
func (r *rewriter) fill(cfg Config, want []rewriting) error {
	r.conn.AddTable(r.table)
	chain := func(name string, kind nftables.ChainType, hook *nftables.ChainHook, at *nftables.ChainPriority) *nftables.Chain {
		return r.conn.AddChain(&nftables.Chain{Name: name, Table: r.table, Type: kind, Hooknum: hook, Priority: at})
	}
	in := chain("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest)
	answers := chain("answers", nftables.ChainTypeFilter, nftables.ChainHookPostrouting, afterNAT)
	dialled := chain("dialled", nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityRaw)
	replied := chain("replied", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)
	for i, w := range want {
		f := familyExprs(w.family)
		set, err := r.aliasSet(uint32(i+1), w, f)
		if err != nil {
			return err
		}
		for _, t := range w.targets {
			// What the tunnel brings for an alias is for this host.
			r.add(in, fromInterface(cfg.TUN, expr.CmpOpEq), f.is(), f.among(f.dst, set), ports(t, portDst), f.dnat(t.own))
			// This host's own connections to the peers' service are tracked in a zone
			// of their own. Those that come back here through the tunnel would else be
			// taken for known ones, and not be rewritten.
			r.add(dialled, f.is(), f.among(f.dst, set), ports(t, portDst), setZone(cfg))
			r.add(replied, fromInterface(cfg.TUN, expr.CmpOpNeq), f.is(), f.among(f.src, set), ports(t, portSrc), setZone(cfg))
			// Answers have the dialled address again. Conntrack's key for it would do
			// earlier, but nft aborts when it lists that in a table of the family inet.
			if t.protocol == protocolTCP && w.mss > 0 {
				r.add(answers, f.is(), f.among(f.src, set), ports(t, portSrc), limitMSS(w.mss))
			}
		}
	}
	return nil
}

// aliasSet adds a set of aliases. Its number need differ only from those of the same
// batch. The module would count on a variable of the process, without a lock, which
// several nodes in one process would race for.
func (r *rewriter) aliasSet(id uint32, w rewriting, f familyExpr) (*nftables.Set, error) {
	set := &nftables.Set{Table: r.table, ID: id, Name: f.name, KeyType: f.key}
	elements := make([]nftables.SetElement, len(w.aliases))
	for i, a := range w.aliases {
		elements[i].Key = a.AsSlice()
	}
	if err := r.conn.AddSet(set, elements); err != nil {
		return nil, fmt.Errorf("set of aliases: %w", err)
	}
	return set, nil
}

func (r *rewriter) add(c *nftables.Chain, parts ...[]expr.Any) {
	r.conn.AddRule(&nftables.Rule{Table: r.table, Chain: c, Exprs: slices.Concat(parts...)})
}

// reg is the register that all expressions use; register 0 is the verdict.
const reg = 1

// familyExpr is how nftables speaks of one family.
type familyExpr struct {
	name     string
	proto    byte // of netfilter
	key      nftables.SetDatatype
	src, dst uint32 // offsets in the IP header, in bytes
	length   uint32 // of an address, in bytes
}

func familyExprs(family int) familyExpr {
	if family == unix.AF_INET {
		return familyExpr{"aliases4", unix.NFPROTO_IPV4, nftables.TypeIPAddr, 12, 16, 4}
	}
	return familyExpr{"aliases6", unix.NFPROTO_IPV6, nftables.TypeIP6Addr, 8, 24, 16}
}

// is matches the family's packets.
func (f familyExpr) is() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg}, equal(f.proto)}
}

// among matches packets with one of the set's addresses at the offset.
func (f familyExpr) among(offset uint32, set *nftables.Set) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: f.length},
		&expr.Lookup{SourceRegister: reg, SetName: set.Name, SetID: set.ID},
	}
}

func (f familyExpr) dnat(to netip.Addr) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: reg, Data: to.AsSlice()},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.proto), RegAddrMin: reg},
	}
}

func equal(data ...byte) *expr.Cmp { return &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: data} }

// fromInterface matches packets that come from the interface, or do not.
func fromInterface(name string, op expr.CmpOp) []expr.Any {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg}, &expr.Cmp{Op: op, Register: reg, Data: padded}}
}

// The offsets of the ports in TCP's and UDP's headers, in bytes.
const portSrc, portDst = 0, 2

// ports matches the target's protocol and ports, those at the offset.
func ports(t target, offset uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg}, equal(t.protocol),
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2},
		&expr.Range{Op: expr.CmpOpEq, Register: reg, FromData: be16(t.first), ToData: be16(t.last)},
	}
}

// setZone puts a packet's connection into a conntrack zone of this router's own.
func setZone(cfg Config) []expr.Any {
	const zones = 1<<16 - 1 // without 0, which is everybody's
	zone := binary.NativeEndian.AppendUint16(nil, uint16(cfg.Table%zones+1))
	return []expr.Any{
		&expr.Immediate{Register: reg, Data: zone},
		&expr.Ct{Key: expr.CtKeyZONE, SourceRegister: true, Register: reg},
	}
}

// limitMSS lowers the segment size that a SYN announces; the kernel never raises it.
func limitMSS(size int) []expr.Any {
	const flagsOffset, syn = 13, 0x02
	const optionMSS, valueOffset = 2, 2
	return []expr.Any{
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: flagsOffset, Len: 1},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 1, Mask: []byte{syn}, Xor: []byte{0}},
		equal(syn),
		&expr.Immediate{Register: reg, Data: be16(uint16(size))},
		&expr.Exthdr{SourceRegister: reg, Type: optionMSS, Offset: valueOffset, Len: 2, Op: expr.ExthdrOpTcpopt},
	}
}

func be16(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }
