package hostnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
)

// Rewritten returns the TCP connections that were dialled at one of the addresses and
// that conntrack has rewritten, as their servers see them: this host's end, and the
// client's. Without services whose Reply is rewritten there are none.
func (n *Net) Rewritten(dialled []netip.Addr) (list [][2]netip.AddrPort, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.closed:
		return nil, fmt.Errorf("hostnet: Rewritten: %w", os.ErrClosed)
	case n.tracked == nil || n.rewrite.done == "":
		return nil, nil
	}
	for _, f := range families {
		flows, err := n.tracked.ConntrackTableList(netlink.ConntrackTable, netlink.InetFamily(f.id))
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, fmt.Errorf("hostnet: list of tracked connections: %w", err)
		}
		for _, c := range flows {
			to := c.Forward.DstIP
			if c.Forward.Protocol == protocolTCP && !to.Equal(c.Reverse.SrcIP) && slices.Contains(dialled, addrOf(to)) {
				list = append(list, [2]netip.AddrPort{
					endOf(c.Reverse.SrcIP, c.Reverse.SrcPort), endOf(c.Reverse.DstIP, c.Reverse.DstPort),
				})
			}
		}
	}
	return list, nil
}

func endOf(a net.IP, port uint16) netip.AddrPort { return netip.AddrPortFrom(addrOf(a), port) }
