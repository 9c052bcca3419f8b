package gossip

import (
	"context"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/loadinfo"
)

func TestConfigErrors(t *testing.T) {
	good := func() Config {
		board := loadinfo.NewBoard(loadinfo.BoardConfig{})
		require.NoError(t, board.SetSelf(loadinfo.Self{ID: "h1"}))
		s := newNetwork().listen(addrOf(1))
		return Config{Board: board, Conn: s, Listener: s}
	}
	_, err := New(good())
	require.NoError(t, err)
	for _, seed := range []string{"10.0.0.2:1", "10.0.0.2:65535", "[2001:db8::1]:6083", "www.example.org:6083", "www.example.org:domain"} {
		cfg := good()
		cfg.Seeds = []string{seed}
		_, err := New(cfg)
		require.NoError(t, err, seed)
	}
	seed := func(s string) func(c *Config) { return func(c *Config) { c.Seeds = []string{"10.0.0.2:6083", s} } }
	at := func(s string) func(c *Config) { return func(c *Config) { c.Advertise = netip.MustParseAddrPort(s) } }
	for want, change := range map[string]func(c *Config){
		"Config.Board is nil":                    func(c *Config) { c.Board = nil },
		"call its SetSelf first":                 func(c *Config) { c.Board = loadinfo.NewBoard(loadinfo.BoardConfig{}) },
		"Config.Conn or":                         func(c *Config) { c.Conn = nil },
		"or Listener is nil":                     func(c *Config) { c.Listener = nil },
		"Config.MaxDatagram 1299":                func(c *Config) { c.MaxDatagram = 1299 },
		"Config.MaxDatagram 65001":               func(c *Config) { c.MaxDatagram = 65001 },
		"MinInterval 1s is above Period 500ms":   func(c *Config) { c.MinInterval = time.Second },
		"ProbeTimeout 2s is above ProbeInterval": func(c *Config) { c.ProbeTimeout = 2 * time.Second },
		"has 256 bytes":                          func(c *Config) { c.Cluster = strings.Repeat("x", 256) },
		`Config.Seeds: "10.0.0.2"`:               seed("10.0.0.2"),
		`Config.Seeds: ":6083"`:                  seed(":6083"),
		`Config.Seeds: "10.0.0.2:0"`:             seed("10.0.0.2:0"),
		`Config.Seeds: "10.0.0.2:65536"`:         seed("10.0.0.2:65536"),
		`Config.Seeds: "10.0.0.2:-1"`:            seed("10.0.0.2:-1"),
		`Config.Seeds: "0.0.0.0:6083"`:           seed("0.0.0.0:6083"),
		`Config.Seeds: "[::]:6083"`:              seed("[::]:6083"),
		`Config.Seeds: "224.0.0.1:6083"`:         seed("224.0.0.1:6083"),
		`Config.Seeds: "[fe80::1%eth0]:6083"`:    seed("[fe80::1%eth0]:6083"),
		`Config.Seeds: " 10.0.0.2:6083"`:         seed(" 10.0.0.2:6083"),
		"Config.Advertise 0.0.0.0:6083":          at("0.0.0.0:6083"),
		"Config.Advertise 10.0.0.2:0":            at("10.0.0.2:0"),
		"Config.Advertise 224.0.0.1:6083":        at("224.0.0.1:6083"),
		"Config.Advertise 255.255.255.255:6083":  at("255.255.255.255:6083"),
		"Config.Advertise [fe80::1%eth0]:6083":   at("[fe80::1%eth0]:6083"),
	} {
		cfg := good()
		change(&cfg)
		_, err := New(cfg)
		require.ErrorContains(t, err, want)
		require.True(t, strings.HasPrefix(err.Error(), "gossip: "))
	}
}

// The sockets of a Gossip are those of one Run.
func TestRunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := run(t, newNetwork(), 1, host{})
		pass(time.Second)
		var calls sync.WaitGroup
		for range 4 {
			calls.Go(func() { require.ErrorContains(t, h.g.Run(context.Background()), "Run was called already") })
		}
		calls.Wait()
		require.Contains(t, h.states(), "h1:up")
		h.stop()
		require.ErrorContains(t, h.g.Run(context.Background()), "Run was called already")
	})
}

// However seldom a host gossips, and whatever it waits for when it is told to stop, it has
// stopped a few seconds later.
func TestStopsSoon(t *testing.T) {
	for name, change := range map[string]func(c *Config){
		"as usual":         func(*Config) {},
		"little bandwidth": func(c *Config) { c.MaxRate = 100 },
		"rare gossip":      func(c *Config) { c.Interval = time.Hour },
		"a silent seed":    func(c *Config) { c.Seeds = []string{addrOf(9).String()} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				a, b := run(t, n, 1, host{change: change}), run(t, n, 2, host{change: change})
				pass(20*time.Second + 123*time.Millisecond)
				began := time.Now()
				b.stop()
				require.LessOrEqual(t, time.Since(began), 5*time.Second)
				a.stop()
				pass(time.Minute)
			})
		})
	}
}

// A cluster of another name is told of on both sides.
func TestOtherCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		a := run(t, n, 1, host{change: func(c *Config) { c.Cluster = "blue" }})
		b := run(t, n, 2, host{change: func(c *Config) { c.Cluster = "green" }})
		c := run(t, n, 3, host{})
		pass(20 * time.Second)
		for _, h := range []*station{a, b, c} {
			require.NotContains(t, h.states(), " ", "nobody but itself")
		}
		require.Contains(t, a.log.String(), "another cluster")
		require.Contains(t, a.log.String(), "10.0.0.2")
		require.Contains(t, a.log.String(), "10.0.0.3")
		require.NotZero(t, a.g.Stats().Malformed)
		require.Contains(t, b.log.String(), "a seed does not answer")
		require.NotContains(t, b.log.String(), `\n`, "in one line")
		require.Contains(t, b.log.String(), "its log says why")
		stopAll(a, b, c)
	})
}
