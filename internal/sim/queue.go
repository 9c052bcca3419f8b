package sim

import "time"

// An event happens at a time; arg is a host, a connection or a message, as kind
// says.
type event struct {
	at   time.Duration
	kind kind
	arg  int32
}

type kind uint8

const (
	arrive  kind = iota // a connection comes
	reach               // a redirected connection reaches its host
	finish              // a connection is served
	share               // the first connection of a host that shares is served
	report              // a host reports; everybody: all do
	deliver             // a message arrives
	script              // an Event of the scenario
	sample              // a point of the series
)

// everybody is the arg of a report of all hosts.
const everybody = -1

// queue is a heap of events with four children to a node, which is half as deep as
// one with two and stays within a cache line per level. Events of one time come
// out in an order that depends on nothing but what went in.
type queue []event

func (q *queue) push(e event) {
	h := append(*q, e)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 4
		if h[up].at <= e.at {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = e
	*q = h
}

// pop removes the next event; there must be one.
func (q *queue) pop() event {
	h := *q
	top, last := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	*q = h
	if len(h) > 0 {
		h.sink(last)
	}
	return top
}

// sink puts e where the root has gone.
func (q queue) sink(e event) {
	i := 0
	for {
		first := 4*i + 1
		if first >= len(q) {
			break
		}
		least := first
		for c := first + 1; c < min(first+4, len(q)); c++ {
			if q[c].at < q[least].at {
				least = c
			}
		}
		if q[least].at >= e.at {
			break
		}
		q[i] = q[least]
		i = least
	}
	q[i] = e
}
