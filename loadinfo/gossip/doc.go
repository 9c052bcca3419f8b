// Package gossip carries the reports of package loadinfo from host to host, for
// clusters beyond one broadcast domain.
//
// A [Gossip] takes the place of a loadinfo.Broadcaster; both are transports of a
// loadinfo.Board. It knows the members of the cluster by hashicorp/memberlist: the
// SWIM protocol (Das, Gupta, Motivala, DSN 2002) with Lifeguard's extensions
// (Dadgar, Phillips, Currey, 2017), and lets reports travel on its datagrams.
//
//	conn, listener, err := gossip.Listen(netip.MustParseAddrPort("10.0.0.1:6083"))
//	g, err := gossip.New(gossip.Config{
//		Board: board, Conn: conn, Listener: listener,
//		Seeds: []string{"10.0.0.2:6083", "www.example.org:6083"},
//	})
//	err = g.Run(ctx)
//
// # How reports travel
//
// Every host keeps the newest report of each host that its board took, and ten
// times a second puts as many of them as fit into a datagram to each of three
// hosts at random. Those that it has sent the fewest times go first, the youngest
// of them; each version is sent 4 times in a cluster of up to 9 hosts, 4 times more
// for each factor of ten, and no more. That a host drains goes before all others, and
// 8 times more, for it may be its last word. Half of each datagram is theirs, whatever
// news there is of members: no storm of joins and leaves starves them, but for reports
// longer than that half, which wait for its end. A report
// says on its way how old it is; ages add up from hop to hop, and clocks need not
// agree. Every half minute or so hosts exchange all that they have over TCP, in
// pairs.
//
// What a host sends is bounded. So the time between two reports of a host grows
// with the cluster, and reports say how long it is: 0.5 s up to some 70 hosts, 7 s
// at a thousand. Above that let MaxRate grow, or do without a report of every host.
//
// # Who is there
//
// A host that SWIM finds dead is Down at once, if its silence has not told before.
// Members carry names made of ID and boot, so that a host that restarts is another
// member: no former life, at another address or this one, is in its way. Seeds are
// tried for ever, and so are the addresses of hosts that died without a word:
// after a cut, however long, the sides find each other again. A host that stops
// says so, and is Down on all boards within a second.
//
// # Trust
//
// With a Keyring all datagrams and streams are encrypted by AES-256-GCM, under keys
// derived from the keyring's. Whoever has a key is believed in what he relays.
// Without, a CRC finds damage and nothing stops a stranger from telling tales. Neither
// way does a stranger take more memory than he sends bytes, or little more: lengths that
// a message states are believed when as many bytes have come, a stream has no more of
// them than a cluster of BoardConfig.MaxHosts has to say, and 32 streams are answered
// at once.
package gossip
