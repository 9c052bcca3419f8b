package hostnet

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/carom-dpr/carom/dpr"
)

// OpenAnswers returns what TCP sends to [dpr.ProbePort] of this host in the family of
// client, a whole IP packet for each Read, which waits for one until Close. Client is the
// address that probes come from; the family's unspecified address is any at which a
// service is dialled. It sees packets as they come from the network, before the kernel's
// own TCP, for which no socket has the port, and takes none away. It needs CAP_NET_RAW.
//
// Where client's packets pass the capture program, that leads answers to the TUN, and no
// other packet costs anything. Elsewhere each packet that this host receives is looked at.
func (n *Net) OpenAnswers(client netip.Addr) (io.ReadCloser, error) {
	at := 0 // all interfaces
	captured, err := n.captures(client)
	if err != nil {
		return nil, fmt.Errorf("hostnet: packet socket for answers: %w", err)
	}
	if captured {
		at = n.tun.Attrs().Index
	}
	proto, program := uint16(unix.ETH_P_IP), answers4(dpr.ProbePort)
	if client.Is6() {
		proto, program = unix.ETH_P_IPV6, answers6(dpr.ProbePort)
	}
	filter, err := bpf.Assemble(program)
	if err != nil {
		return nil, fmt.Errorf("hostnet: filter for answers: %w", err)
	}
	// Without a protocol it hears nothing, until the filter is there.
	fd := -1
	err = n.inNamespace(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("hostnet: packet socket (needs CAP_NET_RAW): %w", err)
	}
	instructions := make([]unix.SockFilter, len(filter))
	for i, f := range filter {
		instructions[i] = unix.SockFilter{Code: f.Op, Jt: f.Jt, Jf: f.Jf, K: f.K}
	}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(instructions)), Filter: &instructions[0]})
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: proto<<8 | proto>>8, Ifindex: at})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("hostnet: packet socket for answers: %w", err), unix.Close(fd))
	}
	return answers{os.NewFile(uintptr(fd), "answers")}, nil
}

// captures reports whether the capture program sees what comes for an address.
func (n *Net) captures(a netip.Addr) (bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.capture == nil || a.IsUnspecified() {
		return n.capture != nil, nil
	}
	addrs, err := n.addrs(nil, netlink.FAMILY_ALL)
	if err != nil {
		return false, err
	}
	for _, c := range n.nics {
		at := func(have netlink.Addr) bool { return addrOf(have.IP) == a && have.LinkIndex == c.link.Attrs().Index }
		if c.link != nil && slices.ContainsFunc(addrs, at) {
			return true, nil
		}
	}
	return false, nil
}

// answers is a packet socket that hears again when its interface has been down.
type answers struct{ *os.File }

func (a answers) Read(b []byte) (n int, err error) {
	for {
		if n, err = a.File.Read(b); !errors.Is(err, unix.ENETDOWN) {
			return n, err
		}
	}
}

const (
	protoTCP = 6
	// wholePacket is what a filter returns to keep a packet.
	wholePacket = 1 << 16
	// tcpDstPort is where the destination port is in a TCP header.
	tcpDstPort = 2
)

// answers4 keeps IPv4 packets of TCP to the port, but for later fragments.
func answers4(port uint16) []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: 9, Size: 1}, // protocol
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: protoTCP, SkipTrue: 6},
		bpf.LoadAbsolute{Off: 6, Size: 2}, // fragment offset
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 0x1fff, SkipTrue: 4},
		bpf.LoadMemShift{Off: 0}, // length of the header
		bpf.LoadIndirect{Off: tcpDstPort, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(port), SkipTrue: 1},
		bpf.RetConstant{Val: wholePacket},
		bpf.RetConstant{Val: 0},
	}
}

// answers6 keeps IPv6 packets of TCP to the port. A kernel's answer to a SYN has no
// extension headers.
func answers6(port uint16) []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: 6, Size: 1}, // next header
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: protoTCP, SkipTrue: 3},
		bpf.LoadAbsolute{Off: 40 + tcpDstPort, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(port), SkipTrue: 1},
		bpf.RetConstant{Val: wholePacket},
		bpf.RetConstant{Val: 0},
	}
}
