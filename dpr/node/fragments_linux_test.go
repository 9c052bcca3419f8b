package node_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/dpr/hostnet"
	"github.com/carom-dpr/carom/dpr/node"
	"github.com/carom-dpr/carom/internal/lab"
)

// echoPort is the UDP port that tests of datagrams ask.
const echoPort = 7

// echoUDP answers each datagram with its bytes in reverse, from the address that it
// came to, until the test ends.
func (h *host) echoUDP(t *testing.T) {
	t.Helper()
	network, level, option := "udp4", unix.SOL_IP, unix.IP_PKTINFO
	if h.addr.Is6() {
		network, level, option = "udp6", unix.SOL_IPV6, unix.IPV6_RECVPKTINFO
	}
	c, err := h.ListenPacket(network, fmt.Sprintf(":%d", echoPort))
	require.NoError(t, err)
	conn := c.(*net.UDPConn)
	raw, err := conn.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), level, option, 1)
		if err == nil && h.addr.Is6() {
			err = unix.SetsockoptInt(int(fd), level, unix.IPV6_FREEBIND, 1)
		}
	}))
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		in, control := make([]byte, dpr.MaxPacket), make([]byte, 256)
		for {
			n, c, _, from, err := conn.ReadMsgUDPAddrPort(in, control)
			if err != nil {
				return
			}
			// An error is that of an earlier answer that was too long for its path.
			_, _, _ = conn.WriteMsgUDPAddrPort(reversed(in[:n]), sourceOf(control[:c]), from)
		}
	}()
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
}

func reversed(b []byte) []byte {
	r := make([]byte, len(b))
	for i := range b {
		r[len(b)-1-i] = b[i]
	}
	return r
}

// newEchoWorld is a world whose host a sends all datagrams to b. Neither ever sees
// the other's answers.
func newEchoWorld(t *testing.T, v6 bool, mode dpr.ReplyMode) *world {
	t.Helper()
	w := newWorld(t, v6, "a", "b")
	for name, to := range map[string]string{"a": "b", "b": ""} {
		h := w.hosts[name]
		if name == "b" {
			h.echoUDP(t)
		}
		r := h.role(to)
		cfg := r.config()
		cfg.Services = []node.Service{{Name: "echo", Proto: dpr.UDP, Port: echoPort, Policy: r.policy(), Reply: mode}}
		h.open(t, cfg)
	}
	w.await(t)
	// What a knows of b is in force once b has answered; an answer is the question
	// in reverse. A host without a server refuses.
	eventually(t, "b answers", func() bool {
		c := w.dialEcho(t)
		if _, err := c.Write([]byte("ab")); err != nil {
			return false
		}
		_ = c.SetDeadline(time.Now().Add(limit / 10))
		answer := make([]byte, 2)
		_, err := c.Read(answer)
		return err == nil && string(answer) == "ba"
	})
	return w
}

// mustAsk sends a datagram, by the function, and returns the answer, which must come
// from the address that was asked: c is connected.
func mustAsk(t *testing.T, c net.Conn, send func()) []byte {
	t.Helper()
	require.NoError(t, c.SetDeadline(time.Now().Add(limit)))
	send()
	answer := make([]byte, dpr.MaxPacket)
	n, err := c.Read(answer)
	require.NoError(t, err)
	return answer[:n]
}

func (w *world) dialEcho(t *testing.T) net.Conn {
	t.Helper()
	c, err := w.client.DialContext(t.Context(), "udp", w.hosts["a"].at(echoPort).String())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// A datagram of 3,000 bytes reaches a host that it is redirected to in whatever order
// its fragments come, and so does its answer.
func TestFragmentedDatagram(t *testing.T) {
	eachWayBack(t, "redirected", func(t *testing.T, v6 bool, mode dpr.ReplyMode) {
		w := newEchoWorld(t, v6, mode)
		before := w.hosts["a"].node.Status().Engine.Services["echo"].RedirectedOut
		c := w.dialEcho(t)
		src := c.LocalAddr().(*net.UDPAddr).AddrPort()
		raw := newSender(t, w.client)
		id := uint16(0)
		for _, mtu := range map[bool][]int{false: {1500, 1400}, true: {1400, 1280}}[v6] {
			for _, order := range [][3]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
				id++
				want := make([]byte, 3000)
				_, err := io.ReadFull(stream(3000), want)
				require.NoError(t, err)
				want[0], want[1] = byte(id), byte(id>>8)
				whole := dprtest.UDP(src, w.hosts["a"].at(echoPort), dprtest.Options{ID: id, Payload: want})
				frags := dprtest.Fragment(whole, mtu)
				require.Len(t, frags, len(order))
				got := mustAsk(t, c, func() {
					for _, i := range order {
						raw.send(t, frags[i])
					}
				})
				require.True(t, bytes.Equal(reversed(want), got), "MTU %d, order %v: %d bytes", mtu, order, len(got))
			}
		}
		a, b := w.hosts["a"].node.Status(), w.hosts["b"].node.Status()
		t.Logf("entry host %v, serving host %v", a.Engine.Verdicts, b.Engine.Verdicts)
		require.Zero(t, a.Engine.Drops[dpr.FragmentLost]+b.Engine.Drops[dpr.FragmentLost])
		require.NotZero(t, a.Engine.Verdicts[dpr.Hold])
		require.Equal(t, before+1, a.Engine.Services["echo"].RedirectedOut, "one flow")
	})
}

// sender sends packets of its own making from a host.
type sender struct{ *hostnet.RawSender }

func newSender(t *testing.T, h *lab.Host) (s sender) {
	t.Helper()
	require.NoError(t, h.Do(func() (err error) {
		s.RawSender, err = hostnet.NewRawSender()
		return err
	}))
	t.Cleanup(func() { s.Close() })
	return s
}

func (s sender) send(t *testing.T, packet []byte) {
	t.Helper()
	n, err := s.Write([]dpr.Packet{{Buf: packet, Len: len(packet)}})
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

// The kernel's own datagrams come through, too. IPv4's without DF are fragmented for
// the tunnel; others are too long for it at first, until the entry host has said so.
func TestLongDatagrams(t *testing.T) {
	for name, tt := range map[string]struct {
		v6, df bool
		size   int
	}{
		"IPv4, DF, one packet": {false, true, ethernet - 28},
		"IPv4, one packet":     {false, false, ethernet - 28},
		"IPv4, fragments":      {false, false, 3000},
		"IPv4, very many":      {false, false, 40_000},
		"IPv6, one packet":     {true, true, ethernet - 48},
		"IPv6, fragments":      {true, true, 3000},
		"IPv6, very many":      {true, true, 40_000},
	} {
		for _, mode := range waysBack {
			t.Run(name+", "+mode.String(), func(t *testing.T) {
				w := newEchoWorld(t, tt.v6, mode)
				c := w.dialEcho(t)
				if !tt.v6 {
					setDF(t, c.(*net.UDPConn), tt.df)
				}
				want := make([]byte, tt.size)
				_, err := io.ReadFull(stream(int64(tt.size)), want)
				require.NoError(t, err)
				entry := w.hosts["a"]
				if tt.df {
					before := tooBigs(t, w.client, tt.v6) // a host without a server may have refused
					_, err := c.Write(want)
					require.NoError(t, err)
					eventually(t, "the client is told", func() bool { return tooBigs(t, w.client, tt.v6) > before })
					require.Equal(t, entry.node.Status().Engine.Errors, tooBigs(t, w.client, tt.v6)-before)
					require.ErrorIs(t, pendingError(t, c.(*net.UDPConn)), unix.EMSGSIZE)
					if !tt.v6 { // the application has to send less
						_, err := c.Write(want)
						require.ErrorIs(t, err, unix.EMSGSIZE)
						want = want[:entry.node.Status().MTU["b"]-28]
					}
				}
				errors := entry.node.Status().Engine.Errors
				got := mustAsk(t, c, func() {
					_, err := c.Write(want)
					require.NoError(t, err)
				})
				require.True(t, bytes.Equal(reversed(want), got), "%d bytes", len(got))
				require.Equal(t, errors, entry.node.Status().Engine.Errors, "told once")
			})
		}
	}
}

// pendingError returns the error that the kernel has for a socket, and clears it.
func pendingError(t *testing.T, c *net.UDPConn) error {
	t.Helper()
	raw, err := c.SyscallConn()
	require.NoError(t, err)
	var errno int
	require.NoError(t, raw.Control(func(fd uintptr) {
		errno, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
	}))
	require.NoError(t, err)
	return unix.Errno(errno)
}

// setDF has the kernel set the DF bit of a socket's packets, or leave it clear.
func setDF(t *testing.T, c *net.UDPConn, df bool) {
	t.Helper()
	mode := unix.IP_PMTUDISC_DONT
	if df {
		mode = unix.IP_PMTUDISC_DO
	}
	raw, err := c.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_MTU_DISCOVER, mode)
	}))
	require.NoError(t, err)
}
