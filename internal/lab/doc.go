// Package lab builds networks of Linux network namespaces for tests and
// examples: hosts with real kernels' stacks, joined by Ethernet segments, on one
// machine and without touching its own network.
//
// A [Lab] has one namespace of its own that holds nothing but bridges, one per
// segment, and one namespace per [Host]. All of it is made through netlink; no
// program is called. A host's namespace is named in /run/netns, so `ip netns
// exec NAME` and `nsenter --net=PATH` reach it while the lab stands.
//
// Interfaces keep their default offloads, so super-frames cross a segment whole
// and checksums stay partial, as they do between virtual machines.
//
// The package works on Linux only, with CAP_SYS_ADMIN and CAP_NET_ADMIN; see
// [Require].
package lab
