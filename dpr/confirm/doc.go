// Package confirm has the hosts of a cluster tell each other which redirected
// connections are really there.
//
// The host that a client dialled sees of a connection that a peer serves only what
// the client says. Its engine keeps questions about those that have been silent
// ([dpr.Engine.Questions]); a [Confirmer] sends them to the peers, answers those of
// the peers from this host's sockets, and brings the answers to the engine. It keeps
// no state but the questions that are under way: what gets lost, the engine asks
// again.
//
// # On the wire
//
// Messages travel as control messages of the tunnel, which authenticates them. All
// numbers are big-endian. A question is of kind 1:
//
//	0   kind, 1 byte
//	1   a random number that the answer repeats, 8 bytes
//	9   groups: the length of an address (4 or 16), 1 byte; the dialled address and
//	    port; the number of clients, 1 byte; their addresses and ports
//
// Its answer is of kind 2: the same number, and two bits for each connection in the
// order of the question, the first in the lowest bits: 0 the host cannot tell, 1 a
// handshake is under way, 2 it is open, 3 it is gone.
//
// # What it costs
//
// Connections over IPv4 cost 6 bytes of question and a quarter byte of answer each,
// 18 and a quarter over IPv6: for a thousand connections to one address, 6.5 KB of
// questions and 0.7 KB of answers with all headers over IPv4. Most connections cost
// nothing, since who sends or ends within a second of silence is not asked about. A
// connection that lives long is asked about once after a second, once after each
// silence of 15 seconds, and ever more rarely while that lasts. The host that answers
// spends about 6 µs on each.
package confirm
