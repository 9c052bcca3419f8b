package dpr

import "time"

// Late begins a Process: what it returns decides by what is known of services and peers
// now, whatever changes meanwhile.
func (e *Engine) Late(now time.Time) func([]Packet) {
	b := e.start(now)
	return func(pkts []Packet) {
		b.run(pkts)
		e.finish(b)
	}
}
