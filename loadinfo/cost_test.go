package loadinfo

import (
	"flag"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"
)

var costHosts = flag.String("hosts", "10,1000", "the sizes of the clusters that TestCost measures")

// What reports cost each host of a cluster, by each way of sending them itself, measured
// and as it follows from the length of a report; gossip has a test of this name, too:
//
//	go test ./loadinfo ./loadinfo/gossip -run TestCost -v
//	go test ./loadinfo/gossip -run TestCost -v -timeout 1h -args -hosts 10,100,1000
func TestCost(t *testing.T) {
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "per host and second\thosts\tpackets out\tbytes out\tpackets in\tbytes in\ta report every\t")
	for _, oneByOne := range []bool{false, true} {
		name := map[bool]string{false: "broadcast or multicast", true: "list"}[oneByOne]
		var length int
		for _, s := range strings.Split(*costHosts, ",") {
			n, err := strconv.Atoi(s)
			require.NoError(t, err)
			t.Run(fmt.Sprint(name, "/", n), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var measured rates
					measured, length = cost(t, n, oneByOne)
					computed := expectedCost(n, length, oneByOne)
					require.InEpsilon(t, computed.packets, measured.packets, 0.1)
					require.LessOrEqual(t, measured.bytes, DefaultMaxRate*1.1)
					measured.print(w, name+", measured", n)
				})
			})
		}
		expectedCost(10_000, length, oneByOne).print(w, name+", computed", 10_000)
	}
	require.NoError(t, w.Flush())
	t.Log("\n" + table.String())
}

// rates are what one host sends per second, with headers. It receives that of each peer,
// or as much as it sends to each.
type rates struct {
	packets, bytes float64
	period         time.Duration
	heard          float64 // hosts, of each packet
}

func (r rates) print(w io.Writer, name string, hosts int) {
	fmt.Fprintf(w, "%s\t%d\t%.1f\t%.0f\t%.1f\t%.0f\t%v\t\n", name, hosts,
		r.packets, r.bytes, r.packets*r.heard, r.bytes*r.heard, r.period.Round(time.Millisecond))
}

func expectedCost(n, length int, oneByOne bool) rates {
	copies, heard := 1, n-1
	if oneByOne {
		copies, heard = n-1, 1
	}
	size := length + udpOverhead
	period := max(DefaultPeriod, time.Duration(copies*size)*time.Second/DefaultMaxRate)
	packets := float64(copies) / period.Seconds()
	return rates{packets, packets * float64(size), period, float64(heard)}
}

// cost measures what a host sends that has so many peers, and the length of its reports.
func cost(t *testing.T, n int, oneByOne bool) (rates, int) {
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
	r := expectedCost(n, int(length.Load()), oneByOne)
	pass(2 * r.period)
	datagrams.Store(0)
	bytes.Store(0)
	window := 100 * r.period
	pass(window)
	sender.stop()
	r.packets, r.bytes = float64(datagrams.Load())/window.Seconds(), float64(bytes.Load())/window.Seconds()
	return r, int(length.Load())
}
