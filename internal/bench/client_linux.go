package main

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// A clientRole does one thing for some time and tells what it saw.
type clientRole struct {
	Do      string // upload, download, echo, idle or udp
	To      string // the target's address
	Conns   int
	Seconds float64
	// Pace is what each connection sends at most, in bytes a second; 0 is no limit.
	Pace uint64 `json:",omitempty"`
}

// A clientSum is what a client saw.
type clientSum struct {
	Bytes   int64
	Seconds float64
	Broken  int             // connections that ended before their time
	RTT     []time.Duration `json:",omitempty"` // p50 and p99 of echo
}

func (r *clientRole) play(ctx context.Context) error {
	switch r.Do {
	case "udp":
		return r.udp()
	case "idle":
		return r.idle(ctx)
	}
	conns, err := r.dialAll()
	if err != nil {
		return err
	}
	say(message{Ready: true})
	sum := &clientSum{}
	start := time.Now()
	end := start.Add(time.Duration(r.Seconds * float64(time.Second)))
	if r.Do == "echo" {
		sum.RTT, err = echo(conns[0], end)
	} else {
		err = r.transfer(conns, end, sum)
	}
	sum.Seconds = time.Since(start).Seconds()
	say(message{Client: sum})
	return err
}

// dialAll opens the connections and tells the server what they are for.
func (r *clientRole) dialAll() ([]*net.TCPConn, error) {
	var conns []*net.TCPConn
	d := net.Dialer{Timeout: startTimeout, Control: r.pace}
	for range r.Conns {
		c, err := d.Dial("tcp", net.JoinHostPort(r.To, strconv.Itoa(bulkPort)))
		if err != nil {
			return nil, err
		}
		if _, err := c.Write([]byte{r.command()}); err != nil {
			return nil, err
		}
		conns = append(conns, c.(*net.TCPConn))
	}
	return conns, nil
}

func (r *clientRole) command() byte {
	return map[string]byte{"upload": cmdUpload, "download": cmdDownload, "echo": cmdEcho, "idle": cmdIdle}[r.Do]
}

func (r *clientRole) pace(_, _ string, c syscall.RawConn) (err error) {
	if r.Pace == 0 {
		return nil
	}
	return errors.Join(c.Control(func(fd uintptr) {
		err = errors.Join(
			unix.SetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, r.Pace),
			// What waits when the time is over still has to be sent at this pace.
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, 64<<10),
		)
	}), err)
}

// transfer uploads or downloads on all connections until end.
func (r *clientRole) transfer(conns []*net.TCPConn, end time.Time, sum *clientSum) error {
	var bytes, broken atomic.Int64
	var wg sync.WaitGroup
	move := upload
	if r.Do == "download" {
		move = download
	}
	for _, c := range conns {
		wg.Go(func() {
			defer c.Close()
			n, err := move(c, end)
			bytes.Add(n)
			if err != nil {
				broken.Add(1)
			}
		})
	}
	wg.Wait()
	sum.Bytes, sum.Broken = bytes.Load(), int(broken.Load())
	return nil
}

// upload returns how many bytes the server says it has.
func upload(c *net.TCPConn, end time.Time) (int64, error) {
	buf := make([]byte, bulkBuffer)
	c.SetWriteDeadline(end)
	for {
		_, err := c.Write(buf)
		if isTimeout(err) {
			break
		}
		if err != nil {
			return 0, err
		}
	}
	if err := c.CloseWrite(); err != nil {
		return 0, err
	}
	var n [8]byte
	c.SetReadDeadline(time.Now().Add(startTimeout))
	_, err := io.ReadFull(c, n[:])
	return int64(binary.BigEndian.Uint64(n[:])), err
}

func download(c *net.TCPConn, end time.Time) (total int64, err error) {
	buf := make([]byte, bulkBuffer)
	c.SetReadDeadline(end)
	for {
		n, err := c.Read(buf)
		total += int64(n)
		if isTimeout(err) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout() && !errors.Is(err, syscall.ETIMEDOUT)
}

// echo sends one byte after the other and returns the median and the 99th percentile
// of the time that the answers took.
func echo(c *net.TCPConn, end time.Time) ([]time.Duration, error) {
	defer c.Close()
	var b [1]byte
	var took []time.Duration
	if _, err := io.ReadFull(c, b[:]); err != nil { // the answer to the command
		return nil, err
	}
	for start := time.Now(); start.Before(end); {
		if _, err := c.Write(b[:]); err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(c, b[:]); err != nil {
			return nil, err
		}
		now := time.Now()
		took = append(took, now.Sub(start))
		start = now
	}
	slices.Sort(took)
	return []time.Duration{took[len(took)/2], took[len(took)*99/100]}, nil
}

// idle opens connections, says Ready and holds them until it is told to end.
func (r *clientRole) idle(ctx context.Context) error {
	conns, err := r.dialAll()
	if err != nil {
		return err
	}
	for _, c := range conns {
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			return err
		}
	}
	say(message{Ready: true})
	<-ctx.Done()
	for _, c := range conns {
		c.Close()
	}
	return nil
}

// udp sends IP packets of 64 bytes as fast as one core can.
func (r *clientRole) udp() error {
	conn, err := net.Dial("udp4", net.JoinHostPort(r.To, strconv.Itoa(udpPort)))
	if err != nil {
		return err
	}
	defer conn.Close()
	pc := ipv4.NewPacketConn(conn.(*net.UDPConn))
	batch := make([]ipv4.Message, 64)
	for i := range batch {
		batch[i].Buffers = [][]byte{make([]byte, 64-20-8)}
	}
	start := time.Now()
	for time.Since(start).Seconds() < r.Seconds {
		// Errors are answers that nobody serves the port, or a full queue.
		pc.WriteBatch(batch, 0)
	}
	say(message{Client: &clientSum{Seconds: time.Since(start).Seconds()}})
	return nil
}
