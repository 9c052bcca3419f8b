package loadinfo

import (
	"flag"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var costHosts = flag.String("hosts", "10", "the sizes of the clusters of TestCost")

// What reports cost a host, by each way of sending, beside what follows from the
// length of a report; see gossip's TestFigures for that transport:
//
//	go test ./loadinfo -run TestCost -v -args -hosts 10,1000
func TestCost(t *testing.T) {
	for _, s := range strings.Split(*costHosts, ",") {
		n, err := strconv.Atoi(s)
		require.NoError(t, err)
		for _, oneByOne := range []bool{false, true} {
			name := map[bool]string{false: "broadcast", true: "one by one"}[oneByOne]
			t.Run(fmt.Sprint(name, "/", n), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { cost(t, n, oneByOne) })
			})
		}
	}
}

func cost(t *testing.T, n int, oneByOne bool) {
	net := newNetwork()
	to := []netip.AddrPort{all}
	addr := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), DefaultPort)
	}
	if oneByOne {
		to = nil
		for i := 1; i < n; i++ { // and not the sender, 0
			to = append(to, addr(i))
		}
	}
	var datagrams, bytes, length atomic.Int64
	net.heard = func(_ netip.AddrPort, b []byte) {
		datagrams.Add(1)
		bytes.Add(int64(len(b) + udpOverhead))
		length.Store(int64(len(b)))
	}
	sender := run(t, net, 1, func(c *BroadcasterConfig) { c.To = to })
	pass(2 * DefaultPeriod) // the next ones know how long a report is
	period := max(DefaultPeriod, time.Duration(len(to)*(int(length.Load())+udpOverhead))*time.Second/DefaultMaxRate)
	pass(2 * period)
	datagrams.Store(0)
	bytes.Store(0)
	window := 100 * period
	pass(window)
	seconds := window.Seconds()
	sender.stop()
	t.Logf("sent per second: %.1f datagrams, %.0f bytes with headers; received of %d peers: %.0f datagrams, %.0f bytes; a report every %v",
		float64(datagrams.Load())/seconds, float64(bytes.Load())/seconds, n-1,
		float64(n-1)/period.Seconds(), float64(n-1)*float64(length.Load()+udpOverhead)/period.Seconds(), period)
	require.InEpsilon(t, float64(len(to))/period.Seconds(), float64(datagrams.Load())/seconds, 0.1)
	require.LessOrEqual(t, float64(bytes.Load())/seconds, DefaultMaxRate*1.1)
}
