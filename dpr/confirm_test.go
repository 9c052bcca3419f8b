package dpr_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr"
)

// A confirmer is a bench whose peers answer questions by what the test says is alive.
type confirmer struct {
	*bench
	alive map[netip.AddrPort]dpr.Life // by client; absent: gone
	mute  bool                        // answers get lost
	asked int
}

func newConfirmer(t *testing.T, cfg dpr.Config) *confirmer {
	cfg.Confirm = true
	c := &confirmer{bench: newBench(t, cfg), alive: make(map[netip.AddrPort]dpr.Life)}
	return c
}

// life makes time pass in steps of a tick, with questions answered.
func (c *confirmer) live(d time.Duration) {
	const step = 500 * time.Millisecond
	for end := c.now.Add(d); c.now.Before(end); {
		c.pass(min(step, end.Sub(c.now)))
		for _, q := range c.Questions(nil) {
			c.asked++
			life := c.alive[q.Client]
			if life == dpr.Unsaid {
				life = dpr.Gone
			}
			if !c.mute {
				c.Answer(&q, life, c.now)
			}
		}
	}
}

func clientPort(port int) netip.AddrPort { return netip.AddrPortFrom(client.Addr(), uint16(port)) }

// introduce has h2 answer a question, so that it is known to.
func (c *confirmer) introduce() {
	from := clientPort(9)
	c.alive[from] = dpr.Open
	c.from(tcpFrom(from, syn, 1, 0))
	c.live(2 * time.Second)
	c.from(tcpFrom(from, rst, 2, 0))
	c.live(11 * time.Second)
	require.Zero(c.t, c.flows())
	require.Zero(c.t, c.open("h2", "web"))
	delete(c.alive, from)
	c.asked = 0
}

func (c *confirmer) state(from netip.AddrPort) string {
	for f := range c.Flows(c.now) {
		if f.Client == from {
			return f.State.String()
		}
	}
	return "none"
}

func TestConfirmedFlowLivesAsLongAsItsSocket(t *testing.T) {
	for _, from := range []netip.AddrPort{client, client6} {
		c := newConfirmer(t, dpr.Config{})
		c.introduce()
		c.alive[from] = dpr.Open
		c.from(tcpFrom(from, syn, 1000, 0))
		c.requireForward(c.from(tcpFrom(from, ack, 1001, 0)), "h2")
		require.Equal(t, "unconfirmed", c.state(from))
		c.live(2 * time.Second)
		require.Equal(t, "established", c.state(from))
		require.Equal(t, 1, c.open("h2", "web"))
		c.asked = 0
		c.live(24 * time.Hour) // A29: no packet for a day, and the server still has it
		require.Equal(t, "established", c.state(from))
		require.Less(t, c.asked, 24*20, "it costs few questions")
		c.requireForward(c.from(tcpFrom(from, ack, 1001, 10)), "h2")

		delete(c.alive, from) // the server aborts, and its reset goes past us
		c.live(16 * time.Second)
		require.Zero(t, c.open("h2", "web"))
		require.Zero(t, c.Live("h2", "web").Load())
		c.live(11 * time.Second)
		require.Zero(t, c.flows())
	}
}

// A connection whose client is never silent is confirmed as soon as any other, and
// lives without being confirmed as long as it is busy.
func TestBusyFlowIsConfirmed(t *testing.T) {
	for _, life := range []dpr.Life{dpr.Open, dpr.Opening} {
		c := newConfirmer(t, dpr.Config{})
		c.introduce()
		c.alive[client] = life
		c.from(tcpFrom(client, syn, 1000, 0))
		for range 1500 { // five minutes
			c.requireForward(c.from(tcpFrom(client, ack, 1001, 0)), "h2")
			c.live(200 * time.Millisecond)
		}
		if life == dpr.Open {
			require.Equal(t, "established", c.state(client))
			require.Equal(t, 1, c.asked)
			continue
		}
		require.Equal(t, "unconfirmed", c.state(client))
		require.InDelta(t, 300/4, c.asked, 5)
		c.live(time.Minute)
		require.Equal(t, "none", c.state(client))
	}
}

// A flow that was busy and has ended does not come back because its peer falls silent.
func TestBusyFlowEndsThoughThePeerDoesNotAnswer(t *testing.T) {
	c := newConfirmer(t, dpr.Config{})
	c.introduce()
	c.mute = true
	c.from(tcpFrom(client, syn, 1000, 0))
	c.from(tcpFrom(client, ack, 1001, 0))
	c.live(2 * time.Second)
	require.NotZero(t, c.asked)
	c.from(tcpFrom(client, ack, 1001, 0))
	c.from(tcpFrom(client, finAck, 1001, 0))
	require.Equal(t, "closing", c.state(client))
	c.live(time.Minute)
	require.Equal(t, "closing", c.state(client))
	c.live(3*time.Minute + 16*time.Second)
	require.Equal(t, "none", c.state(client))
}

func TestBusyFlowOfAPeerThatDoesNotAnswer(t *testing.T) {
	c := newConfirmer(t, dpr.Config{})
	c.introduce()
	c.mute = true
	c.from(tcpFrom(client, syn, 1000, 0))
	for range 100 {
		c.from(tcpFrom(client, ack, 1001, 0))
		c.live(200 * time.Millisecond)
	}
	require.Equal(t, "established", c.state(client))
}

func TestA22RefusedConnectionLeavesAtOnce(t *testing.T) {
	c := newConfirmer(t, dpr.Config{})
	const flows = 4000
	for n := range flows {
		c.from(tcpFrom(clientPort(1000+n), syn, 7, 0)) // and the server's RST goes past us
	}
	require.Equal(t, flows, c.open("h2", "web"))
	c.live(2 * time.Second)
	require.Zero(t, c.open("h2", "web"))
	require.Zero(t, c.Live("h2", "web").Load(), "it is an end that a peer's report knows of")
	c.live(11 * time.Second)
	require.Zero(t, c.flows())
}

func TestUnconfirmedFlowLivesOneMinute(t *testing.T) {
	c := newConfirmer(t, dpr.Config{})
	c.introduce()
	c.alive[client] = dpr.Opening // the handshake never ends
	c.from(tcp(syn, 1000, 0))
	c.from(tcp(ack, 1001, 0))
	c.live(59 * time.Second)
	require.Equal(t, "unconfirmed", c.state(client))
	c.live(2 * time.Second)
	require.Equal(t, "none", c.state(client))
	require.Zero(t, c.open("h2", "web"))
}

// What a peer denies is brought back by its client, which knows better if the
// question was too early.
func TestDeniedFlowComesBack(t *testing.T) {
	tests := map[string]struct {
		before [][]byte
		packet []byte
		want   string
	}{
		"by the same SYN":            {[][]byte{tcp(syn, 1000, 0)}, tcp(syn, 1000, 0), "embryonic"},
		"by the handshake's end":     {[][]byte{tcp(syn, 1000, 0)}, tcp(ack, 1001, 0), "unconfirmed"},
		"by data":                    {[][]byte{tcp(syn, 1000, 0), tcp(ack, 1001, 0)}, tcp(ack, 1001, 5), "unconfirmed"},
		"not by a reset":             {[][]byte{tcp(syn, 1000, 0), tcp(ack, 1001, 0)}, tcp(rst, 1001, 0), "closed"},
		"not by a number out of way": {[][]byte{tcp(syn, 1000, 0), tcp(ack, 1001, 0)}, tcp(ack, 0x40000000, 5), "closed"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := newConfirmer(t, dpr.Config{})
			c.introduce()
			for _, p := range tt.before {
				c.from(p)
			}
			c.live(2 * time.Second)
			require.Equal(t, "closed", c.state(client))
			require.Zero(t, c.open("h2", "web"))
			c.choose("h3")
			c.requireForward(c.from(tt.packet), "h2") // A21: one host for the whole connection
			require.Equal(t, tt.want, c.state(client))
			counted := 1
			if tt.want == "closed" {
				counted = 0
			}
			require.Equal(t, counted, c.open("h2", "web"))
			require.Equal(t, int32(counted), c.Live("h2", "web").Load())
		})
	}
}

// A peer that never answers, such as one of an older release, is believed to have
// what its clients say, as if there were no confirmation; so is one that falls silent.
func TestPeerThatDoesNotAnswer(t *testing.T) {
	c := newConfirmer(t, dpr.Config{})
	c.mute = true
	c.from(tcp(syn, 1000, 0))
	c.from(tcp(ack, 1001, 0))
	require.Equal(t, "unconfirmed", c.state(client))
	c.live(time.Minute)
	require.Equal(t, "established", c.state(client), "nobody denies it")
	c.from(tcpFrom(clientPort(78), syn, 1, 0))
	c.from(tcpFrom(clientPort(78), ack, 2, 0))
	require.Equal(t, "established", c.state(clientPort(78)), "the peer is known to be silent")
	c.live(2 * time.Hour)
	require.Equal(t, "established", c.state(client))
	require.NotZero(t, c.asked, "it is asked all the same")
	c.live(6 * time.Minute)
	require.Equal(t, "none", c.state(client))

	c.mute = false
	c.introduce()
	c.from(tcp(syn, 1000, 0))
	c.from(tcp(ack, 1001, 0))
	require.Equal(t, "unconfirmed", c.state(client))
	c.mute = true
	c.live(61 * time.Second)
	require.Equal(t, "established", c.state(client), "a connection is not forgotten since its peer is silent")
	other := clientPort(77)
	c.from(tcpFrom(other, syn, 1, 0))
	c.from(tcpFrom(other, ack, 2, 0))
	require.Equal(t, "established", c.state(other))
}

// Half of the answers get lost.
func TestConfirmationSurvivesLoss(t *testing.T) {
	c := newConfirmer(t, dpr.Config{})
	c.introduce()
	const flows = 200
	for n := range flows {
		from := clientPort(1000 + n)
		if n%2 == 0 {
			c.alive[from] = dpr.Open
		}
		c.from(tcpFrom(from, syn, 1, 0))
		c.from(tcpFrom(from, ack, 2, 0))
	}
	for round := range 120 {
		c.mute = round%2 == 0
		c.live(500 * time.Millisecond)
	}
	require.Equal(t, flows/2, c.open("h2", "web"))
	c.mute = false
	c.live(30 * time.Second)
	require.Equal(t, flows/2, c.Stats().Flows[dpr.Established])
	require.Equal(t, flows/2, c.flows())
}

// A28: when the table is full of connections that blind SYNs and ACKs pretend, those
// that are confirmed stay.
func TestA28ConfirmedFlowsAreNeverEvicted(t *testing.T) {
	c := newConfirmer(t, dpr.Config{MaxFlows: 1000})
	c.introduce()
	const real = 500
	for n := range real {
		from := clientPort(1000 + n)
		c.alive[from] = dpr.Open
		c.from(tcpFrom(from, syn, 1, 0))
		c.from(tcpFrom(from, ack, 2, 0))
	}
	c.live(2 * time.Second)
	require.Equal(t, real, c.Stats().Flows[dpr.Established])
	for n := range 20_000 {
		forged := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), 999)
		c.from(tcpFrom(forged, syn, 1, 0))
		c.from(tcpFrom(forged, ack, 2, 0))
		if n%2000 == 0 {
			c.live(500 * time.Millisecond)
		}
	}
	require.Equal(t, real, c.Stats().Flows[dpr.Established])
	for n := range real {
		c.choose("h3")
		c.requireForward(c.from(tcpFrom(clientPort(1000+n), ack, 2, 1)), "h2")
	}
	c.live(2 * time.Minute)
	require.Equal(t, real, c.flows())
	require.Equal(t, real, c.open("h2", "web"))
}

// When nothing can make room, the oldest confirmed flows are asked about again.
func TestFullTableAsksAgain(t *testing.T) {
	c := newConfirmer(t, dpr.Config{MaxFlows: 100})
	c.introduce()
	for n := range 100 {
		c.alive[clientPort(1000+n)] = dpr.Open
		c.from(tcpFrom(clientPort(1000+n), syn, 1, 0))
		c.from(tcpFrom(clientPort(1000+n), ack, 2, 0))
	}
	c.live(40 * time.Second)
	require.Equal(t, 100, c.Stats().Flows[dpr.Established])
	c.alive = map[netip.AddrPort]dpr.Life{} // their servers lost them all, and the next question is due at 60 s
	for range 16 {
		c.from(tcpFrom(clientPort(9999), syn, 1, 0))
		c.live(time.Second)
	}
	require.NotZero(t, c.Stats().TableFull)
	require.Zero(t, c.Stats().Flows[dpr.Established])
}

func TestAnswersThatAreNotTrue(t *testing.T) {
	c := newConfirmer(t, dpr.Config{})
	c.introduce()
	c.alive[client] = dpr.Open
	c.from(tcp(syn, 1000, 0))
	c.from(tcp(ack, 1001, 0))
	c.live(2 * time.Second)
	q := dpr.Question{Peer: c.PeerID("h2"), Client: client, Dialled: vip}
	for name, change := range map[string]func(*dpr.Question){
		"another peer's":      func(q *dpr.Question) { q.Peer = c.PeerID("h3") },
		"no peer's":           func(q *dpr.Question) { q.Peer = 77 },
		"no flow's":           func(q *dpr.Question) { q.Client = client6 },
		"no service's":        func(q *dpr.Question) { q.Dialled = netip.AddrPortFrom(vip.Addr(), 81) },
		"of no address":       func(q *dpr.Question) { q.Dialled = netip.AddrPort{} },
		"a datagram's":        func(q *dpr.Question) { q.Dialled = dns },
		"about nobody at all": func(q *dpr.Question) { *q = dpr.Question{} },
	} {
		lie := q
		change(&lie)
		c.Answer(&lie, dpr.Gone, c.now)
		require.Equal(t, "established", c.state(client), name)
	}
	c.Answer(&q, dpr.Unsaid, c.now)
	require.Equal(t, "established", c.state(client))
	c.Answer(&q, dpr.Gone, c.now)
	c.Answer(&q, dpr.Gone, c.now)
	require.Zero(t, c.Live("h2", "web").Load(), "counted once")
	c.Answer(&q, dpr.Open, c.now)
	require.Equal(t, "closed", c.state(client), "a late answer")
}

func TestQuestionsAreBounded(t *testing.T) {
	c := newConfirmer(t, dpr.Config{})
	for n := range 10_000 {
		c.from(tcpFrom(netip.AddrPortFrom(client.Addr(), uint16(1000+n)), syn, 1, 0))
	}
	c.pass(1100 * time.Millisecond)
	require.Len(t, c.Questions(nil), 4096)
	require.Empty(t, c.Questions(nil))
}
