package node

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/internal/beat"
)

// probed returns a prober that knows a path to each of the peers.
func probed(peers ...string) *prober {
	p := newProber(true)
	var list []path
	for _, peer := range peers {
		list = append(list, path{
			key:    pathKey{peer, "web", netip.MustParseAddrPort("192.0.2.1:80")},
			client: netip.MustParseAddr("192.0.2.1"),
		})
	}
	p.follow(list)
	return p
}

// A peer that joins is probed often. Those that are known keep their own pace, or a
// round trip would be enough to take them for broken.
func TestPeerThatJoinsHurriesNoOther(t *testing.T) {
	p := probed("old", "new")
	old := p.paths[pathKey{"old", "web", netip.MustParseAddrPort("192.0.2.1:80")}]
	p.set(old, "", func(*path) {})
	now := time.Now()
	now = now.Add(beat.Wait(now, probeEvery)) // whole rounds
	var broken []time.Duration
	for at := time.Duration(0); at < 5*time.Second; {
		_, wait := p.next(now.Add(at), func(x *path) {
			if x == old {
				broken = append(broken, at)
			}
		})
		require.Positive(t, wait)
		at += wait
	}
	require.Equal(t, []time.Duration{probeFall * probeEvery}, broken)
}

func TestProbesOfManyPeersAreBounded(t *testing.T) {
	peers := make([]string, 500)
	for i := range peers {
		peers[i] = string(rune('a' + i))
	}
	p := probed(peers...)
	sent, now := 0, time.Now()
	for at := time.Duration(0); at < 20*time.Second; {
		probes, wait := p.next(now.Add(at), func(*path) {})
		sent += len(probes)
		at += wait
	}
	require.LessOrEqual(t, sent, int(20*time.Second/probeSpacing))
	require.NotZero(t, sent)
}
