package node

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/gue"
	"github.com/carom-dpr/carom/dpr/hostnet"
	"github.com/carom-dpr/carom/dpr/ipip"
	"github.com/carom-dpr/carom/dpr/tun"
	"github.com/carom-dpr/carom/loadinfo"
	"github.com/carom-dpr/carom/loadinfo/sockmeter"
)

// Open makes a node of this host: it creates a TUN interface, captures the
// services' packets, opens the tunnel and the socket for reports, and counts
// connections in the kernel. It needs CAP_NET_ADMIN and CAP_BPF (on some systems
// CAP_SYS_ADMIN); a hostnet.Lack in the error names what is missing. CAP_NET_RAW is
// only missed in the log. If Open fails nothing on the host has changed. Call Run,
// which also undoes what Open did.
func Open(cfg Config) (*Node, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	l := &linux{cfg: cfg}
	if err := l.open(); err != nil {
		return nil, errors.Join(err, l.host.unwire(), l.host.close(), hostnet.Probe())
	}
	l.warnUnsuited()
	return New(cfg, l.host)
}

// linux is the host of a node while it is being opened.
type linux struct {
	cfg  Config
	host Host
	net  *hostnet.Net
}

func (l *linux) open() error {
	for _, step := range []func() error{l.openTunnel, l.openReports, l.openMeter, l.openNet} {
		if err := step(); err != nil {
			return fmt.Errorf("node: %w", err)
		}
	}
	return nil
}

// openTunnel opens the sockets of the tunnels.
func (l *linux) openTunnel() error {
	ifi, err := interfaceOf(l.cfg.Interface, l.cfg.Addr)
	if err != nil {
		return err
	}
	var take func(dpr.PeerID, []byte) // set before anything is read
	u, err := gue.Open(gue.Config{
		Listen:  []netip.AddrPort{netip.AddrPortFrom(l.cfg.Addr, l.cfg.TunnelPort)},
		Keys:    tunnelKeys(l.cfg.Keys),
		Queues:  l.cfg.Queues,
		Control: func(from dpr.PeerID, message []byte) { take(from, message) },
		Log:     l.cfg.Logger,
	})
	if err != nil {
		return fmt.Errorf("TunnelPort %d: %w", l.cfg.TunnelPort, err)
	}
	t := &tunnels{gue: u, port: l.cfg.TunnelPort}
	err = l.openIPIP(t)
	l.join(t)
	l.host.Close = t.close
	if err != nil {
		return err
	}
	l.host.RouteMTU = t.routeMTU
	l.host.MTU, l.host.PathMTU, l.host.SetPeers = ifi.MTU-l.overhead(), t.mtu, t.setPeers
	l.host.SetKeys = func(keys []loadinfo.Key) error { return u.SetKeys(tunnelKeys(keys)...) }
	l.host.Tunnel = t.stats
	l.host.Control = u.Control
	l.host.TakeControl = func(f func(dpr.PeerID, []byte)) { take = f }
	return nil
}

func tunnelStats(s gue.Stats) TunnelStats {
	t := TunnelStats{
		Sent: s.Sent, Received: s.Received,
		ControlsSent: s.ControlsSent, ControlsReceived: s.ControlsReceived,
		Dropped: make(map[string]uint64),
	}
	for why := gue.OK + 1; why < gue.NumReasons; why++ {
		t.Dropped[why.String()] = s.Dropped[why]
	}
	return t
}

// overhead is what the tunnel adds to each packet that this host receives.
func (l *linux) overhead() int {
	if l.cfg.Method == IPIP {
		return ipip.Overhead(l.cfg.Addr.Is6())
	}
	return gue.Overhead(l.cfg.Addr.Is6(), len(l.cfg.Keys) > 0)
}

func tunnelKeys(keys []loadinfo.Key) []gue.Key {
	list := make([]gue.Key, len(keys))
	for i, k := range keys {
		list[i] = gue.Key{ID: k.ID, Secret: tunnelSecret(k.Secret)}
	}
	return list
}

// tunnelSecret derives the tunnel's key from the cluster's.
func tunnelSecret(secret []byte) (key [16]byte) {
	sum := sha256.Sum256(append([]byte("carom tunnel key\x00"), secret...))
	copy(key[:], sum[:])
	return key
}

// interfaceOf returns the interface with the name, or with the address if there is
// no name.
func interfaceOf(name string, addr netip.Addr) (*net.Interface, error) {
	if name != "" {
		ifi, err := net.InterfaceByName(name)
		if err != nil {
			return nil, fmt.Errorf("Interface %q: %w: give one of this host's, or none for the one with Addr", name, err)
		}
		return ifi, nil
	}
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for i := range all {
		addrs, err := all[i].Addrs()
		if err == nil && slices.ContainsFunc(addrs, func(a net.Addr) bool { return isAddr(a, addr) }) {
			return &all[i], nil
		}
	}
	return nil, fmt.Errorf("Addr %v is on no interface of this host: give one of its own addresses", addr)
}

func isAddr(a net.Addr, addr netip.Addr) bool {
	n, ok := a.(*net.IPNet)
	if !ok {
		return false
	}
	ip, _ := netip.AddrFromSlice(n.IP)
	return ip.Unmap() == addr
}

func (l *linux) openReports() error {
	if l.cfg.Transport != nil {
		return nil // it brings its own
	}
	conn, err := loadinfo.Listen(netip.AddrPortFrom(reportAddr(l.cfg.Addr), l.cfg.ReportPort))
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("ReportPort %d: %w: another process has this port, stop it or choose another", l.cfg.ReportPort, err)
	}
	if err != nil {
		return err
	}
	l.host.Reports = conn
	return nil
}

// reportAddr is where reports are received: on all addresses, since a socket bound
// to one does not hear broadcasts.
func reportAddr(addr netip.Addr) netip.Addr {
	if addr.Is6() {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// openMeter has the kernel count connections.
func (l *linux) openMeter() error {
	m, err := sockmeter.Open(sockmeter.Config{Services: metered(l.endpoints()), Logger: l.cfg.Logger})
	if err != nil {
		return err
	}
	l.host.Sockets = func(service string) dpr.Sockets {
		return dpr.Sockets{Live: m.Counter(service), Opened: m.Opened(service)}
	}
	l.host.Listening = m.Listening
	look, err := openLookout(l.endpoints())
	if err != nil {
		return errors.Join(err, m.Close())
	}
	l.host.Lives = look.lives
	l.host.Abort = func(dialled []netip.Addr) (int, error) {
		rewritten, err := l.net.Rewritten(dialled)
		n, abortErr := look.abort(dialled, rewritten)
		return n, errors.Join(err, abortErr)
	}
	l.host.SetServices = func(list []dpr.Service) error {
		if err := l.checkInterfaces(list); err != nil {
			return err
		}
		if err := m.SetServices(metered(list)); err != nil {
			return err
		}
		look.setServices(list)
		return l.net.SetServices(captured(list))
	}
	tunnelClose := l.host.Close
	l.host.Run, l.host.Close = m.Run, func() error { return errors.Join(look.diag.Close(), m.Close(), tunnelClose()) }
	return nil
}

// openNet creates the TUN and wires the host to it.
func (l *linux) openNet() error {
	t, err := tun.Open(tun.Config{Queues: l.cfg.Queues, Log: l.cfg.Logger})
	if err != nil {
		return err
	}
	for _, q := range t.Queues {
		l.host.Devices = append(l.host.Devices, q)
	}
	if l.net, err = hostnet.Open(hostnet.Config{
		TUN:        t.Name,
		Interfaces: l.cfg.Interfaces,
		Services:   captured(l.endpoints()),
		Overhead:   l.overhead(),
		SYNRate:    l.cfg.SYNRate,
		ByRouting:  l.cfg.CaptureByRouting,
		Log:        l.cfg.Logger,
	}); err != nil {
		return err
	}
	l.host.TrackLocal = l.net.ByRouting()
	l.host.SetAliases = l.net.SetAliases
	l.host.Beat = func(time.Time) { l.net.Beat() }
	l.host.Capture = l.net.Stats
	l.host.Unwire = l.net.Close
	return errors.Join(l.openReplies(), l.openAnswers())
}

// openAnswers opens what hears the answers to probes. A node does without where it
// must, as openReplies says.
func (l *linux) openAnswers() error {
	if l.cfg.NoPathCheck || l.host.Replies == nil {
		return nil
	}
	for _, dialled := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		answers, err := l.net.OpenAnswers(l.cfg.client(dialled))
		if err != nil {
			return err
		}
		l.host.Answers = append(l.host.Answers, answers)
	}
	return nil
}

// openReplies opens the sockets that the engine's own packets leave by. A node does
// without where it must.
func (l *linux) openReplies() error {
	meterRun, meterClose := l.host.Run, l.host.Close
	l.host.Run = func(ctx context.Context) error { return both(ctx, meterRun, l.net.Run) }
	raw, err := hostnet.NewRawSender()
	if errors.Is(err, unix.EPERM) {
		l.cfg.Logger.Warn("ICMP errors and resets of the engine's own are not sent, nor answers that peers tunnel back, and paths to peers are not probed; all else works", "err", err)
		return nil
	}
	if err != nil {
		return err
	}
	l.host.Replies = raw
	l.host.OnTooBig = func(tell func(*dpr.Packet, int)) { raw.TooBig = tell }
	l.host.Close = func() error { return errors.Join(raw.Close(), meterClose()) }
	return nil
}

// both runs two parts until both have ended; the first error ends the other.
func both(ctx context.Context, a, b func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	second := make(chan error, 1)
	go func() {
		defer cancel()
		second <- b(ctx)
	}()
	first := a(ctx)
	cancel()
	return errors.Join(first, <-second)
}
