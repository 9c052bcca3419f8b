package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// The ports of every lab.
const (
	httpPort = 80
	bulkPort = 81 // commands
	udpPort  = 82
)

// A serverRole is the server of the lab: HTTP, bulk transfers, and a sink for
// datagrams. It does as little as a server can, so that what is between it and the
// client weighs as much as it can.
type serverRole struct{ Name byte }

// The commands of the bulk server, one byte at the start of a connection.
const (
	cmdWho      = 'w' // answers with the server's name
	cmdUpload   = 'u' // reads until the client ends, answers how many bytes it read
	cmdDownload = 'd' // writes until the client ends
	cmdEcho     = 'e' // answers each byte
	cmdIdle     = 'i' // answers the byte, then waits for the client's end
	cmdCount    = 'n' // answers how many datagrams have come
)

type server struct {
	serverRole
	datagrams atomic.Uint64
}

func (r *serverRole) play(ctx context.Context) error {
	s := &server{serverRole: *r}
	var closers []io.Closer
	var wg sync.WaitGroup
	for port, handle := range map[int]func(net.Conn){httpPort: serveHTTP, bulkPort: s.serveBulk} {
		ln, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			return err
		}
		closers = append(closers, ln)
		wg.Go(func() { acceptAll(ln, handle) })
	}
	sink, err := net.ListenPacket("udp", fmt.Sprintf(":%d", udpPort))
	if err != nil {
		return err
	}
	wg.Go(func() { s.countDatagrams(sink) })
	say(message{Ready: true})
	<-ctx.Done()
	for _, c := range append(closers, sink) {
		c.Close()
	}
	wg.Wait()
	return nil
}

// acceptAll handles connections until the listener is closed. Connections that are
// open then end with the process.
func acceptAll(ln net.Listener, handle func(net.Conn)) {
	for {
		c, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, perhaps
			time.Sleep(time.Millisecond)
			continue
		}
		go func() {
			defer c.Close()
			handle(c)
		}()
	}
}

var (
	httpBody     = strings.Repeat("x", 1024)
	httpResponse = []byte(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(httpBody), httpBody))
	httpLast     = []byte(fmt.Sprintf("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(httpBody), httpBody))
)

// serveHTTP answers every request with 1 KiB.
func serveHTTP(c net.Conn) {
	r := bufio.NewReader(c)
	for {
		last := false
		for {
			line, err := r.ReadSlice('\n')
			if err != nil {
				return
			}
			if len(line) <= 2 {
				break
			}
			last = last || strings.EqualFold(strings.TrimSpace(string(line)), "Connection: close")
		}
		if last {
			c.Write(httpLast)
			return
		}
		if _, err := c.Write(httpResponse); err != nil {
			return
		}
	}
}

func (s *server) serveBulk(c net.Conn) {
	var cmd [1]byte
	if _, err := io.ReadFull(c, cmd[:]); err != nil {
		return
	}
	switch cmd[0] {
	case cmdWho:
		c.Write([]byte{s.Name})
	case cmdUpload:
		n, _ := io.CopyBuffer(onlyWriter{io.Discard}, onlyReader{c}, make([]byte, bulkBuffer))
		c.Write(binary.BigEndian.AppendUint64(nil, uint64(n)))
	case cmdDownload:
		buf := make([]byte, bulkBuffer)
		for {
			if _, err := c.Write(buf); err != nil {
				return
			}
		}
	case cmdEcho:
		c.Write(cmd[:])
		io.Copy(onlyWriter{c}, onlyReader{c})
	case cmdIdle:
		c.Write(cmd[:])
		io.Copy(io.Discard, c)
	case cmdCount:
		c.Write(binary.BigEndian.AppendUint64(nil, s.datagrams.Load()))
	}
}

// bulkBuffer is how much is read or written at once, in bytes.
const bulkBuffer = 256 << 10

// onlyReader and onlyWriter hide what io.Copy would rather use.
type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)

func (s *server) countDatagrams(c net.PacketConn) {
	buf := make([]byte, 2048)
	for {
		if _, _, err := c.ReadFrom(buf); err == nil {
			s.datagrams.Add(1)
		} else if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrClosed) {
			return
		}
	}
}

// A proxyRole is the proxy that a Go programmer writes: accept, dial, io.Copy twice.
type proxyRole struct{ To string } // the server's address

func (r *proxyRole) play(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, port := range []int{httpPort, bulkPort} {
		ln, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			return err
		}
		context.AfterFunc(ctx, func() { ln.Close() })
		to := fmt.Sprintf("%s:%d", r.To, port)
		wg.Go(func() { acceptAll(ln, func(c net.Conn) { relay(c.(*net.TCPConn), to) }) })
	}
	say(message{Ready: true})
	wg.Wait()
	return nil
}

func relay(client *net.TCPConn, to string) {
	c, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	server := c.(*net.TCPConn)
	defer server.Close()
	var up sync.WaitGroup
	up.Go(func() {
		io.Copy(server, client)
		server.CloseWrite()
	})
	io.Copy(client, server)
	client.CloseWrite()
	up.Wait()
}
