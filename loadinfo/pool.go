package loadinfo

import (
	"time"

	"github.com/carom-dpr/carom/lb"
)

// pool counts the hosts that serve one service and would take connections, this
// host among them, by whether they are heard. It is what keeps a bad network from
// emptying the cluster: silence is a host's fault only while most are heard.
type pool struct {
	heard  int // heard of late
	silent int // stale, and not dead
	fresh  int // in blackout
}

// doubt says that so many hosts fell silent at once that the network is to blame.
// Silent hosts then stay eligible: to give their share to the few that are heard
// would overload those, and most of the silent ones serve.
func (p pool) doubt() bool { return p.silent > p.heard }

// empty says that neither a host that is heard nor a silent one is left.
func (p pool) empty() bool { return p.heard+p.silent == 0 }

// flags says what a host's word and its state mean for new connections.
func (p pool) flags(word, state State) (f lb.Flags) {
	if word == Draining {
		f = lb.Draining
	}
	if word == Joining || state == Joining {
		f |= lb.Unhealthy // it does not serve yet
	}
	if state == Stale && !p.doubt() && !p.empty() {
		f |= lb.Stale
	}
	return f
}

// pool counts the hosts of one service.
func (b *Board) pool(id ServiceID, now time.Time) (p pool) {
	for _, rec := range b.order {
		if s := rec.report.service(id); s != nil {
			p.add(rec, s, now)
		}
	}
	if s := b.self.service(id); s != nil && !s.since.IsZero() {
		p.heard++
	}
	return p
}

// pools counts those of all.
func (b *Board) pools(now time.Time) map[ServiceID]pool {
	pools := make(map[ServiceID]pool, len(b.services))
	for _, rec := range b.order {
		for i := range rec.report.Services {
			s := &rec.report.Services[i]
			p := pools[s.ID]
			p.add(rec, s, now)
			pools[s.ID] = p
		}
	}
	for i := range b.self.services {
		if s := &b.self.services[i]; !s.since.IsZero() {
			p := pools[s.id]
			p.heard++
			pools[s.id] = p
		}
	}
	return pools
}

func (p *pool) add(rec *record, s *ServiceReport, now time.Time) {
	if rec.report.State != Up || !s.Healthy || s.Weight == 0 {
		return
	}
	switch rec.silence(now) {
	case Up:
		p.heard++
	case Stale:
		p.silent++
	case Joining:
		p.fresh++
	}
}

// limits are what a host's silence is measured by, and whether it is in blackout.
// They follow from its last report, so they are found once for each.
type limits struct {
	stale, down time.Duration
	blackout    bool
}

func (b *Board) limits(rec *record) limits {
	patience := b.patience(rec)
	times := func(d time.Duration) time.Duration { return time.Duration(patience * float64(d)) }
	return limits{
		stale: times(b.cfg.StaleAfter), down: times(b.cfg.DownAfter),
		blackout: b.cfg.Blackout > 0 &&
			(rec.times < blackoutReports || rec.heard.Sub(rec.since) < times(b.cfg.Blackout)),
	}
}

// patience is how many times the board's own silences it grants a host, whose
// period may be longer than its own. What a host says cannot keep it from being
// forgotten.
func (b *Board) patience(rec *record) float64 {
	most := float64(b.cfg.ForgetAfter) / float64(b.cfg.DownAfter)
	return min(max(float64(rec.report.Period)/float64(b.cfg.Period), 1), most)
}

// dead reports whether the host has been silent for so long, or was said to be
// dead, that others may have its name and address.
func (r *record) dead(now time.Time) bool {
	return !r.failed.IsZero() || age(r.heard, now) >= r.limits.down
}

func (r *record) stale(now time.Time) bool { return age(r.heard, now) >= r.limits.stale }

// blackoutReports is how often a host is heard in its blackout at least: by a
// detour, such as an exchange of all that hosts know, one report may come, or two.
const blackoutReports = 3

// silence judges a host by its silence alone: Up, Joining while it is in blackout,
// Stale or Down. In blackout there is no second chance: who falls silent in it is
// Down, and who came back from silence is Down until it is over.
func (r *record) silence(now time.Time) State {
	silent := age(r.heard, now)
	stale := silent >= r.limits.stale
	switch {
	case !r.failed.IsZero(), silent >= r.limits.down, r.limits.blackout && (r.back || stale):
		return Down
	case r.limits.blackout:
		return Joining
	case stale:
		return Stale
	}
	return Up
}

// stateIn is a host's state as far as one service is concerned: its own word,
// unless its silence says otherwise. Where nobody else is left, a host that would
// be in blackout is up, and where not even that is, those that are down are only
// stale: they may be dead, but there is none that is not.
func (b *Board) stateIn(p pool, rec *record, now time.Time) State {
	silence, word := rec.silence(now), rec.report.State
	switch {
	case silence == Joining && p.empty(), silence == Up:
		return word
	case silence == Joining:
		return max(word, Joining)
	case silence == Down && p.empty() && p.fresh == 0 && word == Up:
		return Stale
	}
	return silence
}

// stateAt is a host's state altogether: the best that it has in any service.
func (b *Board) stateAt(rec *record, pools map[ServiceID]pool, now time.Time) State {
	const none = Down + 1
	state := none
	for i := range rec.report.Services {
		state = min(state, b.stateIn(pools[rec.report.Services[i].ID], rec, now))
	}
	if state == none {
		return b.stateIn(pool{heard: 1}, rec, now)
	}
	return state
}
