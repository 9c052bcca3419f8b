package main

import (
	"encoding/binary"
	"net/netip"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
)

// soakDelays says how many steps after its first packet a connection sends its next
// ones, of soakStep each: soon, and so late that states time out in between.
var soakDelays = []int{0, 5, 15, 60, 200, 2000}

// A soakKind is a way for a connection to live and end, as its client's packets.
type soakKind struct {
	name     string
	packets  [][]byte
	fromPeer bool // it was redirected to this host
	fragment bool // its packets have no ports: the identification tells them apart
}

// soakKinds returns every way to end: what is not said to end does so by the timeout
// of the state that it is left in.
func soakKinds() []soakKind {
	const syn, ack, fin, rst = dprtest.SYN, dprtest.ACK, dprtest.FIN, dprtest.RST
	tcp := func(flags dprtest.Flags, seq uint32, payload int) []byte {
		return dprtest.TCP(benchClient, benchVIP, dprtest.Options{Flags: flags, Seq: seq, Payload: make([]byte, payload)})
	}
	udp := dprtest.UDP(benchClient, benchVIP, dprtest.Options{Payload: make([]byte, 8)})
	fragments := dprtest.Fragment(dprtest.UDP(benchClient, benchVIP, dprtest.Options{Payload: make([]byte, 2000)}), 1500)
	open, established := tcp(syn, 100, 0), tcp(ack, 101, 0)
	return []soakKind{
		{name: "FIN, FIN", packets: [][]byte{open, established, tcp(ack, 101, 10), tcp(ack|fin, 111, 0), tcp(ack, 112, 0)}},
		{name: "FIN, half closed", packets: [][]byte{open, established, tcp(ack|fin, 101, 0)}},
		{name: "RST", packets: [][]byte{open, established, tcp(rst, 101, 0)}},
		{name: "RST, taken back by data", packets: [][]byte{open, established, tcp(rst, 101, 0), tcp(ack, 101, 10)}},
		{name: "RST after the SYN", packets: [][]byte{open, tcp(rst, 101, 0)}},
		{name: "RST to a SYN of no connection", packets: [][]byte{tcp(rst|ack, 101, 0)}},
		{name: "SYN alone", packets: [][]byte{open}},
		{name: "SYN repeated", packets: [][]byte{open, open, open, open}},
		{name: "established and silent", packets: [][]byte{open, established}},
		{name: "ports used again after FIN", packets: [][]byte{open, established, tcp(ack|fin, 101, 0), tcp(syn, 900, 0), tcp(ack, 901, 0), tcp(ack|fin, 901, 0)}},
		{name: "one datagram", packets: [][]byte{udp}},
		{name: "datagrams", packets: [][]byte{udp, udp, udp}},
		{name: "datagrams from a peer", packets: [][]byte{udp, udp}, fromPeer: true},
		{name: "all fragments", packets: fragments, fragment: true},
		{name: "first fragment alone", packets: fragments[:1], fragment: true},
		{name: "last fragment alone", packets: fragments[1:], fragment: true},
		{name: "established, goes on when its peer may have left", packets: [][]byte{open, established, tcp(ack, 101, 10), tcp(ack, 111, 10), tcp(ack, 121, 10), tcp(ack, 131, 10)}},
	}
}

// connectionOf returns the number of the connection of a client, as write has made it.
func connectionOf(client netip.AddrPort) int {
	a := client.Addr().As4()
	return int(client.Port()-1024)<<24 | int(binary.BigEndian.Uint32(a[:])&0xffffff)
}

// write puts the connection's packet of that stage into p.
func (k *soakKind) write(p *dpr.Packet, stage, connection int) {
	p.Off, p.Peer, p.GSO = dpr.Headroom, 0, dpr.GSO{}
	p.Len = copy(p.Buf[p.Off:], k.packets[stage])
	b := p.Bytes()
	binary.BigEndian.PutUint32(b[12:], 10<<24|uint32(connection)&0xffffff)
	if k.fragment {
		binary.BigEndian.PutUint16(b[4:], uint16(connection))
	} else {
		binary.BigEndian.PutUint16(b[20:], uint16(1024+connection>>24))
	}
}
