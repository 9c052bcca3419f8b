package node_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/dpr/hostnet"
	"github.com/carom-dpr/carom/dpr/node"
	"github.com/carom-dpr/carom/internal/lab"
)

const mebibyte = 1 << 20

// traffic is what a host has counted between two moments.
type traffic struct {
	engine           map[dpr.Verdict]uint64
	total, fromPeers uint64
	errors           uint64
	capture          hostnet.Stats
}

// since returns what the host has counted since it had the status before.
func (h *host) since(before node.Status) traffic {
	now := h.node.Status()
	d := traffic{
		engine:    make(map[dpr.Verdict]uint64),
		fromPeers: now.Engine.FromPeers - before.Engine.FromPeers,
		errors:    now.Engine.Errors - before.Engine.Errors,
		capture: hostnet.Stats{
			LocalSocket:   now.Capture.LocalSocket - before.Capture.LocalSocket,
			CapturedSYN:   now.Capture.CapturedSYN - before.Capture.CapturedSYN,
			CapturedOther: now.Capture.CapturedOther - before.Capture.CapturedOther,
			FailOpen:      now.Capture.FailOpen - before.Capture.FailOpen,
		},
	}
	for v, n := range now.Engine.Verdicts {
		if n -= before.Engine.Verdicts[v]; n > 0 {
			d.engine[v] = n
			d.total += n
		}
	}
	return d
}

// fragments returns how many packets the host's kernel has cut, or put together.
func fragments(t *testing.T, h *lab.Host) (n uint64) {
	t.Helper()
	var names []string
	for line := range strings.Lines(readNetwork(t, h, "snmp")) {
		words := strings.Fields(line)
		switch {
		case words[0] != "Ip:":
		case names == nil:
			names = words
		default:
			for i, name := range names {
				n += fragmentCount(t, name, words[i])
			}
		}
	}
	require.Contains(t, names, "FragCreates")
	for line := range strings.Lines(readNetwork(t, h, "snmp6")) {
		words := strings.Fields(line)
		n += fragmentCount(t, strings.TrimPrefix(words[0], "Ip6"), words[1])
	}
	return n
}

func fragmentCount(t *testing.T, name, value string) uint64 {
	t.Helper()
	if name != "FragCreates" && name != "ReasmReqds" {
		return 0
	}
	n, err := strconv.ParseUint(value, 10, 64)
	require.NoError(t, err)
	return n
}

// A redirected transfer arrives intact at an MTU of 1500, without a fragment, and
// the answers go past all engines.
func TestRedirectedTransfer(t *testing.T) {
	sizes := map[bool]int64{false: 256 * mebibyte, true: 32 * mebibyte} // by v6
	eachFamily(t, func(t *testing.T, v6 bool) {
		w := cluster(t, v6, map[string]string{"a": "b", "b": ""})
		a, b, size := w.hosts["a"], w.hosts["b"], sizes[v6]

		t.Run("download", func(t *testing.T) {
			c := servedBy(t, w.client, a.at(port), "b")
			entry, serving := a.node.Status(), b.node.Status()
			began := time.Now()
			c.download(t, size)
			took := time.Since(began)
			var in, out traffic
			eventually(t, "no packet is under way", func() bool {
				in, out = a.since(entry), b.since(serving)
				return out.total == out.fromPeers && in.total == in.engine[dpr.Forward]
			})
			report(t, "download", size, took, in, out)
			sent := uint64(c.info(t).Segs_out)
			t.Logf("the client sent %d segments and received %d", sent, c.info(t).Segs_in)

			require.Equal(t, map[dpr.Verdict]uint64{dpr.Forward: in.total}, in.engine)
			require.Zero(t, in.fromPeers, "entry host: no packet of the answer")
			require.LessOrEqual(t, in.total, sent, "entry host: the client's packets only")
			require.Equal(t, map[dpr.Verdict]uint64{dpr.Local: out.fromPeers}, out.engine, "serving host: none but the peer's")
			require.Zero(t, out.capture.CapturedSYN+out.capture.CapturedOther)
		})
		t.Run("upload", func(t *testing.T) {
			c := servedBy(t, w.client, a.at(port), "b")
			entry, serving := a.node.Status(), b.node.Status()
			began := time.Now()
			c.upload(t, size)
			report(t, "upload", size, time.Since(began), a.since(entry), b.since(serving))
			t.Logf("the client sends segments of %d bytes, with timestamps", c.info(t).Snd_mss)
			require.Zero(t, a.since(entry).errors, "nobody had to be told that a packet is too big")
		})
		for _, h := range []*lab.Host{a.Host, b.Host, w.client} {
			require.Zero(t, fragments(t, h), h.Name())
		}
		require.NotZero(t, a.node.Status().Tunnel.Sent)
	})
}

func report(t *testing.T, what string, size int64, took time.Duration, entry, serving traffic) {
	t.Helper()
	t.Logf("%s of %d MiB in %v, %.2f Gbit/s; engines: entry %v, serving %v", what, size/mebibyte,
		took.Round(time.Millisecond), float64(size)*8/1e9/took.Seconds(), entry.engine, serving.engine)
}

// After its SYN, a connection that stays costs no user space, and a SYN that
// somebody else sends in its name does nothing to it.
func TestLocalConnection(t *testing.T) {
	eachFamily(t, func(t *testing.T, v6 bool) {
		w := cluster(t, v6, map[string]string{"a": ""})
		a := w.hosts["a"]
		c := mustDial(t, w.client, a.at(port))
		t.Logf("until it is served: engine %v", a.node.Status().Engine.Verdicts)
		before := a.node.Status()
		c.download(t, 64*mebibyte)
		c.upload(t, 64*mebibyte)
		d := a.since(before)
		t.Logf("128 MiB: engine %v, capture %+v", d.engine, d.capture)
		require.Zero(t, d.total)
		require.Zero(t, d.capture.CapturedSYN+d.capture.CapturedOther)
		require.NotZero(t, d.capture.LocalSocket)

		before = a.node.Status()
		forgeSYNs(t, w, c, a)
		eventually(t, "the forged SYNs have come", func() bool {
			return a.since(before).capture.LocalSocket >= forgedSYNs
		})
		require.Zero(t, a.since(before).total, "they meet the socket")
		c.download(t, 8*mebibyte)
		require.NoError(t, c.echo())
		require.Zero(t, a.since(before).total)
	})
}

// A SYN in the name of a redirected connection does nothing to that either.
func TestRedirectedConnectionMeetsBlindSYN(t *testing.T) {
	w := cluster(t, false, map[string]string{"a": "b", "b": ""})
	a := w.hosts["a"]
	c := servedBy(t, w.client, a.at(port), "b")
	before := a.node.Status()
	forgeSYNs(t, w, c, a)
	eventually(t, "the forged SYNs have come", func() bool { return a.since(before).total >= forgedSYNs })
	c.download(t, 8*mebibyte)
	require.NoError(t, c.echo())
	require.Equal(t, before.Engine.Services[service].RedirectedOut, a.node.Status().Engine.Services[service].RedirectedOut)
}

const forgedSYNs = 64

// forgeSYNs sends SYNs from the evil host that seem to come from c's client, with
// sequence numbers from all over.
func forgeSYNs(t *testing.T, w *world, c *conn, to *host) {
	t.Helper()
	for i := range uint32(forgedSYNs) {
		w.forge(t, dprtest.TCP(c.local(), to.at(port), dprtest.Options{Flags: dprtest.SYN, Seq: i << 26}))
	}
}

// forge sends an IP packet from the evil host, whatever its source says.
func (w *world) forge(t *testing.T, packet []byte) {
	t.Helper()
	require.NoError(t, w.evil.Do(func() error {
		s, err := hostnet.NewRawSender()
		if err != nil {
			return err
		}
		defer s.Close()
		n, err := s.Write([]dpr.Packet{{Buf: packet, Len: len(packet)}})
		if n != 1 {
			t.Errorf("the packet was not sent: %s", dprtest.Describe(packet))
		}
		return err
	}))
}
