// Package hostnet wires a Linux host to the engine: it brings the packets of the
// host's services to a TUN interface, lets packets that come back from there reach
// the host's servers, and takes all of that away again.
//
// On the entry host a small BPF program looks at each packet that arrives on a
// network interface. What is for a service and has no local socket goes to the
// TUN; the rest stays with the kernel and never enters user space. While the
// engine does not beat, see [Net.Beat], the kernel serves by itself.
//
// On the serving host an alias, see [Net.SetAliases], makes a peer's address local
// to packets that come from the TUN, and to those only. The server's answers leave
// directly with that address as their source, and announce a maximum segment size
// that leaves room for the tunnel.
//
// Everything is made through netlink and bpf(2), and no program is called. A [Net]
// leaves the host's own addresses, routes and settings alone, but for arp_ignore
// of the captured interfaces while an alias address is being added, and but for
// Config.ByRouting, which says what it changes. Rewritten answers, see Service.Reply,
// take a table of nftables, carom_ and the number of the first routing table. Tunnelled
// ones are led back to the TUN.
//
// The package works on Linux only, 5.8 or later; see [Probe] for what it needs.
package hostnet
