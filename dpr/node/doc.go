// Package node wires a whole host of a cluster together: the engine and its
// router, the host's network, the uplink to the peers, and the reports by which
// the hosts know each other's load.
//
// [Open] makes a node on Linux from one configuration. [New] makes one from parts
// that the caller brings, for tests and other systems. Either way, [Node.Run] does
// the work until its context is done, and everything that was changed on the host
// is then undone.
//
// A node that starts, or starts again, first listens: until it has heard its peers
// for two report periods it serves all that it is dialled for itself, and its
// peers hand it nothing.
package node
