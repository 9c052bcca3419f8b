package confirm_test

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/confirm"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/lb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var vip = netip.MustParseAddrPort("198.51.100.1:80")

// toPeer is a policy that hands everything to the second host.
type toPeer struct{}

func (toPeer) Build(*lb.Snapshot) lb.Picker          { return toPeer{} }
func (toPeer) Pick(lb.Flow, time.Duration) lb.Choice { return lb.Choice{Do: lb.Send, Host: 1} }

// world is an entry host and the host that it hands everything to, with a network in
// between whose messages the test can count, change and lose.
type world struct {
	t        *testing.T
	engine   *dpr.Engine
	entry    *confirm.Confirmer
	serving  *confirm.Confirmer
	lives    map[netip.AddrPort]dpr.Life // by client
	cannot   error                       // look at sockets
	lose     func(message []byte) bool
	mu       sync.Mutex // over lose
	messages atomic.Int64
}

const (
	entryAtServing = dpr.PeerID(77)
)

func newWorld(t *testing.T) *world {
	w := &world{t: t, lives: make(map[netip.AddrPort]dpr.Life), lose: func([]byte) bool { return false }}
	var err error
	w.engine, err = dpr.New(dpr.Config{
		Confirm:  true,
		Services: []dpr.Service{{Name: "web", Proto: dpr.TCP, Port: 80, Addrs: []netip.Addr{vip.Addr()}}},
	})
	require.NoError(t, err)
	require.NoError(t, w.engine.SetPeers([]dpr.Peer{{ID: "h2"}}))
	require.NoError(t, w.engine.SetSnapshot("web", toPeer{}, &lb.Snapshot{
		Hosts: []lb.Host{{ID: "h1", Weight: 1, Flags: lb.Local}, {ID: "h2", Weight: 1}},
	}))
	served, err := dpr.New(dpr.Config{Confirm: true, Services: []dpr.Service{}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, errors.Join(w.engine.Close(), served.Close())) })

	h2 := w.engine.PeerID("h2")
	w.entry, err = confirm.New(confirm.Config{Engine: w.engine, Send: func(to dpr.PeerID, b []byte) error {
		require.Equal(t, h2, to)
		return w.carry(w.serving, entryAtServing, b)
	}})
	require.NoError(t, err)
	w.serving, err = confirm.New(confirm.Config{
		Engine: served,
		Send: func(to dpr.PeerID, b []byte) error {
			require.Equal(t, entryAtServing, to)
			return w.carry(w.entry, h2, b)
		},
		Lives: func(flows []dpr.Question, lives []dpr.Life) error {
			for i, f := range flows {
				require.Equal(t, vip, f.Dialled)
				if lives[i] = w.lives[f.Client]; lives[i] == dpr.Unsaid {
					lives[i] = dpr.Gone
				}
			}
			return w.cannot
		},
	})
	require.NoError(t, err)
	return w
}

func (w *world) carry(to *confirm.Confirmer, from dpr.PeerID, b []byte) error {
	w.messages.Add(1)
	w.mu.Lock()
	lost := w.lose(b)
	w.mu.Unlock()
	if !lost {
		to.Receive(from, b)
		clear(b) // the bytes are the sender's again
	}
	return nil
}

// run lets d pass with both hosts at work.
func (w *world) run(d time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	done := make(chan error, 2)
	go func() { done <- w.entry.Run(ctx) }()
	go func() { done <- w.serving.Run(ctx) }()
	for tick := time.NewTicker(100 * time.Millisecond); ctx.Err() == nil; {
		select {
		case now := <-tick.C:
			w.engine.Tick(now)
		case <-ctx.Done():
			tick.Stop()
		}
	}
	require.NoError(w.t, <-done)
	require.NoError(w.t, <-done)
}

func from(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(n >> 8)}), uint16(1000+n&0xff))
}

// open opens connections as their clients do, of which every other one is real.
func (w *world) open(n int) {
	for i := range n {
		if i%2 == 0 {
			w.lives[from(i)] = dpr.Open
		}
		for seq, flags := range []dprtest.Flags{dprtest.SYN, dprtest.ACK} {
			p := dpr.NewPackets(1, 100)
			p[0].Len = copy(p[0].Buf[p[0].Off:], dprtest.TCP(from(i), vip, dprtest.Options{Flags: flags, Seq: uint32(seq)}))
			w.engine.Process(p, time.Now())
			require.Equal(w.t, dpr.Forward, p[0].Verdict)
		}
	}
}

func TestConnectionsAreConfirmed(t *testing.T) {
	for name, lose := range map[string]func(*int) bool{
		"nothing gets lost":      func(*int) bool { return false },
		"every third message":    func(n *int) bool { *n++; return *n%3 == 0 },
		"a whole second of them": func(n *int) bool { *n++; return *n < 20 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				count := 0
				w.lose = func([]byte) bool { return lose(&count) }
				const flows = 1000
				w.open(flows)
				w.run(65 * time.Second)
				require.Equal(t, flows/2, w.engine.Stats().Flows[dpr.Established])
				require.Equal(t, flows/2, w.engine.Stats().Open["h2"]["web"])
				w.lives = nil
				w.run(time.Hour)
				require.Zero(t, w.engine.Stats().Open["h2"]["web"])
				require.Less(t, w.messages.Load(), int64(500))
				asked := w.entry.Stats()
				require.GreaterOrEqual(t, asked.Gone, uint64(flows), "each of them once")
				require.Greater(t, asked.Told, asked.Gone, "some were there first")
				require.GreaterOrEqual(t, asked.Asked, asked.Told)
			})
		})
	}
}

// A host that cannot look at its sockets does not answer, and nothing is believed.
func TestNoAnswerWithoutSockets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.cannot = errors.New("no sockets")
		w.open(10)
		w.run(3 * time.Second)
		require.Equal(t, 10, w.engine.Stats().Open["h2"]["web"])
		require.Zero(t, w.entry.Stats().Told)
		require.NotZero(t, w.serving.Stats().Dropped)
	})
}

func TestWhatIsNoMessageChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h2 := w.engine.PeerID("h2")
		var question []byte
		w.lose = func(b []byte) bool { question = append([]byte(nil), b...); return true }
		w.open(4)
		w.run(2 * time.Second)
		require.NotEmpty(t, question)
		answer := append([]byte{2}, question[1:9]...)
		for name, m := range map[string]struct {
			from dpr.PeerID
			b    []byte
		}{
			"nothing":               {h2, nil},
			"half a head":           {h2, answer[:8]},
			"another kind":          {h2, append([]byte{3}, answer[1:]...)},
			"too few lives":         {h2, answer},
			"too many lives":        {h2, append(answer, 0xff, 0xff)},
			"nobody asked":          {h2, append([]byte{2, 1, 2, 3, 4, 5, 6, 7, 8}, 0xff)},
			"somebody else":         {h2 + 1, append(answer, 0xff)},
			"a question, shortened": {h2, question[:len(question)-1]},
			"a question":            {h2, question}, // the entry host cannot answer
		} {
			before := w.entry.Stats().Dropped
			w.entry.Receive(m.from, m.b)
			w.run(10 * time.Millisecond)
			require.Equal(t, before+1, w.entry.Stats().Dropped, name)
			require.Equal(t, 4, w.engine.Stats().Open["h2"]["web"], name)
		}
		w.entry.Receive(h2, append(answer, 0xff))
		w.run(10 * time.Millisecond)
		require.Zero(t, w.engine.Stats().Open["h2"]["web"])
		before := w.entry.Stats().Dropped
		w.entry.Receive(h2, append(answer, 0xff)) // once
		w.run(10 * time.Millisecond)
		require.Equal(t, before+1, w.entry.Stats().Dropped)
	})
}

func TestInboxIsBounded(t *testing.T) {
	w := newWorld(t)
	for range 1000 {
		w.entry.Receive(1, []byte("x"))
	}
	require.Equal(t, uint64(1000-256), w.entry.Stats().Dropped)
}

func TestNewRefuses(t *testing.T) {
	e := &dpr.Engine{}
	send := func(dpr.PeerID, []byte) error { return nil }
	for want, cfg := range map[string]confirm.Config{
		"Engine":     {Send: send},
		"Send":       {Engine: e},
		"MaxMessage": {Engine: e, Send: send, MaxMessage: 40},
	} {
		_, err := confirm.New(cfg)
		require.ErrorContains(t, err, want)
	}
}
