package gossip

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// lost remembers where hosts were that died without a word, to look for them there
// when a cut may have healed.
type lost struct {
	mu    sync.Mutex
	addrs map[netip.AddrPort]string // the member's name
}

// maxLost bounds the addresses; above, any one is forgotten.
const maxLost = 256

func (l *lost) add(a netip.AddrPort, name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.addrs == nil {
		l.addrs = map[netip.AddrPort]string{}
	}
	for old := range l.addrs {
		if len(l.addrs) < maxLost {
			break
		}
		delete(l.addrs, old)
	}
	l.addrs[a] = name
}

// found forgets an address at which there is a host again.
func (l *lost) found(a netip.AddrPort) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.addrs, a)
}

// left forgets a member whose word that it stops came after the news of its end.
func (l *lost) left(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.addrs, func(_ netip.AddrPort, n string) bool { return n == name })
}

// some returns up to n addresses at random.
func (l *lost) some(n int) (list []netip.AddrPort) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for a := range l.addrs {
		list = append(list, a)
	}
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list[:min(n, len(list))]
}

const (
	// firstSeek is the wait after the first try, doubled up to SeedInterval as long
	// as this host is alone.
	firstSeek = time.Second
	// maxSeeds and maxLostTargets bound a round of seeking. All are tried at once;
	// what does not answer takes streamTime.
	maxSeeds       = 16
	maxLostTargets = 4
)

// seek joins seeds and lost hosts that are no members, for ever, until the context
// is done.
func (g *Gossip) seek(ctx context.Context, list *memberlist.Memberlist) {
	wait := min(firstSeek, g.cfg.SeedInterval)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		g.join(ctx, list)
		if list.NumMembers() > 1 {
			wait = g.cfg.SeedInterval
		}
		timer.Reset(wait - wait/10 + rand.N(wait/5+1))
		wait = min(2*wait, g.cfg.SeedInterval)
	}
}

// join tries all targets at once and returns when each has answered or not.
func (g *Gossip) join(ctx context.Context, list *memberlist.Memberlist) {
	var trying sync.WaitGroup
	seeds, lost := g.targets(ctx, list)
	for _, a := range seeds {
		trying.Go(func() {
			if _, err := list.Join([]string{a.String()}); err != nil && ctx.Err() == nil {
				if first := errors.Unwrap(err); first != nil {
					err = first // of a list with one, in several lines
				}
				g.warn("join "+a.String(), "gossip: a seed does not answer; it is tried again", "addr", a, "err", err)
			}
		})
	}
	for _, a := range lost {
		trying.Go(func() { _, _ = list.Join([]string{a.String()}) }) // it may be gone for good
	}
	trying.Wait()
}

// targets returns the addresses of seeds and some of lost hosts that are no members
// now.
func (g *Gossip) targets(ctx context.Context, list *memberlist.Memberlist) (seeds, lost []netip.AddrPort) {
	known := map[netip.AddrPort]bool{g.cfg.Advertise: true}
	for _, n := range list.Members() {
		known[nodeAddr(n)] = true
	}
	unknown := func(a netip.AddrPort) bool {
		was := known[a]
		known[a] = true
		return !was
	}
	for _, seed := range *g.seeds.Load() {
		for _, a := range g.resolve(ctx, seed) {
			if unknown(a) && len(seeds) < maxSeeds {
				seeds = append(seeds, a)
			}
		}
	}
	for _, a := range g.lost.some(maxLostTargets) {
		if unknown(a) {
			lost = append(lost, a)
		}
	}
	return seeds, lost
}

// resolve returns the addresses of a seed, in random order.
func (g *Gossip) resolve(ctx context.Context, seed string) (addrs []netip.AddrPort) {
	if a, err := netip.ParseAddrPort(seed); err == nil {
		return []netip.AddrPort{netip.AddrPortFrom(a.Addr().Unmap(), a.Port())}
	}
	host, service, _ := net.SplitHostPort(seed) // withDefaults has seen it
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err == nil {
		var ips []netip.Addr
		ips, err = net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		for _, ip := range ips {
			addrs = append(addrs, netip.AddrPortFrom(ip.Unmap(), uint16(port)))
		}
	}
	if err != nil && ctx.Err() == nil {
		g.warn("name "+seed, "gossip: the address of a seed is not known; it is tried again", "seed", seed, "err", err)
	}
	rand.Shuffle(len(addrs), func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] })
	return addrs
}
