package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/internal/lab"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" { // a child of a kernel cluster
		os.Exit(play(context.Background(), role))
	}
	goleak.VerifyTestMain(m)
}

// drive runs a cluster with the arguments and returns its summary.
func runCluster(t *testing.T, link dprtest.Link, args ...string) result {
	t.Helper()
	o, err := parseOptions(args, io.Discard)
	require.NoError(t, err)
	o.link = link
	var out bytes.Buffer
	c, err := build(t.Context(), o, &out)
	require.NoError(t, err)
	err = <-c.start(t.Context())
	r := c.result()
	r.Imbalance = imbalance(r.Hosts)
	require.NoError(t, c.close())
	require.NoError(t, err)
	r.print(&out)
	t.Log(out.String())
	return r
}

// requireBalanced looks for what must hold on any machine, however busy. How well the
// load is balanced is CI's to judge, in a run of its own.
func requireBalanced(t *testing.T, r result, requests int) {
	t.Helper()
	require.Equal(t, requests, r.Requests)
	require.Zero(t, r.Failed, r.firstError)
	require.Zero(t, r.WrongSource)
	served, out, in := 0, 0, 0
	for _, h := range r.Hosts {
		served, out, in = served+h.Served, out+h.RedirectedOut, in+h.RedirectedIn
		require.Positive(t, h.Served, h.Name)
	}
	require.Equal(t, requests, served)
	require.GreaterOrEqual(t, in, out, "a SYN may be sent twice, but none may be lost track of")
	require.Less(t, r.Imbalance, float64(len(r.Hosts)-1), "one host serves nearly all")
}

// requests is the size of a run: smaller where CI looks for races, not for figures.
func requests() int {
	if testing.Short() {
		return 400
	}
	return 1600
}

func TestMemoryEntryOne(t *testing.T) {
	for _, family := range []string{"-6=false", "-6"} {
		n := requests()
		r := runCluster(t, perfectLink, "-net=memory", "-entry=one", fmt.Sprint("-requests=", n), family)
		requireBalanced(t, r, n)
		require.Equal(t, n, r.Hosts[0].Dialled)
	}
}

func TestMemoryEntryAll(t *testing.T) {
	n := requests()
	r := runCluster(t, perfectLink, "-net=memory", fmt.Sprint("-requests=", n))
	requireBalanced(t, r, n)
	for _, h := range r.Hosts {
		require.Equal(t, n/4, h.Dialled)
	}
}

// Answers go back through the hosts that were dialled.
func TestTunnelledReplies(t *testing.T) {
	for _, network := range []string{"memory", "kernel"} {
		for _, family := range []string{"-6=false", "-6"} {
			t.Run(network+family, func(t *testing.T) {
				if network == "kernel" {
					lab.Require(t)
				}
				n := requests()
				r := runCluster(t, perfectLink, "-net="+network, "-entry=one", "-reply=tunnelled", fmt.Sprint("-requests=", n), family)
				requireBalanced(t, r, n)
			})
		}
	}
}

func TestMemoryStay(t *testing.T) {
	r := runCluster(t, perfectLink, "-net=memory", "-entry=one", "-policy=stay", "-requests=300")
	require.Equal(t, 300, r.Hosts[0].Served)
	require.Zero(t, r.Failed, r.firstError)
}

// Packets get lost, overtake each other and come twice, between clients, hosts and
// within tunnels; every connection must come through all the same.
func TestMemoryBadNetwork(t *testing.T) {
	bad := dprtest.Link{
		MTU: mtu, Queue: 4096,
		Loss: 0.01, Duplicate: 0.01, Delay: 200 * time.Microsecond, Jitter: time.Millisecond,
	}
	r := runCluster(t, bad, "-net=memory", "-entry=one", "-requests=400", "-concurrency=32")
	require.Equal(t, 400, r.Requests)
	require.Zero(t, r.Failed, r.firstError)
	require.Zero(t, r.WrongSource)
	redirected := 0
	for _, h := range r.Hosts {
		redirected += h.RedirectedOut
	}
	require.Greater(t, redirected, 100)
}

func TestKernelEntryOne(t *testing.T) {
	lab.Require(t)
	n := requests()
	r := runCluster(t, perfectLink, "-net=kernel", "-entry=one", fmt.Sprint("-requests=", n))
	requireBalanced(t, r, n)
}

// Hosts find each other by gossip, and clients find the hosts by the cluster's name.
func TestGossipAndDNS(t *testing.T) {
	for _, network := range []string{"memory", "kernel"} {
		t.Run(network, func(t *testing.T) {
			if network == "kernel" {
				lab.Require(t)
			}
			n := requests()
			r := runCluster(t, perfectLink, "-net="+network, "-gossip=memberlist", "-dns", fmt.Sprint("-requests=", n))
			requireBalanced(t, r, n)
			for _, h := range r.Hosts {
				require.InDelta(t, n/4, h.Dialled, float64(n)/8, "answers name all hosts")
			}
		})
	}
}

func TestOptionErrors(t *testing.T) {
	for want, args := range map[string][]string{
		"-hosts 0: give 1 to 64":                {"-hosts=0"},
		`-entry "two": give all or one`:         {"-entry=two"},
		`-policy "best": give one of`:           {"-policy=best"},
		"-requests 0: give at least 1":          {"-requests=0"},
		"-concurrency -1: give at least 1":      {"-concurrency=-1"},
		"-service-time -1s: give 0 or more":     {"-service-time=-1s"},
		`-server "apache": give builtin`:        {"-server=apache"},
		`-net "lan": give auto`:                 {"-net=lan"},
		`-gossip "serf": give broadcast`:        {"-gossip=serf"},
		`-reply "rewritten": give direct`:       {"-reply=rewritten"},
		"-entry one is for clients that do not": {"-entry=one", "-dns"},
		"-server nginx needs the kernel's":      {"-server=nginx", "-net=memory"},
		`unexpected argument "now"`:             {"now"},
		"flag provided but not defined: -bogus": {"-bogus"},
	} {
		_, err := parseOptions(args, io.Discard)
		require.ErrorContains(t, err, want)
	}
}

func TestJSONIsTheContract(t *testing.T) {
	path := filepath.Join(t.TempDir(), "summary.json")
	r := result{Net: "memory", Hosts: []hostResult{{Name: "h1", Addr: "198.18.1.1", Served: 3}}}
	to, err := (&options{JSON: path}).openJSON()
	require.NoError(t, err)
	require.NoError(t, r.writeJSON(to))
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.JSONEq(t, `{"net":"memory","hosts":[{"name":"h1","addr":"198.18.1.1","dialled":0,"served":3,
		"redirected_out":0,"redirected_in":0}],"requests":0,"failed":0,"wrong_source":0,
		"latency_ms":{"p50":0,"p99":0,"max":0},"imbalance":0}`, string(b))
	require.True(t, json.Valid(b))
	_, err = (&options{JSON: filepath.Join(path, "x")}).openJSON()
	require.ErrorContains(t, err, "give a file that can be written")
}
