package hostnet

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// OpenAnswers returns what TCP sends to a port of this host in the family of the
// address, a whole IP packet for each Read, which waits for one until Close. It sees
// packets as they come from the network, before the kernel's own TCP, for which no
// socket has the port, and takes none away. It needs CAP_NET_RAW.
func OpenAnswers(family netip.Addr, port uint16) (io.ReadCloser, error) {
	proto, program := uint16(unix.ETH_P_IP), answers4(port)
	if family.Is6() {
		proto, program = unix.ETH_P_IPV6, answers6(port)
	}
	filter, err := bpf.Assemble(program)
	if err != nil {
		return nil, fmt.Errorf("hostnet: filter for answers: %w", err)
	}
	// Without a protocol it hears nothing, until the filter is there.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
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
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: proto<<8 | proto>>8})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("hostnet: packet socket for answers: %w", err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "answers"), nil
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
