package loadinfo

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/lb"
)

func TestOwnReport(t *testing.T) {
	b := NewBoard(BoardConfig{Blackout: NoBlackout})
	_, ok := b.Report(at(0))
	require.False(t, ok, "before SetSelf there is nothing to say")
	require.NoError(t, b.SetSelf(Self{
		ID: "h1", Boot: 5, Node: node(1), Dialled: []netip.Addr{node(1).Addr()},
		Services: []OwnService{{Name: "www"}, {Name: "mail", Weight: NoWeight, Unhealthy: true}},
	}))
	b.Counter("www").Store(12)
	b.Counter("mail").Store(-3)
	require.Nil(t, b.Counter("nothing"))
	want := Report{
		ID: "h1", Boot: 5, Seq: 1, Weight: DefaultWeight, Node: node(1), Dialled: []netip.Addr{node(1).Addr()},
		Resources: Unknown,
		Services: []ServiceReport{
			{ID: HashService("www"), Conns: 12, Weight: DefaultWeight, Healthy: true, Since: 1},
			{ID: HashService("mail")}, // A54: a count is never negative
		},
	}
	r, ok := b.Report(at(0))
	require.True(t, ok)
	require.Equal(t, want, r)

	b.SetState(Draining)
	b.SetHealthy("mail", true)
	b.SetHealthy("nothing", true)
	b.SetWeight("www", 0)
	b.SetResources(lb.Resources{CPU: 0.5})
	r, _ = b.Report(at(0))
	want.Seq, want.State, want.Resources = 2, Draining, lb.Resources{CPU: 0.5}
	want.Services[0].Weight, want.Services[0].Since, want.Services[1].Healthy = 0, 0, true
	require.Equal(t, want, r)

	require.NoError(t, b.SetSelf(Self{ID: "h1", Boot: 5}))
	r, _ = b.Report(at(0))
	require.Equal(t, uint64(3), r.Seq, "a new description is no new life")
}

func TestBootFromClock(t *testing.T) {
	b := withSelf(t, BoardConfig{Blackout: NoBlackout}, Self{ID: "h1"})
	first, _ := b.Report(at(0))
	require.NoError(t, b.SetSelf(Self{ID: "h1"}))
	second, _ := b.Report(at(0))
	require.NotZero(t, first.Boot)
	require.Equal(t, first.Boot, second.Boot, "a new description is no new life")
	before := uint64(time.Now().UnixNano())
	require.NoError(t, b.SetSelf(Self{ID: "h2"}))
	third, _ := b.Report(at(0))
	require.GreaterOrEqual(t, third.Boot, before)
}

func TestWeights(t *testing.T) { // A59
	for _, tt := range []struct {
		host, service int
		want          uint16
	}{
		{0, 0, DefaultWeight},
		{1, 0, 1},
		{40, 0, 40},
		{40, 3, 3},
		{40, NoWeight, 0},
		{NoWeight, 0, 0},
		{NoWeight, 3, 0},
		{65535, 65535, 65535},
	} {
		b := withSelf(t, BoardConfig{Blackout: NoBlackout}, Self{
			ID: "a", Weight: tt.host, Services: []OwnService{{Name: "www", Weight: tt.service}},
		})
		require.Equal(t, tt.want, b.Snapshot("www", at(0)).Hosts[0].Weight, "%+v", tt)
	}
}

func TestSetSelfErrors(t *testing.T) {
	for want, self := range map[string]Self{
		"ID":                                {},
		"State stale":                       {ID: "a", State: Stale},
		"Self.Weight: 65536 is above 65535": {ID: "a", Weight: 65536},
		`weight of service "www": 70000 is above`:     {ID: "a", Services: []OwnService{{Name: "www", Weight: 70000}}},
		"a service without a name":                    {ID: "a", Services: []OwnService{{}}},
		`services "www" and "www" have the same`:      {ID: "a", Services: []OwnService{{Name: "www"}, {Name: "www"}}},
		`services "costarring" and "liquid" have the`: {ID: "a", Services: []OwnService{{Name: "costarring"}, {Name: "liquid"}}},
		"Dialled: 17 addresses":                       {ID: "a", Dialled: make([]netip.Addr, 17)},
	} {
		b := NewBoard(BoardConfig{Blackout: NoBlackout})
		require.ErrorContains(t, b.SetSelf(self), want)
		require.Empty(t, b.Members(at(0)), "nothing half set up")
	}
}
