package header_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/dpr/dprtest"
	"github.com/carom-dpr/carom/internal/header"
)

var (
	from4 = netip.MustParseAddrPort("192.0.2.10:40000")
	to4   = netip.MustParseAddrPort("198.51.100.1:80")
	from6 = netip.MustParseAddrPort("[2001:db8:c::10]:40000")
	to6   = netip.MustParseAddrPort("[2001:db8:f::1]:80")
	hop4  = netip.MustParseAddr("192.0.2.254")
	hop6  = netip.MustParseAddr("2001:db8:c::fe")
)

// A sample is a packet of one kind, and what the parser says of it.
type sample struct {
	pkt  []byte
	want header.Reason
}

// crafted returns a packet of each kind that real captures show. They are the seeds
// of the fuzz targets, and what the parser is compared with its oracle on.
func crafted() map[string]sample {
	type options = dprtest.Options
	all := map[string]sample{
		"syn with timestamps, sack and window scale": {tcp4(), header.OK},
		"data over ipv6": {tcp6(), header.OK},
		"udp4":           {udp4(), header.OK},
		"udp6":           {udp6(), header.OK},
		"empty":          {nil, header.Short},
		"syn with ecn":   {dprtest.TCP(from4, to4, options{Flags: dprtest.SYN | dprtest.ECE | dprtest.CWR, TOS: 2}), header.OK},
		"syn with data":  {dprtest.TCP(from4, to4, options{Flags: dprtest.SYN, TCPOptions: unhex("22 0a 0102030405060708"), Payload: []byte("GET /")}), header.OK},
		"urgent byte":    {with(dprtest.TCP(from4, to4, options{Flags: dprtest.ACK | dprtest.URG, Payload: []byte("!")}), 38, 0, 1), header.OK},
		"zero window":    {with(dprtest.TCP(from4, to4, options{Flags: dprtest.ACK}), 34, 0, 0), header.OK},
		"rst with data":  {dprtest.TCP(from4, to4, options{Flags: dprtest.RST | dprtest.ACK, Payload: []byte("go away")}), header.OK},
		"wrong checksum": {dprtest.TCP(from4, to4, options{Flags: dprtest.SYN, Checksum: dprtest.Wrong}), header.OK},
		"partial sum":    {dprtest.TCP(from4, to4, options{Flags: dprtest.ACK, Checksum: dprtest.Partial, Payload: make([]byte, 7252)}), header.OK},
		"no udp sum":     {dprtest.UDP(from4, to4, options{Checksum: dprtest.None, Payload: make([]byte, 50)}), header.OK},
		"padded":         {append(tcp4(), make([]byte, 6)...), header.OK},
		"record route":   {dprtest.TCP(from4, to4, options{Flags: dprtest.SYN, IPOptions: unhex("07 0b 04 c0000201 00000000")}), header.OK},
		"timestamps":     {dprtest.TCP(from4, to4, options{Flags: dprtest.SYN, IPOptions: unhex("44 0c 05 00 00000001 00000000")}), header.OK},
		"security":       {dprtest.TCP(from4, to4, options{Flags: dprtest.SYN, IPOptions: unhex("82 0b 000000000000000000")}), header.OK},
		"stream id":      {dprtest.TCP(from4, to4, options{Flags: dprtest.SYN, IPOptions: unhex("88 04 0001")}), header.OK},
		"loose route":    {dprtest.TCP(from4, to4, options{Flags: dprtest.SYN, IPOptions: unhex("83 07 04 c0000201 00")}), header.SourceRoute},
		"strict route":   {dprtest.TCP(from4, to4, options{Flags: dprtest.SYN, IPOptions: unhex("89 07 04 c0000201 00")}), header.SourceRoute},

		"length 0 of a super-frame": {with(tcp4(), 2, 0, 0), header.BadTotalLen},
		"ipv4 header of 16 bytes":   {with(tcp4(), 0, 0x44), header.BadHeaderLen},
		"ipv6 header of 39 bytes":   {tcp6()[:39], header.Short},
		"tcp header cut":            {tcp4()[:32], header.Short},
		"udp header cut":            {udp4()[:26], header.Short},

		"8 bytes quoted":        {dprtest.TooBig(hop4, dprtest.TCP(to4, from4, options{DF: true}), 1492, dprtest.ShortQuote), header.OK},
		"udp quoted":            {dprtest.PortUnreachable(to4.Addr(), udp4(), dprtest.LongQuote), header.OK},
		"nothing quoted":        {dprtest.ICMP(hop4, from4.Addr(), 3, 0, 0, options{}), header.OK},
		"too big, ipv6":         {dprtest.TooBig(hop6, dprtest.TCP(to6, from6, options{}), 1280, dprtest.LongQuote), header.OK},
		"incomplete chain":      {dprtest.ICMPError(hop6, tcp6(), 4, 3, 0, 40), header.OK},
		"ip in ip":              {dprtest.IP(from4.Addr(), to4.Addr(), 4, options{DF: true, Payload: tcp4()}), header.OK},
		"gre":                   {dprtest.IP(from4.Addr(), to4.Addr(), 47, options{Payload: append(unhex("00000800"), tcp4()...)}), header.OK},
		"many fragment headers": {ip6(header.ProtoFragment, bytes.Repeat(unhex("2c00 0000 0000beef"), 100), data6()), header.ExtLimit},
		"many options headers":  {ip6(header.ProtoDestOpts, bytes.Repeat(unhex("3c00 0104 00000000"), 9), data6()), header.ExtLimit},
		"tiny first fragment":   {ip4(header.IPv4Fields{Protocol: 6, More: true}, syn4()[:8]), header.FirstFragmentShort},
		"tiny second fragment":  {ip4(header.IPv4Fields{Protocol: 6, FragOffset: 8, More: true}, syn4()[8:16]), header.BadFragment},
	}
	for name, ext := range map[string][]dprtest.Extension{
		"hop by hop":              {dprtest.HopByHop()},
		"destination options":     {dprtest.DestOpts(16)},
		"atomic fragment":         {dprtest.AtomicFragment(7)},
		"routing, one stop to go": {dprtest.Routing(1, hop6)},
		"routing, done":           {dprtest.Routing(0, hop6)},
		"authentication":          {dprtest.Auth(1, 1)},
		"all but the last":        {dprtest.HopByHop(), dprtest.Routing(0, hop6), dprtest.AtomicFragment(7), dprtest.DestOpts(8)},
	} {
		all[name] = sample{dprtest.TCP(from6, to6, options{Flags: dprtest.SYN, Extensions: ext}), header.OK}
	}
	for name, pkt := range map[string][]byte{
		"ipv4": dprtest.UDP(from4, to4, options{ID: 9, Payload: make([]byte, 3000)}),
		"ipv6": dprtest.UDP(from6, to6, options{Payload: make([]byte, 3000)}),
	} {
		for i, f := range dprtest.Fragment(pkt, 1300) {
			all[fmt.Sprintf("%s fragment %d", name, i)] = sample{f, header.OK}
		}
	}
	return all
}

func TestCraftedKinds(t *testing.T) {
	for name, s := range crafted() {
		var p header.Packet
		require.Equal(t, s.want.String(), p.Parse(s.pkt).String(), name)
	}
}
