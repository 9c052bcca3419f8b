package node_test

import (
	"net/netip"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr"
)

// A guard drops what leaves a host by the network from one address, as a switch or a
// hypervisor does that lets no host send from an address of another.
type guard struct {
	conn  *nftables.Conn
	table *nftables.Table
	chain *nftables.Chain
}

func forbid(t *testing.T, h *host, source netip.Addr) guard {
	t.Helper()
	var g guard
	require.NoError(t, h.Do(func() (err error) {
		g.conn, err = nftables.New(nftables.AsLasting())
		return err
	}))
	t.Cleanup(func() { require.NoError(t, g.conn.CloseLasting()) })
	offset, proto := uint32(12), byte(unix.NFPROTO_IPV4)
	if source.Is6() {
		offset, proto = 8, unix.NFPROTO_IPV6
	}
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, "eth0")
	g.table = g.conn.AddTable(&nftables.Table{Name: "guard", Family: nftables.TableFamilyINet})
	g.chain = g.conn.AddChain(&nftables.Chain{
		Name: "leaving", Table: g.table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityFilter,
	})
	g.conn.AddRule(&nftables.Rule{Table: g.table, Chain: g.chain, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: name},
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(len(source.AsSlice()))},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: source.AsSlice()},
		&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop},
	}})
	require.NoError(t, g.conn.Flush())
	return g
}

// dropped returns how many packets the guard has dropped.
func (g guard) dropped(t *testing.T) uint64 {
	t.Helper()
	rules, err := g.conn.GetRules(g.table, g.chain)
	require.NoError(t, err)
	require.Len(t, rules, 1)
	for _, e := range rules[0].Exprs {
		if c, ok := e.(*expr.Counter); ok {
			return c.Packets
		}
	}
	require.FailNow(t, "no counter")
	return 0
}

// Where the network lets no host send from an address of another, a peer's direct
// answers are lost, and it gets no connections; tunnelled ones arrive.
func TestNetworkForbidsForeignSources(t *testing.T) {
	eachFamily(t, func(t *testing.T, v6 bool) {
		for _, mode := range waysBack {
			t.Run(mode.String(), func(t *testing.T) {
				w := newWorld(t, v6, "a", "b")
				a, b := w.hosts["a"], w.hosts["b"]
				g := forbid(t, b, a.addr)
				for _, h := range w.hosts {
					h.serve(t, port)
					cfg := h.role("").config()
					cfg.Services[0].Policy, cfg.Services[0].Reply = sendTo("b"), mode
					h.open(t, cfg)
				}
				w.await(t)
				if mode == dpr.ReplyDirect {
					eventually(t, "an answer is lost", func() bool { return g.dropped(t) > 0 })
					require.Equal(t, "a", mustDial(t, w.client, a.at(port)).served)
					require.False(t, a.node.Status().Paths["b"][0].OK)
					return
				}
				c := servedBy(t, w.client, a.at(port), "b")
				c.upload(t, mebibyte)
				c.download(t, mebibyte)
				require.Zero(t, g.dropped(t))
				s := a.node.Status().Engine
				require.NotZero(t, s.Verdicts[dpr.Transmit])
				require.Zero(t, s.Drops[dpr.Unsolicited])
				require.Zero(t, a.node.Status().Confirm.Gone)
			})
		}
	})
}
