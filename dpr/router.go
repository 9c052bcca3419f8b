package dpr

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/carom-dpr/carom/internal/beat"
)

// A Router reads packets from devices, has an engine judge them, and writes them
// where the verdicts say. Set the fields, then call Run once.
type Router struct {
	// Engine judges the packets. Required.
	Engine *Engine
	// Devices are the queues of the device that leads to this host's kernel;
	// Uplinks are those that lead to the peers. Each is read by a goroutine of its
	// own. What a queue delivers is written to the queue of the same number on the
	// other side, or to that number modulo the queues there. At least one Device
	// is required; without Uplinks, packets that should be forwarded are dropped.
	// Run closes all of them.
	Devices, Uplinks []Device
	// Replies sends what leaves this host as a packet of its own: what the engine
	// answers itself, ICMP errors and resets, and what is to be transmitted. It must
	// be safe for concurrent use, and take super-frames and partial checksums. Nil
	// drops them.
	Replies Writer
	// Beat, if not nil, is called four times a second as long as the
	// router works, for whoever must know that it does.
	Beat func(now time.Time)
	// BatchSize is how many packets are read at once. Default 64.
	BatchSize int
	// PacketSize is the longest packet that a Device or Uplink delivers, in bytes.
	// Default MaxPacket, which super-frames need.
	PacketSize int
}

const (
	defaultBatch = maxBatch
	// tickPeriod is short against every timeout and against the 500 ms after which
	// a capture program takes a silent router for dead.
	tickPeriod = beat.Period
)

// Run moves packets until ctx is done, which is no error, or a device fails. Then
// it closes all devices and returns when the last goroutine has ended.
func (r *Router) Run(ctx context.Context) error {
	if err := r.validate(); err != nil {
		return err
	}
	working, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, devices := range [][]Device{r.Devices, r.Uplinks} {
		for i, d := range devices {
			wg.Go(func() {
				if err := r.loop(d, r.paths(i)); ctx.Err() == nil { // who stops may take the devices away too
					cancel(err)
				}
			})
		}
	}
	r.tick(working)
	r.close()
	wg.Wait()
	if err := context.Cause(working); err != context.Cause(ctx) && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

func (r *Router) validate() error {
	switch {
	case r.Engine == nil:
		return errors.New("dpr: Router.Engine is nil: give it an engine")
	case len(r.Devices) == 0:
		return errors.New("dpr: Router.Devices is empty: give it at least one device")
	case r.BatchSize < 0 || r.PacketSize < 0:
		return fmt.Errorf("dpr: Router.BatchSize %d, PacketSize %d: must not be negative", r.BatchSize, r.PacketSize)
	}
	if r.BatchSize == 0 {
		r.BatchSize = defaultBatch
	}
	if r.PacketSize == 0 {
		r.PacketSize = MaxPacket
	}
	return nil
}

// tick calls the engine and Beat until ctx is done.
func (r *Router) tick(ctx context.Context) {
	for {
		now := time.Now()
		r.Engine.Tick(now)
		if r.Beat != nil {
			r.Beat(now)
		}
		select {
		case <-time.After(beat.Wait(time.Now(), tickPeriod)):
		case <-ctx.Done():
			return
		}
	}
}

func (r *Router) close() {
	for _, d := range append(append([]Device(nil), r.Devices...), r.Uplinks...) {
		d.Close()
	}
}

// paths are where the packets of one reader go, by verdict.
type paths struct {
	local, forward, reply Writer
}

func (r *Router) paths(i int) paths {
	p := paths{local: r.Devices[i%len(r.Devices)], reply: r.Replies}
	if len(r.Uplinks) > 0 {
		p.forward = r.Uplinks[i%len(r.Uplinks)]
	}
	return p
}

// loop reads from one device until it fails.
func (r *Router) loop(d Device, out paths) error {
	pkts := NewPackets(r.BatchSize, r.PacketSize)
	sorted := make([]Packet, 0, r.BatchSize)
	for {
		for i := range pkts {
			pkts[i].Peer = 0 // only an uplink sets it
		}
		n, err := d.Read(pkts)
		if err != nil {
			return fmt.Errorf("dpr: reading packets: %w", err)
		}
		now := time.Now()
		r.Engine.Process(pkts[:n], now)
		for n > 0 {
			if err := out.write(pkts[:n], sorted); err != nil {
				return fmt.Errorf("dpr: writing packets: %w", err)
			}
			n = r.Engine.Extra(pkts, now)
		}
	}
}

// write sends the packets by verdict, in their order. sorted is scratch.
func (p *paths) write(pkts, sorted []Packet) error {
	for _, way := range [...]struct {
		to Writer
		is func(Verdict) bool
	}{
		{p.local, func(v Verdict) bool { return v == Local || v == Pass }},
		{p.forward, func(v Verdict) bool { return v == Forward }},
		{p.reply, func(v Verdict) bool { return v == Reply || v == Transmit }},
	} {
		sorted = sorted[:0]
		for i := range pkts {
			if way.is(pkts[i].Verdict) {
				sorted = append(sorted, pkts[i])
			}
		}
		if len(sorted) == 0 || way.to == nil {
			continue
		}
		if _, err := way.to.Write(sorted); err != nil {
			return err
		}
	}
	return nil
}
