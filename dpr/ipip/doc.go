// Package ipip carries packets between the hosts of a cluster as IP in IP (RFC 2003,
// RFC 4213, RFC 2473): protocol 4 for IPv4 inside, 41 for IPv6 inside, over IPv4 or
// IPv6 outside.
//
// It adds the least of all tunnels, 20 bytes over IPv4 and 40 over IPv6, and any
// system that decapsulates IP in IP can receive it. What it lacks beside package
// dpr/gue: it has no ports, so routers and network cards do not spread flows by more
// than the hosts' addresses; it has no room for a tag, so packets are taken from the
// addresses of known peers only, which can be forged: it is for private networks; and
// the kernel does not cut what it sends, so each segment passes the kernel by itself.
//
// The outer DF bit is the inner one, and set for inner IPv6; an outer packet is
// fragmented only where the inner one may be, and where a path is too narrow for the
// 1280 bytes that IPv6 asks of every link. ECN is copied out and merged back in (RFC
// 6040, normal mode); DSCP is copied out and not back (RFC 2983). The outer TTL is the
// kernel's own, the inner one is not touched here.
//
// Raw sockets need CAP_NET_RAW. A raw socket gets a copy of what it receives, also
// where the kernel has a tunnel of its own for the packet: only the allow-list of
// peers tells them apart.
package ipip
