package main

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carom-dpr/carom/lb"
)

// sampleMask says which decisions are timed: those of one flow in 16, told by the
// flow's hash, so that choosing them costs nothing and no state is shared. Two
// readings of the clock take about as long as a decision.
const sampleMask = 1<<4 - 1

// timed is a policy whose decisions are timed now and then.
type timed struct {
	lb.Policy
	seconds prometheus.Observer
}

func (t timed) Build(s *lb.Snapshot) lb.Picker { return timedPicker{t.Policy.Build(s), t.seconds} }

type timedPicker struct {
	lb.Picker
	seconds prometheus.Observer
}

func (t timedPicker) Pick(f lb.Flow, now time.Duration) lb.Choice {
	if f.Conn&sampleMask != 0 {
		return t.Picker.Pick(f, now)
	}
	began := time.Now()
	c := t.Picker.Pick(f, now)
	t.seconds.Observe(time.Since(began).Seconds())
	return c
}

// keptPolicy is a policy in use, and what it was made from.
type keptPolicy struct {
	spec   string
	policy lb.Policy
}

// keep replaces the policies of the settings by those in use where nothing changed,
// since some have a memory, and has all of them timed.
func (s *settings) keep(inUse map[string]keptPolicy, seconds prometheus.Observer) map[string]keptPolicy {
	next := make(map[string]keptPolicy)
	for i := range s.Services {
		service := &s.Services[i]
		kept, known := inUse[service.Name]
		if spec := s.policies[service.Name]; !known || kept.spec != spec {
			policy := service.Policy
			if policy == nil {
				policy = lb.HomeOrOther{}
			}
			kept = keptPolicy{spec, timed{policy, seconds}}
		}
		next[service.Name] = kept
		service.Policy = kept.policy
	}
	return next
}
