package dpr_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
)

func TestFormerEndpoints(t *testing.T) {
	b := newBench(t, dpr.Config{})
	addrs := []netip.Addr{vip.Addr(), vip6.Addr()}
	dns := dpr.Service{Name: "dns", Proto: dpr.UDP, Port: 53, Addrs: addrs}
	web := dpr.Service{Name: "web", Proto: dpr.TCP, Port: 80, Addrs: addrs, Former: true}
	b.from(tcp(syn, 1, 0))
	b.from(tcp(ack, 2, 0))
	other := netip.AddrPortFrom(client.Addr(), 4321)
	moved := netip.AddrPortFrom(vip.Addr(), 8080)
	for name, services := range map[string][]dpr.Service{
		"the port changed":    {dns, web, {Name: "web", Proto: dpr.TCP, Port: 8080, Addrs: addrs}},
		"in the other order":  {{Name: "web", Proto: dpr.TCP, Port: 8080, Addrs: addrs}, dns, web},
		"the service is gone": {dns, web},
	} {
		require.NoError(t, b.SetServices(services), name)
		b.requireForward(b.from(tcp(ack, 2, 10)), "h2")
		require.Equal(t, dpr.Local, b.from(tcpFrom(other, syn, 1, 0)).Verdict, name)
		require.Equal(t, dpr.Local, b.fromPeer("h3", tcpFrom(other, ack, 2, 10)).Verdict, name)
		require.Equal(t, 1, b.open("h2", "web"), name)
		p := b.from(dprtest.TCP(other, moved, dprtest.Options{Flags: syn, Seq: uint32(len(name))}))
		if len(services) == 3 {
			b.requireForward(p, "h2")
			b.from(dprtest.TCP(other, moved, dprtest.Options{Flags: dprtest.RST, Seq: uint32(len(name)) + 1}))
			b.pass(time.Minute)
		} else {
			require.Equal(t, dpr.Pass, p.Verdict, name)
		}
	}
}

// A new flow of a former endpoint stays here even when the table is full, where
// others are sent by their hash alone.
func TestFormerEndpointWithFullTable(t *testing.T) {
	b := newBench(t, dpr.Config{MaxFlows: 100})
	for port := range 200 {
		from := netip.AddrPortFrom(client.Addr(), uint16(10000+port))
		b.from(tcpFrom(from, syn, 1, 0))
		b.from(tcpFrom(from, ack, 2, 0))
	}
	require.NotZero(t, b.Stats().TableFull)
	require.NoError(t, b.SetServices([]dpr.Service{
		{Name: "web", Proto: dpr.TCP, Port: 80, Addrs: []netip.Addr{vip.Addr()}, Former: true},
	}))
	for port := range 100 {
		require.Equal(t, dpr.Local, b.from(tcpFrom(netip.AddrPortFrom(client.Addr(), uint16(20000+port)), syn, 1, 0)).Verdict)
	}
}

func TestSetTimeouts(t *testing.T) {
	b := newBench(t, dpr.Config{})
	b.from(tcp(syn, 1, 0))
	b.from(tcp(ack, 2, 0))
	require.ErrorContains(t, b.SetTimeouts(dpr.Timeouts{Established: -1}), "Timeouts.established is -1ns")
	b.pass(time.Hour)
	require.Equal(t, 1, b.flows())
	require.NoError(t, b.SetTimeouts(dpr.Timeouts{Established: 2 * time.Hour}))
	b.pass(time.Hour - time.Minute)
	require.Equal(t, 1, b.flows())
	require.NoError(t, b.SetTimeouts(dpr.Timeouts{Established: time.Hour}))
	b.pass(0)
	require.Zero(t, b.flows(), "of flows that are there, too")
}

func TestConfigValidate(t *testing.T) {
	web := dpr.Service{Name: "web", Proto: dpr.TCP, Port: 80, Addrs: []netip.Addr{vip.Addr()}}
	require.NoError(t, dpr.Config{Services: []dpr.Service{web}}.Validate())
	require.ErrorContains(t, dpr.Config{MaxFlows: -1}.Validate(), "MaxFlows is -1")
	require.ErrorContains(t, dpr.Config{Services: []dpr.Service{web, web}}.Validate(), "is there twice")
	udp := web
	udp.Proto, udp.Former = dpr.UDP, true
	require.ErrorContains(t, dpr.Config{Services: []dpr.Service{web, udp}}.Validate(), "both tcp and udp")
}
