package rrdns

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/loadinfo"
)

const zone = "www.example.org."

func v4(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}) }
func v6(i int) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0x20, 1: 1, 2: 0xd, 3: 0xb8, 15: byte(i)})
}

// board has n hosts, h0 itself and the rest its peers, each with an address of
// either family.
func board(t testing.TB, n int, change func(i int, r *loadinfo.Report)) *loadinfo.Board {
	t.Helper()
	return boardOf(t, loadinfo.DefaultPeriod, n, change)
}

// boardOf is board for reports that are judged by another period, such as an hour for
// tests in true time.
func boardOf(t testing.TB, period time.Duration, n int, change func(i int, r *loadinfo.Report)) *loadinfo.Board {
	t.Helper()
	b := loadinfo.NewBoard(loadinfo.BoardConfig{Period: period, Blackout: loadinfo.NoBlackout})
	require.NoError(t, b.SetSelf(loadinfo.Self{ID: "h0", Boot: 1, Dialled: []netip.Addr{v4(0), v6(0)}}))
	hear(t, b, n, 1, change)
	return b
}

// hear gives the board a report of each peer.
func hear(t testing.TB, b *loadinfo.Board, n int, seq uint64, change func(i int, r *loadinfo.Report)) {
	t.Helper()
	for i := 1; i < n; i++ {
		r := loadinfo.Report{
			ID: fmt.Sprint("h", i), Boot: 1, Seq: seq, Weight: 100, Resources: loadinfo.Unknown,
			Dialled: []netip.Addr{v4(i), v6(i)},
		}
		if change != nil {
			change(i, &r)
		}
		require.NoError(t, b.Receive(r, time.Now()))
	}
}

// writer takes the reply of a query.
type writer struct {
	dns.ResponseWriter
	from net.Addr
	got  *dns.Msg
}

func (w *writer) RemoteAddr() net.Addr      { return w.from }
func (w *writer) WriteMsg(m *dns.Msg) error { w.got = m; return nil }

var (
	byUDP = &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 5300}
	byTCP = &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 5300}
)

func ask(t testing.TB, s *Server, q *dns.Msg, from net.Addr) *dns.Msg {
	t.Helper()
	w := &writer{from: from}
	s.ServeDNS(w, q)
	if w.got != nil {
		_, err := w.got.Pack()
		require.NoError(t, err)
	}
	return w.got
}

func question(name string, kind uint16) *dns.Msg {
	return new(dns.Msg).SetQuestion(name, kind)
}

func addrs(m *dns.Msg) (list []string) {
	for _, rr := range m.Answer {
		switch rr := rr.(type) {
		case *dns.A:
			list = append(list, rr.A.String())
		case *dns.AAAA:
			list = append(list, rr.AAAA.String())
		}
	}
	slices.Sort(list)
	return list
}

func server(t testing.TB, cfg Config) *Server {
	t.Helper()
	if cfg.Name == "" {
		cfg.Name = "www.Example.org"
	}
	s, err := New(cfg)
	require.NoError(t, err)
	return s
}

func TestAnswers(t *testing.T) {
	s := server(t, Config{Board: board(t, 3, nil)})
	for _, tt := range []struct {
		name   string
		kind   uint16
		rcode  int
		answer string
	}{
		{zone, dns.TypeA, 0, "198.51.100.0 198.51.100.1 198.51.100.2"},
		{"wWw.eXample.ORG.", dns.TypeA, 0, "198.51.100.0 198.51.100.1 198.51.100.2"},
		{zone, dns.TypeAAAA, 0, "2001:db8:: 2001:db8::1 2001:db8::2"},
		{zone, dns.TypeNS, 0, "ns.www.example.org."},
		{zone, dns.TypeSOA, 0, "ns.www.example.org. hostmaster.www.example.org. 1 1200 180 1209600 5"},
		{zone, dns.TypeANY, 0, `"RFC8482" ""`},
		{zone, dns.TypeMX, 0, ""},
		{"ns." + zone, dns.TypeA, 0, "198.51.100.0"},
		{"NS." + zone, dns.TypeAAAA, 0, "2001:db8::"},
		{"ns." + zone, dns.TypeTXT, 0, ""},
		{"h1." + zone, dns.TypeA, dns.RcodeNameError, ""},
		{"example.org.", dns.TypeA, dns.RcodeRefused, ""},
		{"notwww.example.org.", dns.TypeA, dns.RcodeRefused, ""},
		{".", dns.TypeNS, dns.RcodeRefused, ""},
		{zone, dns.TypeAXFR, dns.RcodeRefused, ""},
	} {
		t.Run(fmt.Sprint(tt.name, dns.TypeToString[tt.kind]), func(t *testing.T) {
			m := ask(t, s, question(tt.name, tt.kind), byUDP)
			require.Equal(t, tt.rcode, m.Rcode)
			var got []string
			for _, rr := range m.Answer {
				got = append(got, strings.TrimPrefix(rr.String(), rr.Header().String()))
				require.Equal(t, uint32(5), rr.Header().Ttl)
			}
			slices.Sort(got)
			require.Equal(t, tt.answer, strings.Join(got, " "))
			require.Equal(t, tt.rcode != dns.RcodeRefused, m.Authoritative)
			if tt.answer == "" && m.Authoritative {
				require.Len(t, m.Ns, 1, "SOA says how long there is nothing")
			}
			require.Equal(t, tt.name, m.Question[0].Name, "as it was spelled")
		})
	}
	ns := ask(t, s, question(zone, dns.TypeNS), byUDP)
	require.Len(t, ns.Extra, 2, "with its addresses")
	require.Equal(t, Stats{Answered: 9, Empty: 3, Refused: 4}, s.Stats())
}

func TestOddQueries(t *testing.T) {
	s := server(t, Config{Board: board(t, 3, nil)})
	update := new(dns.Msg)
	update.SetUpdate(zone)
	two := question(zone, dns.TypeA)
	two.Question = append(two.Question, two.Question[0])
	none := new(dns.Msg)
	chaos := question(zone, dns.TypeA)
	chaos.Question[0].Qclass = dns.ClassCHAOS
	badVersion := question(zone, dns.TypeA)
	badVersion.SetEdns0(4096, false)
	badVersion.IsEdns0().SetVersion(1)
	for want, q := range map[int]*dns.Msg{
		dns.RcodeNotImplemented: update, dns.RcodeFormatError: two, dns.RcodeRefused: chaos, dns.RcodeBadVers: badVersion,
	} {
		m := ask(t, s, q, byUDP)
		require.Equal(t, want, m.Rcode)
		require.Empty(t, m.Answer)
	}
	require.Equal(t, dns.RcodeFormatError, ask(t, s, none, byUDP).Rcode)
	twoOptions := question(zone, dns.TypeA)
	twoOptions.SetEdns0(1232, false)
	twoOptions.Extra = append(twoOptions.Extra, twoOptions.Extra[0])
	require.Equal(t, dns.RcodeFormatError, ask(t, s, twoOptions, byUDP).Rcode)
	require.Equal(t, Stats{Refused: 1, Invalid: 5}, s.Stats())
}

// A set of records holds none twice, however often an address is dialled, and by whomever.
func TestNoRecordTwice(t *testing.T) {
	b := board(t, 4, func(i int, r *loadinfo.Report) { r.Dialled = []netip.Addr{v4(1), v4(1), v6(1)} })
	require.NoError(t, b.SetSelf(loadinfo.Self{
		ID: "h0", Boot: 1, Dialled: []netip.Addr{v4(0), v4(0), netip.AddrFrom16(v4(0).As16()), v6(0), v6(0)},
	}))
	s := server(t, Config{Board: b, Weighted: true})
	var first [2]int
	for range 2000 {
		m := ask(t, s, question(zone, dns.TypeA), byTCP)
		require.Len(t, m.Answer, 2)
		first[m.Answer[0].(*dns.A).A[3]]++
	}
	require.InDelta(t, 1500, first[1], 150, "three hosts of four, eight deviations")
	require.Len(t, ask(t, s, question(zone, dns.TypeAAAA), byTCP).Answer, 2)
	require.Len(t, ask(t, s, question("ns."+zone, dns.TypeA), byTCP).Answer, 1)
	require.Len(t, ask(t, s, question(zone, dns.TypeNS), byTCP).Extra, 2)
}

// The longest name that there may be leaves room for those under it: all that the server
// answers can be packed.
func TestLongestName(t *testing.T) {
	label := strings.Repeat("a", 63) + "."
	longest := label + label + label + strings.Repeat("b", 254-len("hostmaster.")-3*64-1) + "."
	s, err := New(Config{Board: board(t, 3, nil), Name: longest})
	require.NoError(t, err)
	for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeNS, dns.TypeSOA, dns.TypeMX, dns.TypeANY} {
		require.Zero(t, ask(t, s, question(longest, kind), byUDP).Rcode)
	}
	_, err = New(Config{Board: board(t, 3, nil), Name: "b" + longest[:63] + "." + longest[64:]})
	require.Error(t, err)
	_, err = New(Config{Board: board(t, 3, nil), Name: longest[:len(longest)-1] + "b"})
	require.ErrorContains(t, err, "is 1 bytes too long")
}

func TestSizes(t *testing.T) {
	s := server(t, Config{Board: board(t, 200, nil), Max: 200})
	q := question(zone, dns.TypeA)
	m := ask(t, s, q, byUDP)
	require.True(t, m.Truncated)
	require.LessOrEqual(t, m.Len(), dns.MinMsgSize)
	require.Nil(t, m.IsEdns0())
	m = ask(t, s, q, byTCP)
	require.False(t, m.Truncated)
	require.Len(t, m.Answer, 200)
	for asked, want := range map[uint16]int{0: 512, 100: 512, 600: 600, 65535: ednsSize} {
		q := question(zone, dns.TypeA)
		q.SetEdns0(asked, false)
		m := ask(t, s, q, byUDP)
		require.True(t, m.Truncated)
		require.LessOrEqual(t, m.Len(), want)
		require.Greater(t, m.Len(), want-40)
		require.Equal(t, uint16(ednsSize), m.IsEdns0().UDPSize())
	}
	small := server(t, Config{Board: board(t, 200, nil)})
	for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA} {
		m := ask(t, small, question(zone, kind), byUDP)
		require.Len(t, m.Answer, 8)
		require.False(t, m.Truncated, "eight fit")
		require.Len(t, slices.Compact(addrs(m)), 8, "and differ")
	}
}

func TestWhoIsNamed(t *testing.T) {
	for _, tt := range []struct {
		name   string
		self   loadinfo.State
		change func(i int, r *loadinfo.Report)
		after  time.Duration
		want   string
	}{
		{"all are up", loadinfo.Up, nil, 0, "0 1 2 3"},
		{"one drains", loadinfo.Up, func(i int, r *loadinfo.Report) {
			if i == 2 {
				r.State = loadinfo.Draining
			}
		}, 0, "0 1 3"},
		{"one joins, one has no weight", loadinfo.Up, func(i int, r *loadinfo.Report) {
			if i == 2 {
				r.State = loadinfo.Joining
			} else if i == 3 {
				r.Weight = 0
			}
		}, 0, "0 1"},
		{"peers are down", loadinfo.Up, nil, time.Minute, "0"},
		{"this host drains and no peer is heard", loadinfo.Draining, nil, 2 * time.Second, "1 2 3"},
		{"nobody is up yet", loadinfo.Joining, func(_ int, r *loadinfo.Report) { r.State = loadinfo.Joining }, 0, "0 1 2 3"},
		{"everybody drains", loadinfo.Draining, func(_ int, r *loadinfo.Report) { r.State = loadinfo.Draining }, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := board(t, 4, tt.change)
				b.SetState(tt.self)
				s := server(t, Config{Board: b})
				<-time.After(tt.after)
				m := ask(t, s, question(zone, dns.TypeA), byUDP)
				var want []string
				for _, i := range strings.Fields(tt.want) {
					want = append(want, "198.51.100."+i)
				}
				require.Equal(t, want, addrs(m))
				if want == nil {
					require.Equal(t, dns.RcodeServerFailure, m.Rcode)
					require.Empty(t, m.Ns, "nothing to keep")
				}
			})
		})
	}
}

// A host that is gone is named by nobody after detection and one TTL: after
// detection, since answers are no older than a tenth of a second.
func TestGoneWithinDetection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := board(t, 3, nil)
		s := server(t, Config{Board: b})
		names := func() string { return strings.Join(addrs(ask(t, s, question(zone, dns.TypeA), byTCP)), " ") }
		require.Equal(t, "198.51.100.0 198.51.100.1 198.51.100.2", names())
		hear(t, b, 2, 2, nil)
		for seq := uint64(3); strings.Contains(names(), "100.2"); seq++ {
			<-time.After(100 * time.Millisecond)
			hear(t, b, 2, seq, nil)
			require.Less(t, seq, uint64(3+17), "three periods and a tenth of a second")
		}
		require.Equal(t, "198.51.100.0 198.51.100.1", names())
		b.SetState(loadinfo.Draining)
		<-time.After(viewAge)
		require.Equal(t, "198.51.100.1", names())
	})
}

// A cache is a resolver that keeps an answer as long as it may.
type cache struct {
	answer []string
	until  time.Time
}

func (c *cache) ask(t *testing.T, s *Server) []string {
	t.Helper()
	if now := time.Now(); !now.Before(c.until) {
		m := ask(t, s, question(zone, dns.TypeA), byTCP)
		require.NotEmpty(t, m.Answer)
		c.answer = addrs(m)
		for i, rr := range m.Answer {
			end := now.Add(time.Duration(rr.Header().Ttl) * time.Second)
			if i == 0 || end.Before(c.until) {
				c.until = end
			}
		}
	}
	return c.answer
}

// Whatever the moment at which a resolver last asked, a host that is dead or drains is
// gone from its answers within one TTL and the time that the board takes to know.
func TestGoneWithinTTLAndDetection(t *testing.T) {
	const ttl, step, caches = 2 * time.Second, 10 * time.Millisecond, 20
	for name, tt := range map[string]struct {
		state    loadinfo.State // of the last report
		detected time.Duration
	}{
		"dead":   {loadinfo.Up, 3 * loadinfo.DefaultPeriod},
		"drains": {loadinfo.Draining, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := board(t, 3, nil)
				s := server(t, Config{Board: b, TTL: ttl})
				resolvers := make([]cache, caches)
				for i := range resolvers { // they ask one after another, in the course of a TTL
					require.Contains(t, resolvers[i].ask(t, s), v4(2).String())
					<-time.After(ttl / caches)
					hear(t, b, 3, uint64(2+i), nil)
				}
				hear(t, b, 3, 100, func(i int, r *loadinfo.Report) {
					if i == 2 {
						r.State = tt.state
					}
				})
				began, last := time.Now(), time.Duration(0)
				for n := range 1000 {
					if n%20 == 0 {
						hear(t, b, 2, uint64(101+n), nil) // of the others
					}
					for i := range resolvers {
						if slices.Contains(resolvers[i].ask(t, s), v4(2).String()) {
							last = time.Since(began)
						}
					}
					<-time.After(step)
				}
				require.LessOrEqual(t, last, tt.detected+viewAge+ttl)
				require.Greater(t, last, tt.detected+ttl*9/10-viewAge, "some resolver asked just before it was known")
			})
		})
	}
}

func TestNoAddressOfTheFamily(t *testing.T) {
	b := loadinfo.NewBoard(loadinfo.BoardConfig{})
	require.NoError(t, b.SetSelf(loadinfo.Self{ID: "h0", Dialled: []netip.Addr{v4(1)}}))
	m := ask(t, server(t, Config{Board: b}), question(zone, dns.TypeAAAA), byUDP)
	require.Equal(t, dns.RcodeSuccess, m.Rcode)
	require.Empty(t, m.Answer)
	require.Len(t, m.Ns, 1)
}

// chiSquare compares counts with shares of their sum.
func chiSquare(counts map[string]int, share func(addr string) float64) (x float64) {
	sum := 0
	for _, n := range counts {
		sum += n
	}
	for addr, n := range counts {
		want := share(addr) * float64(sum)
		x += (float64(n) - want) * (float64(n) - want) / want
	}
	return x
}

func TestSpread(t *testing.T) {
	const hosts, queries = 10, 1000
	weight := func(i int, r *loadinfo.Report) { r.Weight = uint16(10 * i) } // and 100 of h0
	for name, tt := range map[string]struct {
		cfg   Config
		share func(addr string) float64
	}{
		"alike":   {Config{}, func(string) float64 { return 1. / hosts }},
		"limited": {Config{Max: 1}, func(string) float64 { return 1. / hosts }},
		"weighted": {Config{Weighted: true, Max: 2}, func(a string) float64 {
			i := netip.MustParseAddr(a).As4()[3]
			if i == 0 {
				return 100. / 550
			}
			return float64(i) * 10 / 550
		}},
	} {
		t.Run(name, func(t *testing.T) {
			tt.cfg.Board, tt.cfg.Rate = board(t, hosts, weight), 1_000_000
			s := server(t, tt.cfg)
			firsts := map[string]int{}
			for range queries {
				m := ask(t, s, question(zone, dns.TypeA), byUDP)
				firsts[m.Answer[0].(*dns.A).A.String()]++
			}
			require.Len(t, firsts, hosts)
			// 9 degrees of freedom: above 33.7 once in 10,000 runs.
			require.Less(t, chiSquare(firsts, tt.share), 33.7, firsts)
		})
	}
}

func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := server(t, Config{Board: board(t, 3, nil), Rate: 10})
		count := func(n int, from net.Addr) (answered, short, silent int) {
			for range n {
				switch m := ask(t, s, question(zone, dns.TypeA), from); {
				case m == nil:
					silent++
				case m.Truncated:
					short++
				default:
					answered++
				}
			}
			return answered, short, silent
		}
		flood := &net.UDPAddr{IP: net.IPv4(203, 0, 113, 7)}
		answered, short, silent := count(1000, flood)
		require.InDelta(t, 20, answered, 1, "two seconds' worth")
		require.InDelta(t, short, silent, 1)
		answered, _, _ = count(5, byUDP)
		require.Equal(t, 5, answered, "another network")
		answered, _, _ = count(5, &net.TCPAddr{IP: flood.IP})
		require.Equal(t, 5, answered, "by TCP")
		<-time.After(time.Second)
		answered, _, _ = count(1000, &net.UDPAddr{IP: net.IPv4(203, 0, 113, 99)})
		require.InDelta(t, 10, answered, 1, "the same network")
		require.InDelta(t, 980+990, s.Stats().Limited, 2)
	})
}

func TestConfigErrors(t *testing.T) {
	good := func() Config { return Config{Board: loadinfo.NewBoard(loadinfo.BoardConfig{}), Name: "a.example"} }
	_, err := New(good())
	require.NoError(t, err)
	for want, change := range map[string]func(c *Config){
		"Config.Board":                      func(c *Config) { c.Board = nil },
		`Config.Name: "" is not`:            func(c *Config) { c.Name = "" },
		`Config.Name: "." is not`:           func(c *Config) { c.Name = "." },
		`Config.Name: "a..b" is not`:        func(c *Config) { c.Name = "a..b" },
		`Config.NameServers: "x..y" is not`: func(c *Config) { c.NameServers = []string{"x..y"} },
		`Config.Hostmaster: "x..y" is not`:  func(c *Config) { c.Hostmaster = "x..y" },
		`"192.0.2.1" is an address`:         func(c *Config) { c.Name = "192.0.2.1" },
		`"http://a.example/" is not`:        func(c *Config) { c.Name = "http://a.example/" },
		`"a.example:53" is not`:             func(c *Config) { c.Name = "a.example:53" },
		`"bücher.example" is not`:           func(c *Config) { c.Name = "bücher.example" },
		`"10.0.0.1" is an address`:          func(c *Config) { c.NameServers = []string{"10.0.0.1"} },
		`"ns1.a.example." is under`:         func(c *Config) { c.NameServers = []string{"ns1.A.example"} },
		`"ns.b.example." is there twice`:    func(c *Config) { c.NameServers = []string{"ns.b.example", "NS.b.example."} },
		"a dot in place of the @":           func(c *Config) { c.Hostmaster = "me@a.example" },
		"Config.TTL 500ms":                  func(c *Config) { c.TTL = time.Second / 2 },
		"Config.Max -1":                     func(c *Config) { c.Max = -1 },
		"Config.Rate -1":                    func(c *Config) { c.Rate = -1 },
	} {
		cfg := good()
		change(&cfg)
		_, err := New(cfg)
		require.ErrorContains(t, err, want)
	}
	_, _, err = Listen(netip.MustParseAddrPort("192.0.2.1:53"))
	require.ErrorContains(t, err, "listen on 192.0.2.1:53")
}

// FuzzServe gives the server what a datagram may hold.
func FuzzServe(f *testing.F) {
	for _, q := range []*dns.Msg{question(zone, dns.TypeA), question(".", dns.TypeNS), question("ns."+zone, dns.TypeANY)} {
		q.SetEdns0(1232, true)
		b, err := q.Pack()
		require.NoError(f, err)
		f.Add(b)
	}
	s := server(f, Config{Board: boardOf(f, time.Hour, 50, nil), Rate: 1_000_000})
	f.Fuzz(func(t *testing.T, b []byte) {
		q := new(dns.Msg)
		if q.Unpack(b) != nil {
			return
		}
		if m := ask(t, s, q, byUDP); m != nil {
			require.LessOrEqual(t, m.Len(), ednsSize)
			require.True(t, m.Response)
			require.Equal(t, q.Id, m.Id)
		}
	})
}

func BenchmarkServeDNS(b *testing.B) {
	for _, cfg := range []Config{{}, {Weighted: true}} {
		b.Run(fmt.Sprintf("hosts=100/weighted=%v", cfg.Weighted), func(b *testing.B) {
			cfg.Board, cfg.Rate = boardOf(b, time.Hour, 100, nil), 1_000_000_000
			s := server(b, cfg)
			q := question(zone, dns.TypeA)
			b.ReportAllocs()
			for b.Loop() {
				w := &writer{from: byUDP}
				s.ServeDNS(w, q)
				_, _ = w.got.Pack()
			}
		})
	}
}
