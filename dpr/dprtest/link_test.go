package dprtest_test

import (
	"encoding/binary"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func join(t testing.TB, n *dprtest.Network, link dprtest.Link, addrs ...netip.Addr) *dprtest.Endpoint {
	e, err := n.Join(link, addrs...)
	require.NoError(t, err)
	t.Cleanup(func() { e.Close() })
	return e
}

// pair returns a client and a server on a network of their own, each behind the
// same kind of link.
func pair(t testing.TB, link dprtest.Link) (n *dprtest.Network, client, server *dprtest.Endpoint) {
	n = dprtest.NewNetwork(1)
	return n, join(t, n, link, client4.Addr(), client6.Addr()), join(t, n, link, vip4.Addr(), vip6.Addr())
}

// numbered returns a datagram from the client to the server that carries a number.
func numbered(i int) []byte {
	return dprtest.UDP(client4, vip4, dprtest.Options{Payload: binary.BigEndian.AppendUint32(nil, uint32(i))})
}

func number(pkt []byte) int { return int(binary.BigEndian.Uint32(pkt[28:])) }

// write sends packets in one batch and returns how many went out.
func write(t testing.TB, e *dprtest.Endpoint, pkts ...[]byte) int {
	batch := make([]dpr.Packet, len(pkts))
	for i, pkt := range pkts {
		batch[i] = dpr.Packet{Buf: pkt, Len: len(pkt)}
	}
	n, err := e.Write(batch)
	require.NoError(t, err)
	return n
}

// read waits for packets and returns a copy of those that are there.
func read(t testing.TB, e *dprtest.Endpoint) (got [][]byte) {
	batch := dpr.NewPackets(64, 2000)
	n, err := e.Read(batch)
	require.NoError(t, err)
	for i := range batch[:n] {
		require.GreaterOrEqual(t, batch[i].Off, dpr.Headroom)
		got = append(got, slices.Clone(batch[i].Bytes()))
	}
	return got
}

func TestPacketsGoWhereTheyAreAddressed(t *testing.T) {
	_, client, server := pair(t, dprtest.Link{})
	request4 := dprtest.TCP(client4, vip4, dprtest.Options{Flags: dprtest.SYN})
	request6 := dprtest.TCP(client6, vip6, dprtest.Options{Flags: dprtest.SYN})
	answer := dprtest.TCP(vip6, client6, dprtest.Options{Flags: dprtest.RST})
	require.Equal(t, 2, write(t, client, request4, request6))
	require.Equal(t, [][]byte{request4, request6}, read(t, server))
	require.Equal(t, 1, write(t, server, answer))
	require.Equal(t, [][]byte{answer}, read(t, client))
	require.Equal(t, dprtest.Stats{Sent: 2, Received: 1}, client.Stats())
	require.Equal(t, dprtest.Stats{Sent: 1, Received: 2}, server.Stats())
}

func TestReadSetsEveryField(t *testing.T) {
	_, client, server := pair(t, dprtest.Link{})
	pkt := numbered(1)
	write(t, client, pkt)
	batch := dpr.NewPackets(1, 100)
	batch[0].Off, batch[0].Len, batch[0].Peer, batch[0].Verdict, batch[0].GSO.Size = 1, 2, 3, dpr.Forward, 4
	n, err := server.Read(batch)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, dpr.Packet{Buf: batch[0].Buf, Off: dpr.Headroom, Len: len(pkt)}, batch[0])
	require.Len(t, batch[0].Buf, dpr.Headroom+100)
}

func TestBatchesAreCutToTheReader(t *testing.T) {
	_, client, server := pair(t, dprtest.Link{})
	for i := range 70 {
		write(t, client, numbered(i))
	}
	require.Len(t, read(t, server), 64)
	require.Len(t, read(t, server), 6)
	n, err := server.Read(nil)
	require.NoError(t, err)
	require.Zero(t, n)
}

func TestWhatCannotBeSent(t *testing.T) {
	n, client, _ := pair(t, dprtest.Link{MTU: 1000})
	fits := dprtest.UDP(client4, vip4, dprtest.Options{Payload: make([]byte, 972)})
	tooBig := dprtest.UDP(client4, vip4, dprtest.Options{Payload: make([]byte, 973)})
	elsewhere := dprtest.UDP(client4, netip.MustParseAddrPort("203.0.113.9:1"), dprtest.Options{})
	require.Equal(t, 1, write(t, client, fits, tooBig, elsewhere, []byte("no packet"), nil))

	super := dpr.Packet{Buf: fits, Len: len(fits), GSO: dpr.GSO{Type: dpr.GSOUDP}}
	partial := dpr.Packet{Buf: fits, Len: len(fits), GSO: dpr.GSO{NeedsCsum: true}}
	sent, err := client.Write([]dpr.Packet{super, partial})
	require.NoError(t, err)
	require.Zero(t, sent)
	require.Equal(t, dprtest.Stats{Sent: 7, TooBig: 1, NoRoute: 1, Malformed: 2, Offload: 2}, client.Stats())

	small := join(t, n, dprtest.Link{MTU: 100}, router4)
	require.Zero(t, write(t, client, dprtest.UDP(client4, netip.AddrPortFrom(router4, 1), dprtest.Options{Payload: make([]byte, 73)})),
		"the receiver's MTU counts too")
	require.Zero(t, small.Stats())
}

func TestQueueIsBounded(t *testing.T) {
	_, client, server := pair(t, dprtest.Link{Queue: 10})
	for i := range 15 {
		write(t, client, numbered(i))
	}
	got := read(t, server)
	require.Len(t, got, 10)
	require.Equal(t, 9, number(got[9]), "the newest are dropped")
	require.Equal(t, uint64(5), server.Stats().QueueFull)
}

func TestQueueBoundsWhatIsOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, client, server := pair(t, dprtest.Link{Queue: 10, Delay: time.Second})
		for i := range 15 {
			write(t, client, numbered(i))
		}
		require.Len(t, read(t, server), 10)
		require.Equal(t, uint64(5), server.Stats().QueueFull)
	})
}

func TestPacketsTooLongForTheReader(t *testing.T) {
	_, client, server := pair(t, dprtest.Link{})
	write(t, client, dprtest.UDP(client4, vip4, dprtest.Options{Payload: make([]byte, 500)}), numbered(1))
	batch := dpr.NewPackets(4, 100)
	n, err := server.Read(batch)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, numbered(1), batch[0].Bytes())
	require.Equal(t, uint64(1), server.Stats().Discarded)
}

func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, client, server := pair(t, dprtest.Link{Delay: 30 * time.Millisecond})
		start := time.Now()
		for i := range 100 {
			write(t, client, numbered(i))
		}
		for i, got := 0, [][]byte(nil); i < 100; i++ {
			if len(got) == 0 {
				got = read(t, server)
			}
			require.Equal(t, i, number(got[0]), "equal delays keep the order")
			got = got[1:]
		}
		require.Equal(t, 60*time.Millisecond, time.Since(start), "two links are crossed")
	})
}

func TestJitterReorders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const delay, jitter = 10 * time.Millisecond, 5 * time.Millisecond
		_, client, server := pair(t, dprtest.Link{Delay: delay, Jitter: jitter})
		start := time.Now()
		for i := range 200 {
			write(t, client, numbered(i))
		}
		var order []int
		for len(order) < 200 {
			for _, pkt := range read(t, server) {
				order = append(order, number(pkt))
			}
			require.GreaterOrEqual(t, time.Since(start), 2*delay)
			require.LessOrEqual(t, time.Since(start), 2*(delay+jitter))
		}
		require.False(t, slices.IsSorted(order))
		slices.Sort(order)
		require.Equal(t, 0, order[0])
		require.Len(t, slices.Compact(order), 200)
	})
}

// A packet that overtakes one that waits for a later time moves the timer forward.
func TestShorterDelayOvertakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, client, server := pair(t, dprtest.Link{})
		start := time.Now()
		for i, delay := range []time.Duration{3 * time.Second, time.Second, 2 * time.Second} {
			require.NoError(t, client.SetLink(dprtest.Link{Delay: delay}))
			write(t, client, numbered(i))
		}
		for i, want := range []int{1, 2, 0} {
			require.Equal(t, want, number(read(t, server)[0]))
			require.Equal(t, time.Duration(i+1)*time.Second, time.Since(start))
		}
	})
}

// survivors sends 1000 packets over lossy links and returns those that came.
func survivors(t *testing.T, seed uint64, link dprtest.Link) (got []int, sender dprtest.Stats) {
	n := dprtest.NewNetwork(seed)
	client, server := join(t, n, link, client4.Addr()), join(t, n, dprtest.Link{Queue: 4000}, vip4.Addr())
	for i := range 1000 {
		require.Equal(t, 1, write(t, client, numbered(i)), "what is lost was sent")
	}
	write(t, server, dprtest.UDP(vip4, vip4, dprtest.Options{Payload: []byte{255, 255, 255, 255}})) // the end
	for {
		for _, pkt := range read(t, server) {
			if number(pkt) > 1000 {
				return got, client.Stats()
			}
			got = append(got, number(pkt))
		}
	}
}

func TestLossAndDuplication(t *testing.T) {
	link := dprtest.Link{Loss: 0.3, Duplicate: 0.2}
	got, sender := survivors(t, 7, link)
	require.InDelta(t, 300, float64(sender.Lost), 60)
	require.InDelta(t, 140, float64(sender.Duplicated), 50)
	require.Len(t, got, 1000-int(sender.Lost)+int(sender.Duplicated))

	again, _ := survivors(t, 7, link)
	require.Equal(t, got, again, "one seed, one run")
	other, _ := survivors(t, 8, link)
	require.NotEqual(t, got, other)

	none, sender := survivors(t, 7, dprtest.Link{Loss: 1})
	require.Empty(t, none)
	require.Equal(t, uint64(1000), sender.Lost)
}

func TestReceiversLinkLosesToo(t *testing.T) {
	n := dprtest.NewNetwork(1)
	client, server := join(t, n, dprtest.Link{}, client4.Addr()), join(t, n, dprtest.Link{Loss: 1, Duplicate: 1}, vip4.Addr())
	write(t, client, numbered(1))
	require.Equal(t, uint64(1), client.Stats().Lost)
	require.NoError(t, server.SetLink(dprtest.Link{Duplicate: 1}))
	write(t, client, numbered(2))
	require.Len(t, read(t, server), 2)
}

func TestFilter(t *testing.T) {
	n, client, server := pair(t, dprtest.Link{})
	n.SetFilter(func(from, to *dprtest.Endpoint, pkt []byte) bool {
		return from != client || to != server || number(pkt) != 2
	})
	require.Equal(t, 2, write(t, client, numbered(1), numbered(2), numbered(3)))
	got := read(t, server)
	require.Equal(t, []int{1, 3}, []int{number(got[0]), number(got[1])})
	require.Equal(t, uint64(1), client.Stats().Filtered)
	n.SetFilter(nil)
	require.Equal(t, 1, write(t, client, numbered(2)))
}

func TestAddressesMove(t *testing.T) {
	n, client, server := pair(t, dprtest.Link{})
	heir := join(t, n, dprtest.Link{})
	require.Empty(t, heir.Addrs())
	require.ErrorContains(t, heir.Add(router4, vip4.Addr()), "198.51.100.1 belongs to another endpoint")
	require.Empty(t, heir.Addrs(), "all or none")
	require.ErrorContains(t, heir.Add(netip.Addr{}), "zero Addr")

	heir.Remove(vip4.Addr()) // not its own
	require.Equal(t, 1, write(t, client, numbered(1)))
	require.Equal(t, []netip.Addr{vip4.Addr(), vip6.Addr()}, server.Addrs())

	server.Remove(netip.AddrFrom16(vip4.Addr().As16()))
	require.Zero(t, write(t, client, numbered(2)))
	require.NoError(t, heir.Add(vip4.Addr()))
	require.NoError(t, heir.Add(vip4.Addr()), "again is no mistake")
	require.Equal(t, 1, write(t, client, numbered(3)))
	require.Equal(t, 3, number(read(t, heir)[0]))

	heir.Close()
	require.NoError(t, server.Add(vip4.Addr()), "a closed endpoint owns nothing")
	require.ErrorIs(t, heir.Add(router4), os.ErrClosed)
	_, err := n.Join(dprtest.Link{}, vip4.Addr())
	require.ErrorContains(t, err, "belongs to another endpoint")
}

func TestDefault(t *testing.T) {
	n, client, server := pair(t, dprtest.Link{})
	internet := join(t, n, dprtest.Link{})
	n.SetDefault(internet)
	stray := dprtest.UDP(client4, netip.MustParseAddrPort("203.0.113.9:1"), dprtest.Options{})
	require.Equal(t, 2, write(t, client, stray, numbered(1)))
	require.Equal(t, [][]byte{stray}, read(t, internet))
	require.Len(t, read(t, server), 1)
	internet.Close()
	require.Zero(t, write(t, client, stray))
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, client, server := pair(t, dprtest.Link{Delay: time.Minute})
		errs := make(chan error)
		for range 3 {
			go func() {
				_, err := server.Read(dpr.NewPackets(1, 100))
				errs <- err
			}()
		}
		write(t, client, numbered(1))
		synctest.Wait()
		require.NoError(t, server.Close())
		require.NoError(t, server.Close())
		for range 3 {
			require.ErrorIs(t, <-errs, os.ErrClosed)
		}
		_, err := server.Write([]dpr.Packet{{}})
		require.ErrorIs(t, err, os.ErrClosed)
		require.Equal(t, dprtest.Stats{Discarded: 1}, server.Stats())
		require.Zero(t, write(t, client, numbered(2)), "nobody has the address")

		require.NoError(t, n.Close())
		_, err = client.Read(dpr.NewPackets(1, 100))
		require.ErrorIs(t, err, os.ErrClosed)
	})
}

func TestLinksAreValidated(t *testing.T) {
	n := dprtest.NewNetwork(1)
	e := join(t, n, dprtest.Link{})
	for want, link := range map[string]dprtest.Link{
		"Link.Loss 1.5":      {Loss: 1.5},
		"Link.Duplicate -1":  {Duplicate: -1},
		"Link.Delay -1s":     {Delay: -time.Second},
		"Link.Jitter -1s":    {Jitter: -time.Second},
		"Link.MTU 67":        {MTU: 67},
		"Link.MTU 65536":     {MTU: 65536},
		"Link.Queue -1":      {Queue: -1},
		"must be positive":   {Queue: -1},
		"must be from 0 to ": {Loss: -0.1},
	} {
		_, err := n.Join(link, client4.Addr())
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, e.SetLink(link), want)
	}
	join(t, n, dprtest.Link{}, client4.Addr()) // a refused endpoint left nothing behind
}

// Every packet that is sent is accounted for, while endpoints write, read, move
// and close at the same time.
func TestEveryPacketIsCounted(t *testing.T) {
	n := dprtest.NewNetwork(3)
	link := dprtest.Link{Loss: 0.1, Duplicate: 0.1, Jitter: time.Millisecond, Queue: 50}
	addrs := []netip.AddrPort{client4, vip4, netip.AddrPortFrom(router4, 1)}
	var ends []*dprtest.Endpoint
	var readers, writers sync.WaitGroup
	for _, a := range addrs {
		e := join(t, n, link, a.Addr())
		ends = append(ends, e)
		readers.Go(func() {
			batch := dpr.NewPackets(8, 100)
			for {
				if _, err := e.Read(batch); err != nil {
					return
				}
			}
		})
	}
	for i, e := range ends {
		for range 2 {
			writers.Go(func() {
				for k := range 2000 {
					pkt := dprtest.UDP(addrs[i], addrs[k%3], dprtest.Options{})
					e.Write([]dpr.Packet{{Buf: pkt, Len: len(pkt)}})
					if k%100 == i {
						e.Remove(addrs[i].Addr())
						e.Add(addrs[i].Addr())
					}
				}
			})
		}
	}
	writers.Wait()
	require.NoError(t, n.Close())
	readers.Wait()
	var in, out uint64
	for _, e := range ends {
		s := e.Stats()
		in += s.Sent + s.Duplicated
		out += s.Malformed + s.Offload + s.NoRoute + s.TooBig + s.Filtered + s.Lost + s.Received + s.QueueFull + s.Discarded
	}
	require.Equal(t, uint64(12000), ends[0].Stats().Sent+ends[1].Stats().Sent+ends[2].Stats().Sent)
	require.Equal(t, in, out)
}

func TestCarriesWithoutAllocation(t *testing.T) {
	_, client, server := pair(t, dprtest.Link{})
	pkt := numbered(1)
	out, in := []dpr.Packet{{Buf: pkt, Len: len(pkt)}}, dpr.NewPackets(4, 100)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		client.Write(out)
		server.Read(in)
	}))
}

// One goroutine writes and reads 64 packets of 1400 bytes at a time.
func BenchmarkNetwork(b *testing.B) {
	for name, link := range map[string]dprtest.Link{"direct": {}, "lossy": {Loss: 0.01, Duplicate: 0.01}} {
		b.Run(name, func(b *testing.B) {
			_, client, server := pair(b, link)
			pkt := dprtest.UDP(client4, vip4, dprtest.Options{Payload: make([]byte, 1372)})
			out, in := make([]dpr.Packet, 64), dpr.NewPackets(256, 1500)
			for i := range out {
				out[i] = dpr.Packet{Buf: pkt, Len: len(pkt)}
			}
			b.SetBytes(int64(len(out) * len(pkt)))
			for b.Loop() {
				client.Write(out)
				server.Read(in)
			}
			b.ReportMetric(float64(b.N*len(out))/b.Elapsed().Seconds()/1000, "kpps")
		})
	}
}
