// Package gue carries packets between the hosts of a cluster in Generic UDP
// Encapsulation, UDP port 6080.
//
// [Open] makes an uplink of UDP sockets, the usual case; [NewOverIP] makes one
// that writes the outer headers itself, over any device that carries IP packets.
// Both are [dpr.Device]s, and both use a [Codec], which puts one packet into its
// outer headers and takes it out again.
//
// # On the wire
//
// Where nothing needs saying a packet is GUE variant 1: the inner IP packet lies
// directly behind the UDP header. With a key, or a hop count above 0, it is
// variant 0 (draft-ietf-intarea-gue, section 3), with a private field of 12 bytes:
//
//	 0                   1                   2                   3
//	+-------+-+-------------+---------------+-------------------------------+
//	| 0     |C| Hlen = 3    | Proto: 4 or 41| Flags = 0                     |
//	+---------------+---------------+-------+-------------------------------+
//	| Hop count     | Key ID        | Reserved = 0                          |
//	+---------------+---------------+---------------------------------------+
//	| Tag, 64 bits: 0 if the key ID is 0                                    |
//	|                                                                       |
//	+-----------------------------------------------------------------------+
//
// Control messages, which hosts have for each other (the C bit), are of user-defined
// type 128 and have a header of their own:
//
//	+-------+-+-------------+---------------+-------------------------------+
//	| 0     |1| Hlen = 7    | Type: 128     | Flags = 0                     |
//	+---------------+---------------+-------+-------------------------------+
//	| Zero          | Key ID        | Reserved = 0                          |
//	+---------------+---------------+---------------------------------------+
//	| Sequence number, 64 bits: above that of all messages before           |
//	+-----------------------------------------------------------------------+
//	| Tag, 128 bits: 0 if the key ID is 0                                   |
//	+-----------------------------------------------------------------------+
//
// Their tag is HMAC-SHA256, cut to 16 bytes, over both outer addresses and the whole
// message with its header. The sequence begins at the time at which its sender began,
// in nanoseconds; a host whose clock went back across a restart is heard again once
// it was out of its peer's list. What the messages say is [Config.Control]'s.
//
// The UDP source port is chosen by a hash of the inner flow, so that routers and
// receivers spread flows and keep the order within each. The outer DF bit is the
// inner one, and set for inner IPv6. An outer packet is fragmented only where the
// inner one may be, which the engine does first, and where a path is too narrow for
// the 1280 bytes that IPv6 asks of every link. ECN is copied out and merged back in (RFC 6040, normal mode); DSCP is copied out
// (RFC 2983) and not back, so that what the network between the hosts does to it
// stays there.
//
// # Who may send
//
// Datagrams are taken from the addresses of known peers only. Addresses can be
// forged, so without keys this is for private networks. With keys every datagram
// carries a SipHash-2-4 tag over the first two bytes of the GUE header, hop count
// and key ID, both outer addresses in 16 bytes each, and the first 80 bytes of the
// inner packet, padded with zeros: its addresses, ports, lengths, sequence numbers
// and flags. It stops who cannot see the traffic between the hosts from injecting
// packets, not who can record one and send it again. Control messages are proof
// against both.
package gue
