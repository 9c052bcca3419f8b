package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// cutTime is a flag since few have the time of a cut that is long for the timers, of
// which some are minutes long and not of the configuration:
//
//	go test ./examples/router -run TestFaults -v -timeout 1h -args -cut 10m
var cutTime = flag.Duration("cut", 0, "how long TestFaults cuts the network in two, at least; 0 is until both sides have seen it")

// agreeTime is how soon after a fault has ended all routers must see the same cluster.
const agreeTime = time.Minute

// A view is what a router knows of the hosts that are not down: their node addresses and
// states by names.
type view map[string]string

// A cluster is five routers, each a process of its own, beside nginx. Connections that
// concern the living ones only go on through all that befalls the last.
type cluster struct {
	*site
	t         *testing.T
	transport string
	nodes     map[string]netip.Addr // of the hosts of site, by their names
	ids       map[string]string     // what their routers call themselves, if they run
	keys      map[string]string
	conns     []*kept
}

func newCluster(t *testing.T, transport string) *cluster {
	c := &cluster{
		site: newSiteOf(t, "a", "b", "c", "d", "e"), t: t, transport: transport,
		nodes: make(map[string]netip.Addr), ids: make(map[string]string), keys: make(map[string]string),
	}
	for _, h := range c.hosts {
		c.nodes[h.Name()], c.keys[h.Name()] = h.Addr4(), key1
	}
	for _, h := range c.hosts {
		c.start(h, h.Name())
	}
	c.agree("at the start")
	c.pathsAreWell()
	c.conns = []*kept{c.keep(c.hosts[0], "b"), c.keep(c.hosts[2], "c"), c.keep(c.hosts[3], "d")}
	return c
}

const (
	key1 = "{id: 1, secret: 00112233445566778899aabbccddeeff}"
	key2 = "{id: 2, secret: ffeeddccbbaa99887766554433221100}"
)

// write writes the configuration of a host. All new connections of a go to others,
// those of the others stay.
func (c *cluster) write(h *siteHost) string {
	var reports []string
	for _, other := range c.hosts {
		reports = append(reports, netip.AddrPortFrom(c.nodes[other.Name()], 6082).String())
	}
	if c.transport == byGossip {
		reports = reports[:2]
	}
	weight := ", policy: stay"
	if h == c.hosts[0] {
		weight = ", weight: 0"
	}
	addr := c.nodes[h.Name()]
	return fmt.Sprintf("id: %s\naddr: %v\nservices: [{name: web, port: 80%s}]\ntransport: %s\nreport: [%s]\nperiod: 250ms\nkeys: [%s]\n",
		c.ids[h.Name()], addr, weight, c.transport, strings.Join(reports, ", "), c.keys[h.Name()])
}

func (c *cluster) start(h *siteHost, id string) {
	c.ids[h.Name()] = id
	h.run(c.write(h))
}

// reload gives a router other keys.
func (c *cluster) reload(h *siteHost, keys ...string) {
	c.keys[h.Name()] = strings.Join(keys, ", ")
	require.NoError(c.t, os.WriteFile(h.config, []byte(c.write(h)), 0o600))
	h.hangUp("success")
}

// kill ends a router as nothing can be caught.
func (c *cluster) kill(h *siteHost) {
	require.NoError(c.t, h.router.Process.Kill())
	_ = h.router.Wait()
	delete(c.ids, h.Name())
}

// expected is what all routers that run should see.
func (c *cluster) expected() view {
	v := make(view)
	for name, id := range c.ids {
		v[id] = netip.AddrPortFrom(c.nodes[name], 6080).String() + " up"
	}
	return v
}

// status asks a router.
func (h *siteHost) status() (s status, err error) {
	text, err := get(h.local, statusAt, "/status")
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal([]byte(text), &s)
}

// pathsAreWell waits until all hosts find that what they hand to others is answered.
func (c *cluster) pathsAreWell() {
	for _, h := range c.hosts {
		require.Eventually(c.t, func() bool {
			s, err := h.status()
			for _, paths := range s.Paths {
				err = errors.Join(err, well(paths))
			}
			return err == nil && len(s.Paths) == len(c.hosts)-1
		}, limit, 10*time.Millisecond, "the paths of %s", h.Name())
	}
}

func well(paths []path) error {
	for _, p := range paths {
		if !p.OK {
			return fmt.Errorf("%v: %s", p.Dialled, p.Why)
		}
	}
	return nil
}

// seen is what a router sees.
func (h *siteHost) seen() (view, error) {
	s, err := h.status()
	if err != nil {
		return nil, err
	}
	v := make(view)
	for _, m := range s.Members {
		if m.State != "down" {
			v[m.ID] = m.Node.String() + " " + m.State
		}
	}
	return v, nil
}

// agree waits until all routers that run see the same.
func (c *cluster) agree(what string) {
	c.t.Helper()
	c.sees(what, c.expected(), c.running()...)
}

func (c *cluster) running() (list []*siteHost) {
	for _, h := range c.hosts {
		if c.ids[h.Name()] != "" {
			list = append(list, h)
		}
	}
	return list
}

// sees waits until the routers see that, and then requires that nobody was disturbed.
func (c *cluster) sees(what string, want view, hosts ...*siteHost) {
	c.t.Helper()
	began := time.Now()
	for _, h := range hosts {
		require.Eventually(c.t, func() bool {
			v, err := h.seen()
			return err == nil && maps.Equal(v, want)
		}, agreeTime, 10*time.Millisecond, "%s: %s sees %v", what, h.Name(), want)
	}
	c.t.Logf("%-40s seen by all after %v", what, time.Since(began).Round(10*time.Millisecond))
	c.undisturbed(what)
}

func (c *cluster) undisturbed(what string) {
	c.t.Helper()
	for _, k := range c.conns {
		require.NoError(c.t, k.ask(), "%s: a connection of living hosts", what)
	}
}

// A kept connection goes on.
type kept struct {
	net.Conn
	in     *bufio.Reader
	served string
}

// keep dials a host until that one serves.
func (c *cluster) keep(h *siteHost, served string) (k *kept) {
	c.t.Helper()
	require.Eventually(c.t, func() bool {
		conn, err := c.client.DialContext(c.t.Context(), "tcp", netip.AddrPortFrom(h.Addr4(), 80).String())
		require.NoError(c.t, err)
		k = &kept{Conn: conn, in: bufio.NewReader(conn), served: served}
		if k.ask() == nil {
			return true
		}
		conn.Close()
		return false
	}, limit, time.Millisecond, "served by %s", served)
	c.t.Cleanup(func() { k.Close() })
	return k
}

// ask sends a request on the same connection.
func (k *kept) ask() error {
	if err := k.SetDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	if _, err := fmt.Fprint(k, "GET / HTTP/1.1\r\nHost: www\r\n\r\n"); err != nil {
		return err
	}
	res, err := http.ReadResponse(k.in, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	name, err := io.ReadAll(res.Body)
	if err == nil && string(name) != k.served {
		err = fmt.Errorf("served by %q, not %s", name, k.served)
	}
	return err
}

// mute has nothing of a host arrive at the others: it sends to a station that there is
// not. hear ends it.
func (c *cluster) mute(from *siteHost, to ...*siteHost) {
	for _, n := range c.neighbours(from, to) {
		require.NoError(c.t, from.Netlink().NeighSet(n))
	}
}

func (c *cluster) hear(from *siteHost, to ...*siteHost) {
	for _, n := range c.neighbours(from, to) {
		require.NoError(c.t, from.Netlink().NeighDel(n))
	}
}

func (c *cluster) neighbours(from *siteHost, to []*siteHost) (list []*netlink.Neigh) {
	route, err := from.Netlink().RouteGet(c.client.Addr4().AsSlice())
	require.NoError(c.t, err)
	for _, h := range to {
		list = append(list, &netlink.Neigh{
			LinkIndex: route[0].LinkIndex, State: netlink.NUD_PERMANENT, IP: c.nodes[h.Name()].AsSlice(),
			HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 0xee},
		})
	}
	return list
}

// Whatever befalls a host or the network between them, soon after it has ended all hosts
// see the same cluster again. No router was restarted for it, and no connection broke
// that the fault does not concern.
func TestFaults(t *testing.T) {
	for _, transport := range []string{byGossip, byBroadcast} {
		t.Run(transport, func(t *testing.T) {
			if transport == byBroadcast && testing.Short() {
				t.Skip("the other transport is enough for a short run")
			}
			c := newCluster(t, transport)
			c.killAndRestart()
			c.stopAndGoOn()
			c.cutOneWay()
			c.cutInTwo()
			c.newAddress()
			c.newName()
			c.rotateKeys()
		})
	}
}

func (c *cluster) killAndRestart() {
	e := c.hosts[4]
	c.kill(e)
	c.agree("killed")
	c.start(e, "e")
	c.agree("started again")
}

func (c *cluster) stopAndGoOn() {
	e := c.hosts[4]
	all := c.expected()
	require.NoError(c.t, e.router.Process.Signal(unix.SIGSTOP))
	ended := time.After(5 * time.Second)
	without := maps.Clone(all)
	delete(without, "e")
	c.sees("stopped", without, c.hosts[:4]...)
	<-ended
	require.NoError(c.t, e.router.Process.Signal(unix.SIGCONT))
	c.agree("goes on after 5 s")
}

func (c *cluster) cutOneWay() {
	e := c.hosts[4]
	without := c.expected()
	delete(without, "e")
	c.mute(e, c.hosts[:4]...)
	c.sees("not heard by the others", without, c.hosts[:4]...)
	c.hear(e, c.hosts[:4]...)
	c.agree("heard again")
}

func (c *cluster) cutInTwo() {
	two, three := c.hosts[:2], c.hosts[2:]
	ends := time.Now().Add(*cutTime)
	for _, h := range two {
		c.mute(h, three...)
	}
	for _, h := range three {
		c.mute(h, two...)
	}
	all := c.expected()
	ofTwo, ofThree := maps.Clone(all), maps.Clone(all)
	for name := range all {
		if slices.Contains([]string{"a", "b"}, name) {
			delete(ofThree, name)
		} else {
			delete(ofTwo, name)
		}
	}
	c.sees("cut in 2|3: the two", ofTwo, two...)
	c.sees("cut in 2|3: the three", ofThree, three...)
	for time.Now().Before(ends) {
		<-time.After(time.Second)
		c.undisturbed("while the network is cut") // nor idle for longer than their servers let them
	}
	for _, h := range two {
		c.hear(h, three...)
	}
	for _, h := range three {
		c.hear(h, two...)
	}
	c.agree("healed")
}

func (c *cluster) newAddress() {
	e := c.hosts[4]
	c.kill(e)
	addr := netip.MustParseAddr("10.2.0.25")
	route, err := e.Netlink().RouteGet(c.client.Addr4().AsSlice())
	require.NoError(c.t, err)
	link, err := e.Netlink().LinkByIndex(route[0].LinkIndex)
	require.NoError(c.t, err)
	require.NoError(c.t, e.Netlink().AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(24, 32)}}))
	c.nodes["e"] = addr
	for _, h := range c.hosts[:4] {
		c.reload(h, c.keys[h.Name()]) // with broadcast they must know where to send
	}
	c.start(e, "e")
	c.agree("the same name at a new address")
}

func (c *cluster) newName() {
	e := c.hosts[4]
	c.kill(e)
	c.start(e, "f")
	c.agree("a new name at the same address")
}

// rotateKeys changes the cluster's key while one host is down, which then comes back
// with the old one.
func (c *cluster) rotateKeys() {
	e := c.hosts[4]
	c.kill(e)
	for _, keys := range [][]string{{key1, key2}, {key2, key1}, {key2}} {
		for _, h := range c.hosts[:4] {
			c.reload(h, keys...)
		}
	}
	c.agree("another key")
	c.start(e, "f")
	unknown := func() float64 {
		m, err := c.hosts[0].metrics()
		require.NoError(c.t, err)
		return m[`carom_reports_received_total{result="unknown-key"}`]
	}
	require.Eventually(c.t, func() bool { return unknown() > 0 }, limit, 10*time.Millisecond, "the stranger is counted")
	delete(c.ids, "e")
	c.sees("a host with the old key", c.expected(), c.hosts[:4]...)
	c.ids["e"] = "f"
	c.reload(e, key1, key2)
	c.reload(e, key2, key1)
	c.agree("it has the new key")
}
