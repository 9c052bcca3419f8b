package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"regexp"
	"strconv"
	"time"
)

// A cell measures one thing in one world and returns values by row.
type cell struct {
	name string
	rows []string
	run  func(w *world, seconds float64) ([]float64, error)
	udp  bool
	wrk  bool // it needs the program of that name
}

// The rows of the table, by the names that targets go by.
const (
	rowUpload       = "TCP upload, Gbit/s"
	rowDownload     = "TCP download, Gbit/s"
	rowUpload1G     = "TCP upload at 1 Gbit/s, Gbit/s"
	rowUploadCPU    = "TCP upload at 1 Gbit/s, CPU s per GB"
	rowDownload1G   = "TCP download at 1 Gbit/s, Gbit/s"
	rowDownloadCPU  = "TCP download at 1 Gbit/s, CPU s per GB"
	rowUDP          = "UDP, 64 bytes, kpps"
	rowHTTP         = "HTTP, keep-alive, requests/s"
	rowHTTPErrors   = "HTTP, keep-alive, errors per 1,000 requests"
	rowHTTPConn     = "HTTP, one connection per request, requests/s"
	rowConnErrors   = "HTTP, one connection per request, errors per 1,000"
	rowConnCPU      = "CPU s per 1,000 connections"
	rowP50          = "round trip of a byte, p50, µs"
	rowP99          = "round trip of a byte, p99, µs"
	rowMemory       = "memory per connection in processes, bytes"
	rowKernelMemory = "memory per connection in the kernel, bytes"
)

// streams is the number of connections of a bulk transfer.
const streams = 4

// gigabit is a link of 1 Gbit/s, in bytes a second.
const gigabit = 125_000_000

var cells = []cell{
	{name: "upload", rows: []string{rowUpload}, run: bulk("upload")},
	{name: "download", rows: []string{rowDownload}, run: bulk("download")},
	{name: "upload1g", rows: []string{rowUpload1G, rowUploadCPU}, run: limited("upload")},
	{name: "download1g", rows: []string{rowDownload1G, rowDownloadCPU}, run: limited("download")},
	{name: "udp", rows: []string{rowUDP}, run: datagrams, udp: true},
	{name: "http", rows: []string{rowHTTP, rowHTTPErrors}, run: keepAlive, wrk: true},
	{name: "conn", rows: []string{rowHTTPConn, rowConnErrors, rowConnCPU}, run: connectionPerRequest, wrk: true},
	{name: "latency", rows: []string{rowP50, rowP99}, run: latency},
	{name: "memory", rows: []string{rowMemory, rowKernelMemory}, run: memory},
}

// client runs a client in the world and returns what it saw.
func (w *world) runClient(r clientRole) (*clientSum, error) {
	if r.To == "" {
		r.To = w.target.String()
	}
	c, err := startRole(w.client.Host, r.Do, role{Client: &r})
	if err != nil {
		return nil, err
	}
	m, err := c.result(w.ctx)
	if err != nil {
		return nil, err
	}
	if m.Client == nil {
		return nil, fmt.Errorf("%s: no result", c.what)
	}
	return m.Client, nil
}

func (w *world) transfer(direction string, seconds float64) (gbits float64, sum *clientSum, err error) {
	sum, err = w.runClient(clientRole{Do: direction, Conns: streams, Seconds: seconds})
	if err == nil && sum.Broken > 0 {
		err = fmt.Errorf("%d connections broke", sum.Broken)
	}
	if err != nil {
		return 0, nil, err
	}
	return float64(sum.Bytes) * 8 / 1e9 / sum.Seconds, sum, nil
}

func bulk(direction string) func(*world, float64) ([]float64, error) {
	return func(w *world, seconds float64) ([]float64, error) {
		gbits, _, err := w.transfer(direction, seconds)
		return []float64{gbits}, err
	}
}

// limited measures a transfer over a link of 1 Gbit/s, and the processor time of the
// whole machine, client and server included.
func limited(direction string) func(*world, float64) ([]float64, error) {
	return func(w *world, seconds float64) (values []float64, err error) {
		undo, err := w.limit(gigabit)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, undo()) }()
		before, err := machineCPU()
		if err != nil {
			return nil, err
		}
		gbits, sum, err := w.transfer(direction, seconds)
		if err != nil {
			return nil, err
		}
		after, err := machineCPU()
		return []float64{gbits, after.since(before).busy / (float64(sum.Bytes) / 1e9)}, err
	}
}

// datagrams counts what arrives of as many as one core can send.
func datagrams(w *world, seconds float64) ([]float64, error) {
	count := func() (uint64, error) {
		h := w.answering()
		b, err := w.ask(h, h.Addr4(), cmdCount, 8)
		if err != nil {
			return 0, err
		}
		return binary.BigEndian.Uint64(b), nil
	}
	before, err := count()
	if err != nil {
		return nil, err
	}
	sum, err := w.runClient(clientRole{Do: "udp", Seconds: seconds})
	if err != nil {
		return nil, err
	}
	after, err := count()
	return []float64{float64(after-before) / sum.Seconds / 1000}, err
}

// wrkConnections is how many connections wrk has open at once.
const wrkConnections = 64

// A wrkSum is what wrk counts: requests a second, all requests, and the connections
// that could not be made, broke, or had to be waited for too long.
type wrkSum struct{ rate, requests, errors float64 }

func (s *wrkSum) perThousand() float64 { return 1000 * s.errors / s.requests }

var (
	wrkRate     = regexp.MustCompile(`Requests/sec:\s+([0-9.]+)`)
	wrkRequests = regexp.MustCompile(`([0-9]+) requests in`)
	wrkErrors   = regexp.MustCompile(`Socket errors: connect ([0-9]+), read ([0-9]+), write ([0-9]+), timeout ([0-9]+)`)
)

// wrk runs the program of that name in the client.
func (w *world) wrk(seconds float64, headers ...string) (*wrkSum, error) {
	whole := strconv.Itoa(max(1, int(math.Round(seconds))))
	args := []string{"-t1", "-c" + strconv.Itoa(wrkConnections), "-d" + whole + "s"}
	for _, h := range headers {
		args = append(args, "-H", h)
	}
	cmd := exec.CommandContext(w.ctx, "wrk", append(args, fmt.Sprintf("http://%v:%d/", w.target, httpPort))...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := w.client.Start(cmd); err != nil {
		return nil, err
	}
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("wrk: %w: %s", err, out.Bytes())
	}
	return parseWrk(out.String())
}

// parseWrk reads what wrk prints. It names errors only if there are any.
func parseWrk(out string) (*wrkSum, error) {
	var s wrkSum
	for expr, value := range map[*regexp.Regexp]*float64{wrkRate: &s.rate, wrkRequests: &s.requests} {
		m := expr.FindStringSubmatch(out)
		if m == nil {
			return nil, fmt.Errorf("wrk: no rate in its answer: %s", out)
		}
		var err error
		if *value, err = strconv.ParseFloat(m[1], 64); err != nil || *value == 0 {
			return nil, fmt.Errorf("wrk: no request was answered: %s", out)
		}
	}
	if m := wrkErrors.FindStringSubmatch(out); m != nil {
		for _, field := range m[1:] {
			n, err := strconv.ParseFloat(field, 64)
			if err != nil {
				return nil, fmt.Errorf("wrk: %w", err)
			}
			s.errors += n
		}
	}
	return &s, nil
}

func keepAlive(w *world, seconds float64) ([]float64, error) {
	s, err := w.wrk(seconds)
	if err != nil {
		return nil, err
	}
	return []float64{s.rate, s.perThousand()}, nil
}

func connectionPerRequest(w *world, seconds float64) ([]float64, error) {
	before, err := machineCPU()
	if err != nil {
		return nil, err
	}
	s, err := w.wrk(seconds, "Connection: close")
	if err != nil {
		return nil, err
	}
	after, err := machineCPU()
	return []float64{s.rate, s.perThousand(), after.since(before).busy / (s.requests / 1000)}, err
}

func latency(w *world, seconds float64) ([]float64, error) {
	sum, err := w.runClient(clientRole{Do: "echo", Conns: 1, Seconds: seconds})
	if err != nil {
		return nil, err
	}
	micros := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
	return []float64{micros(sum.RTT[0]), micros(sum.RTT[1])}, nil
}

// idleConnections is how many connections stand idle while memory is measured: as
// many as a proxy with six descriptors for each may have, of 20,000.
const idleConnections = 2000

// memory measures what idle connections take in the forwarder's processes, and in
// the kernel, where client and server are counted in.
func memory(w *world, _ float64) (values []float64, err error) {
	before, err := w.memory()
	if err != nil {
		return nil, err
	}
	c, err := startRole(w.client.Host, "idle", role{Client: &clientRole{Do: "idle", To: w.target.String(), Conns: idleConnections}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	if err := c.awaitReady(w.ctx); err != nil {
		return nil, err
	}
	after, err := w.memory()
	for i := range after {
		values = append(values, (after[i]-before[i])/idleConnections)
	}
	return values, err
}

func (w *world) memory() ([]float64, error) {
	process, err := resident(tree(w.forwarder))
	if err != nil {
		return nil, err
	}
	kernel, err := kernelSlab()
	return []float64{process, kernel}, err
}
