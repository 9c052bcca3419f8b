package main

import (
	"context"
	"encoding/binary"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/internal/lab"
)

// TestMain lets the test program play the roles that the lab starts itself for.
func TestMain(m *testing.M) {
	if spec := os.Getenv(roleVariable); spec != "" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		os.Exit(play(ctx, spec))
	}
	os.Exit(m.Run())
}

func TestLabMeasuresAndLeavesNothing(t *testing.T) {
	lab.Require(t)
	t.Setenv("TMPDIR", t.TempDir())
	o := &options{rounds: 2, seconds: 0.1, only: "upload,download1g,latency,udp", forwarders: []string{direct, carom}}
	r, err := runLab(t.Context(), o)
	require.NoError(t, err)
	require.Empty(t, r.Failures)
	tab := r.Tables[0]
	for _, row := range []string{rowUpload, rowDownload1G, rowDownloadCPU, rowP50, rowP99, rowUDP} {
		for _, column := range []string{direct, carom} {
			require.Positive(t, tab.median(row, column), "%s, %s", row, column)
		}
	}
	require.InDelta(t, tab.median(rowP50, carom)-tab.median(rowP50, direct), tab.median(rowP50Added, carom), 1e-9)
	left, err := os.ReadDir(os.TempDir())
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestLabStopsWhenInterrupted(t *testing.T) {
	lab.Require(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := runLab(ctx, &options{rounds: 1, seconds: 0.1, forwarders: []string{direct}})
	require.ErrorIs(t, err, context.Canceled)
}

func TestLabRefusesAnUnknownForwarder(t *testing.T) {
	lab.Require(t)
	_, err := runLab(t.Context(), &options{rounds: 1, seconds: 0.1, forwarders: []string{direct, "carom,local"}})
	require.ErrorContains(t, err, `no forwarder "carom,local"`)
}

func TestParseWrk(t *testing.T) {
	const good = "  31000 requests in 1.00s, 3MB read\nRequests/sec:  12345.67\nTransfer/sec: 1MB\n"
	s, err := parseWrk(good)
	require.NoError(t, err)
	require.Equal(t, wrkSum{12345.67, 31000, 0}, *s)
	s, err = parseWrk("  Socket errors: connect 1, read 20, write 3, timeout 7\n" + good)
	require.NoError(t, err)
	require.Equal(t, 31.0, s.errors)
	require.Equal(t, 1.0, s.perThousand())
	_, err = parseWrk("unable to connect")
	require.ErrorContains(t, err, "no rate")
	_, err = parseWrk("0 requests in 1.00s\nRequests/sec: 0.00")
	require.ErrorContains(t, err, "no request was answered")
}

func TestFloodPacketsAreRight(t *testing.T) {
	to := netip.MustParseAddrPort("198.18.0.2:80")
	syn := dprtest.TCP(netip.AddrPortFrom(forged.Addr(), 1024), to, dprtest.Options{Flags: dprtest.SYN, Seq: 1})
	seen := map[netip.AddrPort]bool{}
	for _, i := range []int{0, 1, 65535, 65536, 3*65536 + 7} {
		numberSYN(syn, i)
		binary.BigEndian.PutUint16(syn[10:], 0)
		binary.BigEndian.PutUint16(syn[10:], ipv4Checksum(syn[:20]))
		require.NoError(t, dprtest.Check(syn))
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte(syn[12:16])), binary.BigEndian.Uint16(syn[20:]))
		require.True(t, forged.Contains(from.Addr()))
		require.False(t, seen[from])
		seen[from] = true
	}
}

// ipv4Checksum is what the kernel fills in for a raw socket.
func ipv4Checksum(header []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(header); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
