// Package dpr is the engine of a distributed packet router: every host of a
// cluster accepts connections on its own address and decides, once per
// connection, whether to serve it or to hand it, packet by packet, to a less
// loaded peer that answers the client directly.
//
// # Parts
//
// An [Engine] classifies packets, looks their flows up, asks a policy about new
// ones, and rewrites. It does no I/O, starts no goroutine and reads no clock, so
// it can be tested and simulated like a function. A [Router] is the loop around
// it: it reads batches from devices, has the engine judge them, and writes them
// where the verdicts say. A [Device] is where packets come from and go to: a TUN
// (package dpr/tun), an uplink to the peers (dpr/gue), an in-memory link
// (dpr/dprtest), or anything that carries one packet per call
// ([FromReadWriter]).
//
// Package dpr/node wires all of this for the usual case.
//
// # Life of a packet
//
// What a device delivers is parsed once. A packet that is not for a [Service] is
// passed back to the kernel. A packet of a known flow does what was bound to the
// flow when it began. A packet that may open a flow (a SYN, any UDP datagram) is
// put before the service's policy, once. Anything else belongs to no flow that
// this host knows and goes to the local stack, which answers with a reset.
//
// What an uplink delivers was redirected by a peer: it is served here and never
// redirected again, so no packet can travel in a circle. Only packets for a
// service's own addresses and ports are accepted from there; the tunnel is no way
// around the host's firewall.
//
// The method, its one-way view of a connection (the entry host sees only the
// client's half) and its use of connection counts are those of Bestavros,
// Crovella, Liu and Martin, "Distributed Packet Rewriting and its Application to
// Scalable Server Architectures" (1998), and Aversa and Bestavros, "Load Balancing
// a Cluster of Web Servers using Distributed Packet Rewriting" (1999).
package dpr
