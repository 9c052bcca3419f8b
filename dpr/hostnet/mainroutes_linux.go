package hostnet

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A mainRoute is a route of the main table and its MTU in bytes, 0 if it leads
// nowhere.
type mainRoute struct {
	netlink.Route
	mtu int
}

// mainRoutes lists the main table but for what leads to the TUN.
func (n *Net) mainRoutes(family int) ([]mainRoute, error) {
	routes, err := n.routes(family, unix.RT_TABLE_MAIN)
	if err != nil {
		return nil, err
	}
	links, err := listed(n.nl.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	mtu := map[int]int{}
	for _, l := range links {
		mtu[l.Attrs().Index] = l.Attrs().MTU
	}
	var list []mainRoute
	for _, r := range routes {
		if r.LinkIndex != n.tun.Attrs().Index {
			list = append(list, mainRoute{r, routeMTU(r, mtu)})
		}
	}
	return list, nil
}

// routeMTU returns the MTU of a route in bytes, 0 if it leads nowhere.
func routeMTU(r netlink.Route, links map[int]int) int {
	if r.MTU > 0 {
		return r.MTU
	}
	smallest := links[r.LinkIndex]
	for _, hop := range r.MultiPath {
		if m := links[hop.LinkIndex]; smallest == 0 || m < smallest {
			smallest = m
		}
	}
	return smallest
}
