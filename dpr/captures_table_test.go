package dpr_test

import (
	"net/netip"
	"strings"

	"github.com/carom-dpr/carom/dpr"
	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/internal/header"
)

// served is the service at a port and addresses.
func served(proto dpr.Proto, port uint16, addrs ...string) dpr.Service {
	s := dpr.Service{Name: "s", Proto: proto, Port: port}
	for _, a := range addrs {
		s.Addrs = append(s.Addrs, netip.MustParseAddr(a))
	}
	return s
}

func refused(reason header.Reason, n uint64) map[dpr.Reason]uint64 {
	return map[dpr.Reason]uint64{dpr.Reason(reason): n}
}

func opening(proto dpr.Proto, src, dst string, seq uint32) []byte {
	from, to := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)
	if proto == dpr.UDP {
		return dprtest.UDP(from, to, dprtest.Options{})
	}
	return dprtest.TCP(from, to, dprtest.Options{Flags: syn, Seq: seq})
}

type states = map[dpr.State]int

// captureRuns says what must come of each capture, by the file's name.
func captureRuns() map[string][]captureRun {
	all := make(map[string][]captureRun)
	for _, table := range []map[string][]captureRun{
		connectionCaptures, sizeCaptures, fragmentCaptures, errorCaptures, oddCaptures,
	} {
		for file, runs := range table {
			all[file] = runs
		}
	}
	return all
}

// Connections, as clients and servers really have them. What the server sends is no
// business of its host's engine and passes.
var connectionCaptures = map[string][]captureRun{
	// The SYN came again after a second, with another timestamp.
	"tcp_syn_retransmit_ts_vlan": {{
		service: served(dpr.TCP, 80, "10.38.251.147"),
		verdicts: "ffpffppfpfpfpfpfpfpfppfpfppppfpppppfpfpppffpppppppppffpfpfpp" +
			"pfpfpfpppfpfpfpfpfpfpfpfpfpfpfpfpfpfpfpfpfpfpfpfpfpfppffpfpf" +
			"pfpfpppfppppppppffffpfpppppppffppfpppfpfpfppfppfpfppfppfpfpp" +
			"fppfpfppfpfpfppfpfpfpfpfpfppffpfpfpfpppfpfpfpfpfpfpfpfpfpfpf" +
			"ppppppffffffpf",
		states: states{dpr.Closing: 1}, out: 1,
	}},
	// Two dozen SYNs with other sequence numbers: all are attempts at one connection
	// until one is answered. The client's 1,500 bytes are too long for the tunnel.
	"tcp_same_tuple_many_isn": {
		{
			service:  served(dpr.TCP, 80, "203.0.113.2"),
			verdicts: strings.Repeat("f", 24) + "pfrpfpfp",
			states:   states{dpr.Closing: 1}, out: 1,
		},
		{
			name:     "tunnel of 1500 bytes",
			service:  served(dpr.TCP, 80, "203.0.113.2"),
			mtu:      1500,
			verdicts: strings.Repeat("f", 24) + "pffpfpfp",
			states:   states{dpr.Closing: 1}, out: 1,
		},
	},
	"tcp_handshake_reordered": {{
		service:  served(dpr.TCP, 80, "203.0.113.1"),
		verdicts: "pfffpppppfffpf",
		states:   states{dpr.Closing: 1}, out: 1,
	}},
	// The client answers the server's bare SYN with SYN and ACK, and resets at last.
	"tcp_split_handshake_4way": {{
		service:  served(dpr.TCP, 80, "203.0.113.2"),
		verdicts: "fpfpfpf",
		states:   states{dpr.Closed: 1}, out: 1,
	}},
	"tcp_syn_flood_rfc5737": {{
		service:  served(dpr.TCP, 443, "198.51.100.5"),
		verdicts: strings.Repeat("f", 200),
		states:   states{dpr.Embryonic: 200}, out: 200, open: 200,
	}},
	// A connection that asks for a cookie, then one whose SYN brings data and cookie.
	"tcp_fast_open": {{
		service:  served(dpr.TCP, 80, "10.99.99.45"),
		verdicts: "fpfpppffppfpfpfp",
		states:   states{dpr.Closing: 2}, out: 2,
	}},
	// All that carries data was cut when it was recorded, and each TTL is 0. The RST
	// comes a minute later.
	"tcp_fast_retransmit_sack": {
		{
			service:  served(dpr.TCP, 80, "192.168.0.27"),
			verdicts: "rprdp" + "dddddddddd" + "rr" + "ddddd" + "rr" + "dd" + "rrrrr" + "drdrd" + "rrr",
			drops:    refused(header.Short, 21),
			states:   states{dpr.Closed: 1}, out: 1,
		},
		{
			name:     "TTL of 64",
			service:  served(dpr.TCP, 80, "192.168.0.27"),
			ttl:      64,
			verdicts: "fpfdp" + "dddddddddd" + "ff" + "ddddd" + "ff" + "dd" + "fffff" + "dfdfd" + "fff",
			drops:    refused(header.Short, 21),
			states:   states{dpr.Closed: 1}, out: 1,
		},
	},
	"tcp_rst_with_data": {{
		service:  served(dpr.TCP, 8080, "203.0.113.2"),
		verdicts: "fpfppppf",
		states:   states{dpr.Closed: 1}, out: 1,
	}},
	// A FIN without ACK proves nothing; the one with ACK ends the flow.
	"tcp_fin_before_synack": {{
		service:  served(dpr.TCP, 443, "203.0.113.1"),
		verdicts: "ffpfp",
		states:   states{dpr.Closing: 1}, out: 1,
	}},
	// The server judges windows, not the engine.
	"tcp_out_of_window_v4": {{
		service:  served(dpr.TCP, 80, "198.51.100.5"),
		verdicts: "fpf",
		states:   states{dpr.Established: 1}, out: 1, open: 1,
	}},
	// Client and server have one address. The subscriber, port 60831, was there
	// before the capture: nothing is known of its flow, and it is served here. The
	// three publishers come and go.
	"tcp_keepalive_redis_pubsub": {{
		service:  served(dpr.TCP, 6379, "127.0.0.1"),
		verdicts: "lppllpplfpfpfpppflfppflpfpfpfpppflfppffpfpfppflpfppflppllppl",
		unknown:  12, states: states{dpr.Closing: 3}, out: 3,
	}},
	"tcp_urgent_1byte": {{
		service:  served(dpr.TCP, 9090, "10.10.10.55"),
		verdicts: "fpfffppfppfpfpfp",
		states:   states{dpr.Closing: 1}, out: 1,
	}},
	// The client's checksums were left to its card, and must stay as wrong.
	"tcp_accecn_handshake": {{
		service:  served(dpr.TCP, 80, "203.0.113.2"),
		verdicts: "fpffpp",
		states:   states{dpr.Established: 1}, out: 1, open: 1,
	}},
	// Ten flows: one began before the capture, one has another client and server.
	"http_many_flows_wikipedia_tcp_only": {
		{
			service: served(dpr.TCP, 80, "203.0.113.2", "203.0.113.3", "203.0.113.4"),
			verdicts: "lplfpffppffffffffpffpffpffpfpfffpffpffpppffpffppffpppfpfpffp" +
				"ffppfpppfppffpfffp",
			unknown: 2, states: states{dpr.Established: 8}, out: 8, open: 8,
		},
		{
			name:    "from a peer",
			service: served(dpr.TCP, 80, "203.0.113.2", "203.0.113.3", "203.0.113.4"),
			peer:    true,
			verdicts: "ldlldllddlllllllldlldlldlldldllldlldlldddlldllddlldddldldlld" +
				"llddldddlddlldllld",
			drops: map[dpr.Reason]uint64{dpr.NotService: 1, dpr.Unsolicited: 31}, // the servers' answers
			in:    8,
		},
	},
	"quic_handshake": {{
		service:  served(dpr.UDP, 443, "203.0.113.2"),
		verdicts: "pppp" + "fppffffpp",
		states:   states{dpr.UDPFlow: 1}, out: 1, open: 1,
	}},
}

// Packets that may be too long: for a field, for a tunnel.
var sizeCaptures = map[string][]captureRun{
	// 64 KiB of MTU on a loopback interface. What is too long for the tunnel cannot
	// be answered, since nobody may send to ::1 from outside.
	"tcp_zero_window_jumbo_v6_loopback": {
		{
			name:     "tunnel of 65535 bytes",
			service:  served(dpr.TCP, 1883, "::1"),
			mtu:      65535,
			verdicts: "fpffppffpf" + "ff" + "pp" + "ff" + "pp" + "fpfpffppffpff" + "pfff" + "pf",
			states:   states{dpr.Closing: 1}, out: 1,
		},
		{
			name:     "tunnel of 1452 bytes",
			service:  served(dpr.TCP, 1883, "::1"),
			verdicts: "fpffppffpf" + "dd" + "pp" + "dd" + "pp" + "fpfpffppffpff" + "pfff" + "pf",
			drops:    map[dpr.Reason]uint64{dpr.TooBig: 4},
			states:   states{dpr.Closing: 1}, out: 1,
		},
	},
	// One packet of 7,292 bytes whose checksum is that of the pseudo-header: five
	// segments of 1,448 bytes, as its timestamps option and an MTU of 1500 make them.
	"gso_ipv4_superframes": {
		{
			name:     "nothing known of its flow",
			service:  gsoService,
			verdicts: "l", unknown: 1,
		},
		{
			name:     "as one packet",
			service:  gsoService,
			first:    gsoFirst,
			verdicts: "r",
			states:   states{dpr.Established: 1}, out: 1, open: 1,
		},
		{
			name:     "segments of 1500 bytes, tunnel of 1500",
			service:  gsoService,
			first:    gsoFirst,
			gso:      gsoOf(1448),
			mtu:      1500,
			verdicts: "f",
			states:   states{dpr.Established: 1}, out: 1, open: 1,
		},
		{
			name:     "segments of 1500 bytes, tunnel of 1499",
			service:  gsoService,
			first:    gsoFirst,
			gso:      gsoOf(1448),
			mtu:      1499,
			verdicts: "r",
			states:   states{dpr.Established: 1}, out: 1, open: 1,
		},
		{
			name:     "segments of 1452 bytes",
			service:  gsoService,
			first:    gsoFirst,
			gso:      gsoOf(1400),
			verdicts: "f",
			states:   states{dpr.Established: 1}, out: 1, open: 1,
		},
	},
	"tso_ipv4_total_length_zero": {{
		service:  served(dpr.TCP, 80, "203.0.113.2"),
		verdicts: "d",
		drops:    refused(header.BadTotalLen, 1),
	}},
	// Recorded with 54 or so bytes of each frame: 12 packets are longer, the SYN
	// among them, so the client's ACKs and FIN belong to no flow.
	"tcp_truncated_header": {{
		service:  served(dpr.TCP, 25, "203.0.113.2"),
		verdicts: "dpldldpddpddpddpdldpdplp",
		drops:    refused(header.Short, 12),
		unknown:  4,
	}},
	"mal_ipv4_hdr_len": {{
		service: served(dpr.TCP, 80, "203.0.113.1"), verdicts: "d", drops: refused(header.BadHeaderLen, 1),
	}},
	"mal_ipv6_39_bytes": {{
		service: served(dpr.TCP, 80, "203.0.113.1"), verdicts: "d", drops: refused(header.Short, 1),
	}},
	"mal_tcp_header": {{
		service: served(dpr.TCP, 12336, "203.0.113.1"), verdicts: "d", drops: refused(header.Short, 1),
	}},
	"mal_udp_length": {{
		service: served(dpr.UDP, 12336, "203.0.113.1"), verdicts: "d", drops: refused(header.Short, 1),
	}},
}

var (
	gsoService = served(dpr.TCP, 39701, "10.25.132.13")
	gsoFirst   = opening(dpr.TCP, "10.25.132.11:38407", "10.25.132.13:39701", 964901298)
)

// gsoOf is what a virtio header says of the super-frame: 20 bytes of IPv4, 32 of TCP.
func gsoOf(size uint16) dpr.GSO {
	return dpr.GSO{Type: dpr.GSOTCP4, NeedsCsum: true, CsumStart: 20, CsumOffset: 16, HdrLen: 52, Size: size}
}

var fragmentCaptures = map[string][]captureRun{
	// A first fragment of 18 bytes, which is no multiple of eight; then the last one,
	// from byte 48 on; then a first one of 304 bytes.
	"frag4_mixed_1": {{
		service:  served(dpr.UDP, 137, "203.0.113.2"),
		verdicts: "dhf", extra: "f",
		drops:  refused(header.BadFragment, 1),
		states: states{dpr.UDPNew: 1, dpr.Fragment: 1}, out: 1, open: 1,
	}},
	// Eight bytes of a TCP header at a time (RFC 1858).
	"frag4_tcp_syn_tiny": {{
		service:  served(dpr.TCP, 8080, "2.2.2.2"),
		verdicts: "ddd",
		drops:    map[dpr.Reason]uint64{dpr.Reason(header.FirstFragmentShort): 1, dpr.Reason(header.BadFragment): 2},
	}},
	// Three questions from two ports. The second answer lost its first fragment, the
	// third is whole.
	"frag6_dns": {
		{
			service:  served(dpr.UDP, 53, "2001:db8::2"),
			verdicts: "fpfpfppp",
			states:   states{dpr.UDPNew: 1, dpr.UDPFlow: 1}, out: 2, open: 2,
		},
		{
			name:     "answers are for the service, tunnel of 1500 bytes",
			service:  served(dpr.UDP, 51851, "2001:db8::1"),
			mtu:      1500,
			verdicts: "ppphpfff",
			drops:    map[dpr.Reason]uint64{dpr.FragmentLost: 1},
			states:   states{dpr.UDPNew: 1, dpr.Fragment: 1}, out: 1, open: 1,
		},
		{
			name:     "answers are for the service, and too long for the tunnel",
			service:  served(dpr.UDP, 51851, "2001:db8::1"),
			verdicts: "ppphprhh",
			drops:    map[dpr.Reason]uint64{dpr.FragmentLost: 1},
			states:   states{dpr.UDPNew: 1}, out: 1, open: 1,
		},
	},
}

// ICMP errors go where the flow that they quote goes.
var errorCaptures = map[string][]captureRun{
	"icmp4_frag_needed_8byte_quote": {
		{
			name:     "own flow",
			service:  served(dpr.TCP, 1470, "192.0.2.4"),
			verdicts: "llll",
		},
		{
			name:     "redirected flow",
			service:  served(dpr.TCP, 1470, "192.0.2.4"),
			first:    opening(dpr.TCP, "203.0.113.153:25", "192.0.2.4:1470", 1),
			verdicts: "ffff",
			states:   states{dpr.Embryonic: 1}, out: 1, open: 1,
		},
		{
			name:     "from a peer",
			service:  served(dpr.TCP, 1470, "192.0.2.4"),
			peer:     true,
			verdicts: "llll",
		},
		{
			name:     "no service",
			service:  served(dpr.TCP, 1471, "192.0.2.4"),
			verdicts: "pppp",
		},
	},
	"icmp4_unreach_udp": {
		{
			name:     "own flow",
			service:  served(dpr.UDP, 53, "192.168.1.1"),
			verdicts: "l",
		},
		{
			name:     "redirected flow",
			service:  served(dpr.UDP, 53, "192.168.1.1"),
			first:    opening(dpr.UDP, "192.168.1.102:59207", "192.168.1.1:53", 0),
			verdicts: "f",
			states:   states{dpr.UDPNew: 1}, out: 1, open: 1,
		},
	},
	"icmp4_unreach_no_context": {
		{
			service:  served(dpr.TCP, 80, "10.0.0.2"),
			verdicts: "p",
		},
		{
			name:     "from a peer",
			service:  served(dpr.TCP, 80, "10.0.0.2"),
			peer:     true,
			verdicts: "d",
			drops:    map[dpr.Reason]uint64{dpr.NotService: 1},
		},
	},
	"icmp6_too_big": {
		{
			name:     "own flow",
			service:  served(dpr.UDP, 30000, "fe80::beef"),
			verdicts: "l",
		},
		{
			name:     "redirected flow",
			service:  served(dpr.UDP, 30000, "fe80::beef"),
			first:    opening(dpr.UDP, "[fe80::dead]:13000", "[fe80::beef]:30000", 0),
			verdicts: "f",
			states:   states{dpr.UDPNew: 1}, out: 1, open: 1,
		},
	},
	// It quotes a first fragment of IPv6 in IPv6, which has no ports.
	"icmp6_incomplete_header_chain": {{
		service:  served(dpr.TCP, 80, "2001:630:42:110:ae1f:6bff:fe46:9eda"),
		verdicts: "p",
	}},
}

var oddCaptures = map[string][]captureRun{
	"cksum_ip4_tcp_bad": {{
		service:  served(dpr.TCP, 80, "127.0.0.1"),
		verdicts: "f",
		states:   states{dpr.Embryonic: 1}, out: 1, open: 1,
	}},
	// Two segments are left: this address is a stop on the way.
	"cksum_ip6_route0_tcp_good": {
		{
			service:  served(dpr.TCP, 80, "2001:4f8:4:7:2e0:81ff:fe52:9a6b"),
			verdicts: "p",
		},
		{
			name:     "from a peer",
			service:  served(dpr.TCP, 80, "2001:4f8:4:7:2e0:81ff:fe52:9a6b"),
			peer:     true,
			verdicts: "d",
			drops:    map[dpr.Reason]uint64{dpr.NotService: 1},
		},
	},
	// Neighbor discovery, then four connections: with destination options, atomic
	// fragments, hop-by-hop options, and a routing header that is done. The last one
	// was cut off before its end.
	"ext6_http_atomic_frag_rh_dstopt": {{
		service:  served(dpr.TCP, 80, "2001:db8:1::1"),
		verdicts: "pp" + "pffppfpffp" + "fpffpppffp" + "fpffpppffp" + "fpffpp",
		states:   states{dpr.Closing: 3, dpr.Established: 1}, out: 4, open: 1,
	}},
	// One echo request behind 175 fragment headers. The error about it quotes it, and
	// is the kernel's to judge.
	"ext6_many_fragment_headers": {{
		service:  served(dpr.TCP, 80, "2001:db8:1::1"),
		verdicts: "ppppdpppp",
		drops:    refused(header.ExtLimit, 1),
	}},
	// The same SYN with eight options; the second has a loose source route, the
	// seventh a strict one.
	"ipopt_rr_lsrr_ssrr_ts_sec": {{
		service:  served(dpr.TCP, 80, "13.14.15.16"),
		verdicts: "fdffffdf",
		drops:    refused(header.SourceRoute, 2),
		states:   states{dpr.Embryonic: 1}, out: 1, open: 1,
	}},
	// Tunnels of others are not looked into.
	"tun_ipip_icmp": {
		{
			service:  served(dpr.TCP, 80, "10.1.0.237", "192.168.0.237"),
			verdicts: "pppppp",
		},
		{
			name:     "from a peer",
			service:  served(dpr.TCP, 80, "10.1.0.237", "192.168.0.237"),
			peer:     true,
			verdicts: "dddddd",
			drops:    map[dpr.Reason]uint64{dpr.NotService: 6},
		},
	},
	"tun_gre_sample": {
		{
			service:  served(dpr.TCP, 22, "172.28.2.3", "203.0.113.1"),
			verdicts: strings.Repeat("p", 40),
		},
		{
			name:     "taken out of the tunnel", // IPv4 and GRE: 24 bytes
			service:  served(dpr.TCP, 22, "172.28.2.3"),
			strip:    24,
			verdicts: "pppppppppp" + "fpfpffpfpf" + "pfppffppff" + "pfpppppppp",
			states:   states{dpr.Closing: 1}, out: 1,
		},
	},
	// Datagrams without a checksum, which must not get one.
	"tun_vxlan": {{
		service:  served(dpr.UDP, 4789, "192.168.56.12"),
		verdicts: "fpfpfpfpfp",
		states:   states{dpr.UDPNew: 1, dpr.UDPFlow: 1}, out: 2, open: 2,
	}},
	// Two datagrams to the subnet, two to a group, and a question of ARP, which is no
	// IP packet.
	"vlan_qinq": {{
		service:  served(dpr.UDP, 47808, "172.19.51.63"),
		verdicts: "ffpp",
		states:   states{dpr.UDPFlow: 1}, out: 1, open: 1,
	}},
}
