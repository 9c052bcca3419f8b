// Package rrdns answers DNS queries for a cluster's name with the addresses of its
// live hosts.
//
// Round-robin DNS is what brings clients to a cluster in which every host is both
// server and router. A [Server] is an authoritative name server for one name: it
// takes who is there from a loadinfo.Board and needs no other configuration than the
// name. Delegate the name to some hosts that run one:
//
//	www.example.org.    NS  ns1.example.org.
//	www.example.org.    NS  ns2.example.org.
//	ns1.example.org.    A   10.0.0.1
//	ns2.example.org.    A   10.0.0.2
//
//	s, err := rrdns.New(rrdns.Config{Board: board, Name: "www.example.org"})
//	conn, listener, err := rrdns.Listen(netip.MustParseAddrPort("10.0.0.1:53"))
//	err = s.Run(ctx, conn, listener)
//
// Each answer holds the addresses at which a random choice of the hosts is dialled,
// in random order. A strict rotation would spread no better over many resolvers, and
// falls into step with those that ask in a pattern, such as twice for each client.
// Hosts that drain, that are down or whose weight is 0 are not named. When none is
// up, those that are stale are, for a network that loses reports may still carry
// connections; when there are none either, the query fails, so that a resolver asks
// another server and keeps nothing.
//
// So a host that is gone is dialled by nobody after the time in which the board
// notices, a time to live, and a tenth of a second.
//
// The server refuses what is not under its name, answers over UDP and TCP, in IPv4
// and IPv6, with and without EDNS (RFC 6891), gives short answers to ANY (RFC 8482),
// and limits what it sends to each network over UDP, so that it is of no use for
// attacks on others.
package rrdns
