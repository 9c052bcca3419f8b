package gue

import (
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
)

// TestMTU sends over a loopback device with an MTU of 1,500 bytes, alone in its
// namespace: what does not fit is counted, or fragmented where DF is clear.
func TestMTU(t *testing.T) {
	inNamespace(t, func() {
		lo, err := netlink.LinkByName("lo")
		require.NoError(t, err)
		require.NoError(t, netlink.LinkSetMTU(lo, 1500))
		require.NoError(t, netlink.LinkSetUp(lo))
		for _, is6 := range []bool{false, true} {
			for _, keys := range [][]Key{nil, {aKey}} {
				a, b := pair(t, is6, Config{Keys: keys})
				most := 1500 - Overhead(is6, keys != nil)
				udp := func(length int, df bool) dpr.Packet {
					return packet(dprtest.UDP(client4, server4, dprtest.Options{Payload: make([]byte, length-28), DF: df}), peerB)
				}
				tooBig, _ := super(t, client4, server4, 5000, peerB)
				tooBig.GSO.Size = uint16(most - 40 + 1)
				fits, _ := super(t, client4, server4, 5000, peerB)
				fits.GSO.Size = uint16(most - 40)
				want := append(segments(t, udp(most, true)), segments(t, udp(most, false))...)
				want = append(want, segments(t, udp(most+1, false))...)
				want = append(want, segments(t, fits)...)
				want = append(want, segments(t, tooBig)[3]) // the short one
				_, err := a.Queues[0].Write([]dpr.Packet{
					udp(most, true), udp(most+1, true), udp(most, false), udp(most+1, false), tooBig, fits,
				})
				require.NoError(t, err)
				from := peerA
				if is6 {
					from = peerB
				}
				got, _ := read(t, b.Queues[0], len(want), from)
				require.ElementsMatch(t, want, got)
				require.Equal(t, uint64(1+3), a.Stats().Dropped[TooBig])
				require.False(t, a.noGSO.Load())
			}
		}
	})
}

// TestNarrowPath sends IPv6 packets of 1,280 bytes, which every link must carry,
// through tunnels that no packet of that length fits.
func TestNarrowPath(t *testing.T) {
	inNamespace(t, func() {
		lo, err := netlink.LinkByName("lo")
		require.NoError(t, err)
		require.NoError(t, netlink.LinkSetUp(lo))
		for _, is6 := range []bool{false, true} {
			a, b := pair(t, is6, Config{})
			from, peer := peerA, Peer{ID: peerB, Addr: b.cfg.Listen[0]}
			if is6 {
				from = peerB
			}
			for _, link := range []int{1500, 1280} {
				require.NoError(t, netlink.LinkSetMTU(lo, link))
				peer.MTU, err = a.MTU(peer.Addr.Addr())
				require.NoError(t, err)
				require.Equal(t, link-Overhead(is6, false), peer.MTU)
			}
			require.NoError(t, a.SetPeers([]Peer{peer}))
			frame, _ := super(t, client6, server6, 12_000, peerB)
			frame.GSO.Size = 1280 - 60
			want := segments(t, frame)
			_, err = a.Queues[0].Write([]dpr.Packet{frame})
			require.NoError(t, err)
			got, _ := read(t, b.Queues[0], len(want), from)
			require.Equal(t, want, got)
			require.Zero(t, a.Stats().Dropped)
			require.False(t, a.noGSO.Load())

			long := packet(dprtest.UDP(client4, server4, dprtest.Options{Payload: make([]byte, 1240), DF: true}), peerB)
			_, err = a.Queues[0].Write([]dpr.Packet{long})
			require.NoError(t, err)
			require.EqualValues(t, 1, a.Stats().Dropped[TooBig], "IPv4 with DF is not fragmented")
		}
	})
}

func TestMTUOfNoPath(t *testing.T) {
	a, _ := pair(t, false, Config{})
	_, err := a.MTU(server6.Addr())
	require.ErrorContains(t, err, "family")
	require.NoError(t, a.Close())
	_, err = a.MTU(netip.MustParseAddr("127.0.0.2"))
	require.ErrorIs(t, err, os.ErrClosed)
}

// inNamespace runs f on a thread in a network namespace of its own, or skips
// where that is not permitted.
func inNamespace(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine, and the namespace with it
		err := unix.Unshare(unix.CLONE_NEWNET)
		done <- err
		if err == nil {
			defer close(done)
			f()
		}
	}()
	if err := <-done; err != nil {
		if os.Getenv("CAROM_MUST_RUN") == "1" {
			t.Fatalf("no network namespace: %v", err)
		}
		t.Skipf("no network namespace: %v", err)
	}
	<-done
}
