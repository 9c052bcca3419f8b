package gossip

import (
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/loadinfo"
)

// What gossip costs each host of a cluster, measured and computed; it receives as much
// as it sends. See the test of this name of package loadinfo for the other ways:
//
//	go test ./loadinfo ./loadinfo/gossip -run TestCost -v
//	go test ./loadinfo/gossip -run TestCost -v -timeout 1h -args -hosts 10,100,1000
func TestCost(t *testing.T) {
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "per host and second\thosts\tpackets\tbytes\tof them by streams\ta report every\t")
	var length int
	for _, s := range strings.Split(*figureHosts, ",") {
		n, err := strconv.Atoi(s)
		require.NoError(t, err)
		t.Run(s, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var measured rates
				measured, length = measureCost(t, n)
				computed := expectedCost(n, length)
				// Hosts of one process report at the same beats, so some rounds have nothing to tell.
				require.InEpsilon(t, computed.packets, measured.packets, 0.15)
				require.InEpsilon(t, computed.bytes, measured.bytes, 0.3)
				measured.print(w, "measured", n)
			})
		})
	}
	for _, n := range []int{10, 1000, 10_000} {
		expectedCost(n, length).print(w, "computed", n)
	}
	require.NoError(t, w.Flush())
	t.Log("\n" + table.String())
}

// rates are what one host sends per second, in packets and bytes with headers.
type rates struct {
	packets, bytes, streamed float64
	period                   time.Duration
}

func (r rates) print(w *tabwriter.Writer, name string, hosts int) {
	fmt.Fprintf(w, "%s\t%d\t%.1f\t%.0f\t%.0f\t%v\t\n", name, hosts, r.packets, r.bytes, r.streamed, r.period.Round(time.Millisecond))
}

// measureCost starts a cluster and measures it for three minutes, or less if it is large:
// exchanges by streams are too rare to be all there then.
func measureCost(t *testing.T, n int) (rates, int) {
	net, tap := newNetwork(), &tap{}
	net.heard = tap.take
	var hosts []*station
	for i := 1; i <= n; i++ {
		hosts = append(hosts, run(t, net, i, host{change: func(c *Config) { c.Logger = slog.New(slog.DiscardHandler) }}))
	}
	settle(t, hosts)
	pass(20 * time.Second) // and all is told
	window := min(3*time.Minute, 10_000*time.Second/time.Duration(n))
	net.streamed.Store(0)
	c := tap.during(window, n)
	streamed := float64(net.streamed.Load()) / window.Seconds() / float64(n)
	period, _ := hosts[0].g.pace()
	_, length := hosts[0].g.table.size()
	stopAll(hosts...)
	return rates{c.datagrams, c.bytes + streamed, streamed, period}, length
}

// expectedCost follows from the length of a report. Each host tells Fanout others in each
// round, and sends a probe and an answer per second, and all of these carry reports: each
// version of each as often as copies says, if there is room for it. Every 30 s, and more
// rarely above 32 hosts, it tells one everything, and one asks it for as much.
func expectedCost(n, length int) rates {
	g := &Gossip{cfg: Config{
		Period: loadinfo.DefaultPeriod, MinInterval: loadinfo.DefaultMinInterval,
		Interval: defaultInterval, Fanout: defaultFanout, MaxDatagram: defaultMaxDatagram,
	}, table: newTable()}
	for i := range n {
		g.table.put(&loadinfo.Report{ID: strconv.Itoa(i)}, make([]byte, length), time.Time{}, false)
	}
	period, _ := g.pace()
	packets := defaultFanout/defaultInterval.Seconds() + 2
	message := float64(length + messageOverhead)
	fits := packets * (defaultMaxDatagram - roundOverhead)
	told := min(fits, float64(n*g.copies())/period.Seconds()*message)
	const around = udpOverhead + crcLen + 2 // a compound's type and number
	exchange := 30 * time.Second * time.Duration(1+math.Ceil(max(0, math.Log2(float64(n)/32))))
	const member = 110 // of a name of usual length
	streamed := 2 * float64(n) * (message + member) / exchange.Seconds()
	return rates{packets, told + packets*around + streamed, streamed, period}
}
