// Package loadinfo tells each host of a cluster how loaded the others are.
//
// Every host sends a [Report] of itself, a datagram of less than a hundred bytes,
// twice a second: who it is, where its peers reach it, and for each service how
// many established connections its own sockets have. A [Broadcaster] sends and
// receives them over UDP: to the broadcast address of a network, to a multicast
// group or to a list of peers; package gossip carries them beyond one network, by
// way of other hosts. A [Board] keeps who said what, when, and makes of
// it what a policy of package lb chooses by, an [lb.Snapshot] for each service.
//
//	board := loadinfo.NewBoard(loadinfo.BoardConfig{})
//	err := board.SetSelf(loadinfo.Self{
//		ID:       "web-1",
//		Node:     netip.MustParseAddrPort("10.0.0.1:6080"),
//		Services: []loadinfo.OwnService{{Name: "www"}},
//	})
//	conns := board.Counter("www") // +1 and -1 as connections come and go
//
// Package resource measures what else a host may be short of, package health asks
// its own servers whether they answer.
//
// # What a reader may rely on
//
// A host is absent from a snapshot until its first report has come: nothing is
// assumed of it, least of all that it is idle. It is Joining until it has been
// heard for two periods, so that no single datagram, old or come by a detour,
// brings a dead host back. It is Stale when three reports in a row are missing,
// and gets no new connections; when ten are missing it is Down, out of all
// snapshots, and its flows are as good as lost. When it is heard again it is as a
// host that was never heard. It is forgotten after an hour. [lb.Host.Since] says
// how long it has been taking connections, for policies that start a host slowly.
//
// A bad network never empties the cluster. While more than half of a service's
// hosts are Stale at once, the network is to blame, and they stay eligible; so do
// the last hosts of a service when all are Down, this one included. Where all are
// in their first two periods, they are taken at once.
//
// Reports are ordered by (Boot, Seq), so that an old datagram, delayed or
// replayed, changes nothing. A host that restarts has a higher Boot. Should its
// clock have gone backwards meanwhile, it is heard again once its former self is
// down. A host that comes back at another address replaces its former self, as
// does a host that comes back under another name at the same address; when two
// live hosts claim one name or one address, the one that booted last wins, on all
// boards alike, and [ErrConflict] says so.
//
// No report holds a time: the clocks of hosts need not agree. What a Board knows
// of time it is told by its caller, whose time.Now carries the monotonic clock,
// so a step of the wall clock changes nothing.
//
// # Trust
//
// With a [Keyring] each report carries an HMAC-SHA256 tag, cut to 16 bytes as RFC
// 2104 section 5 allows, under one of the cluster's keys. Without, it carries a
// CRC-32C, which finds damage and stops nobody: do so on networks that are the
// cluster's own. A datagram that is recorded and sent again is refused as long as
// the board remembers its sender.
package loadinfo
