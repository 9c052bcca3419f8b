// Package sim simulates clusters whose hosts choose for themselves, event by
// event, with the policies of package lb and the boards of package loadinfo as
// they are: what is simulated is the hosts' servers, the network between them and
// the clients, not the code under test.
//
// A [Scenario] says what there is; [Run] plays it and returns a [Result]. The same
// scenario with the same seed gives the same result, to the bit, on every machine.
// Clients, service times, flow hashes and the network draw from streams of random
// numbers of their own, so that two policies meet the same connections.
//
// The unit of time is the mean service time of a connection on a host of speed 1,
// the lifetime. Policies and boards, which have real units, see a second for it.
//
// What a chooser knows comes in four forms, see [Scenario.View]: a Board for each
// host, all the hosts or a few of them on it; one Board that all hosts look at, in
// which each finds its own count exact and its own redirects added; the last reports
// of a few hosts, for clusters that are too large for Boards; or the counts
// themselves, as if reports were free and instant.
//
// [MaxLoad] and [Disruption] are the other two experiments of the literature: unit
// jobs that never end, and keys that move when hosts go.
package sim
