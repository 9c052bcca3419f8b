package main

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Rows of carom alone.
const (
	rowIdle        = "router idle, % of a core"
	rowQuiet       = "paced upload, quiet, Mbit/s"
	rowFlood       = "paced upload under a flood, Mbit/s"
	rowFloodShare  = "paced upload under a flood ÷ quiet"
	rowFloodReset  = "connections that broke under a flood"
	rowFloodIdle   = "CPU idle under the flood, %"
	rowFloodMemory = "router's memory after the second flood ÷ after the first"
	rowHighFlood   = "paced upload under a flood above the limit for SYNs ÷ quiet"
	rowHighIdle    = "CPU idle under that flood, %"
)

var floodRows = []string{rowQuiet, rowFlood, rowFloodShare, rowFloodReset, rowFloodIdle, rowFloodMemory, rowHighFlood, rowHighIdle}

const (
	// The transfers that a flood must not touch.
	pacedConns = 20
	pacedRate  = 200e6 / 8 // of all together, bytes a second
	// floodSYNs is twice the table.
	floodSYNs = 2 * floodTable
	// lowFlood, in SYNs a second, is below the capture program's limit and leaves the
	// processors idle for some of the time; highFlood is what took most of the
	// throughput before there was a limit.
	lowFlood, highFlood = 15_000, 60_000
)

// idle watches the router of the entry host while nothing happens.
func (l *labRun) idle() {
	w := l.world(carom)
	if w == nil || !wants(l.o.only, "idle") || l.ctx.Err() != nil {
		return
	}
	l.progress("idle for %v", l.o.idle)
	pids := tree(w.forwarder[:1])
	before, err := processCPU(pids)
	if err == nil {
		start := time.Now()
		select {
		case <-time.After(l.o.idle):
		case <-l.ctx.Done():
			return
		}
		var after float64
		after, err = processCPU(pids)
		l.aside.add(rowIdle, asideColumn, 100*(after-before)/time.Since(start).Seconds())
	}
	if err != nil {
		l.failed("idle", w, err)
	}
}

// flood measures transfers of a steady rate while nothing else happens, and under
// floods of SYNs.
func (l *labRun) flood(round int) {
	w := l.world(caromFlood)
	if w == nil || l.ctx.Err() != nil {
		return
	}
	if err := l.floods(w); err != nil {
		l.failed("flood", w, err)
		return
	}
	l.progress("round %d: flood: %.4g of quiet", round+1, l.aside.median(rowFloodShare, asideColumn))
}

func (l *labRun) floods(w *world) error {
	quiet, err := w.paced(0)
	if err != nil {
		return err
	}
	low, err := w.paced(lowFlood)
	if err != nil {
		return err
	}
	// The table is full now, and takes the memory that it has been promised.
	before, err := resident(tree(w.forwarder[:1]))
	if err != nil {
		return err
	}
	high, err := w.paced(highFlood)
	if err != nil {
		return err
	}
	after, err := resident(tree(w.forwarder[:1]))
	if err != nil {
		return err
	}
	for row, v := range map[string]float64{
		rowQuiet: quiet.mbits, rowFlood: low.mbits, rowFloodShare: low.mbits / quiet.mbits,
		rowFloodReset: float64(low.broken), rowFloodIdle: low.idle, rowFloodMemory: after / before,
		rowHighFlood: high.mbits / quiet.mbits, rowHighIdle: high.idle,
	} {
		l.aside.add(row, asideColumn, v)
	}
	return nil
}

type paced struct {
	mbits, idle float64
	broken      int
}

// paced runs the transfers for as long as a flood of that many SYNs a second takes,
// which begins when they are established; without a flood, as long as the shortest.
func (w *world) paced(rate int) (p paced, err error) {
	seconds := float64(floodSYNs) / highFlood
	if rate > 0 {
		seconds = float64(floodSYNs) / float64(rate)
	}
	c, err := startRole(w.client.Host, "paced upload", role{Client: &clientRole{
		Do: "upload", To: w.target.String(), Conns: pacedConns, Seconds: seconds, Pace: pacedRate / pacedConns,
	}})
	if err != nil {
		return p, err
	}
	if err := c.awaitReady(w.ctx); err != nil {
		return p, errors.Join(err, c.stop())
	}
	before, err := machineCPU()
	if err != nil {
		return p, errors.Join(err, c.stop())
	}
	if rate > 0 {
		err = w.runFlood(floodRole{To: w.target, SYNs: floodSYNs, Seconds: seconds})
	}
	m, cerr := c.result(w.ctx)
	if err = errors.Join(err, cerr); err != nil || m.Client == nil {
		return p, fmt.Errorf("transfers at %d SYNs a second: %w", rate, err)
	}
	after, err := machineCPU()
	cpu := after.since(before)
	p.mbits = float64(m.Client.Bytes) * 8 / 1e6 / m.Client.Seconds
	p.idle, p.broken = 100*cpu.idle/(cpu.idle+cpu.busy), m.Client.Broken
	return p, err
}

// runFlood returns when the flood is over.
func (w *world) runFlood(r floodRole) error {
	c, err := startRole(w.flooder.Host, "flood", role{Flood: &r})
	if err != nil {
		return err
	}
	_, err = c.result(w.ctx)
	return err
}

// labTargets judges what the lab can.
func labTargets(main, aside *table, pairs map[string]float64) []target {
	of := func(row string) float64 { return aside.median(row, asideColumn) }
	inPairs := func(row string) float64 {
		if v, ok := pairs[row]; ok {
			return v
		}
		return math.NaN()
	}
	return []target{
		atLeast("local upload, with carom ÷ without", inPairs(rowUpload), 0.97),
		atLeast("local download, with carom ÷ without", inPairs(rowDownload), 0.97),
		atLeast("local HTTP keep-alive, with carom ÷ without", inPairs(rowHTTP), 0.97),
		reported("local HTTP, one connection per request, with carom ÷ without", main.ratio(rowHTTPConn, caromLocal, direct)),
		atLeast("redirected download at 1 Gbit/s ÷ direct", main.ratio(rowDownload1G, carom, direct), 0.98),
		atMost("its CPU s per GB ÷ HAProxy's", inPairs(rowDownloadCPU), math.Nextafter(1, 0)),
		atLeast("redirected download, unlimited ÷ HAProxy's", main.ratio(rowDownload, carom, haproxy), 1.2),
		atLeast("redirected upload ÷ nftables DNAT's", main.ratio(rowUpload, carom, nftables), 0.25),
		atLeast("redirected upload ÷ nftables DNAT's, the aim", main.ratio(rowUpload, carom, nftables), 0.45),
		atLeast("redirected upload ÷ plain TUN's", main.ratio(rowUpload, carom, caromPlain), 3),
		atLeast("new redirected connections/s ÷ HAProxy's", main.ratio(rowHTTPConn, carom, haproxy), 1),
		atMost("router idle, % of a core", of(rowIdle), 0.5),
		atLeast("transfers at 200 Mbit/s under a SYN flood ÷ quiet", of(rowFloodShare), 0.9),
		atMost("connections that broke under it", of(rowFloodReset), 0),
		atMost("router's memory after another flood ÷ before it", of(rowFloodMemory), 1.1),
		atLeast("CPU idle under it, % (the flood's measure)", of(rowFloodIdle), 30),
	}
}
