package header

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The fragments of a packet of 40 bytes with options, of which one is for all fragments.
func TestAppendFragment(t *testing.T) {
	const options = 12
	packet := IPv4(make([]byte, IPv4Len+options+40))
	PutIPv4(packet, &IPv4Fields{TotalLen: len(packet), ID: 7, More: true, FragOffset: 800, TTL: 64, Protocol: ProtoUDP})
	packet[0] = 4<<4 | (IPv4Len+options)/4
	copy(packet[IPv4Len:], []byte{7, 3, 4, 1, 0x82, 7, 1, 2, 3, 4, 5, 0}) // record route, NOP, security, end
	for i := range packet.Payload() {
		packet.Payload()[i] = byte(i)
	}
	room := FragmentRoom(packet, IPv4Len+options+23)
	require.Equal(t, 16, room)
	var got []byte
	for at := 0; at < len(packet.Payload()); at += room {
		before := []byte("before")
		piece := IPv4(AppendFragment(before, packet, at, room)[len(before):])
		require.True(t, piece.ChecksumOK())
		require.Equal(t, len(piece), piece.TotalLen())
		require.Equal(t, 800+at, piece.FragOffset())
		require.True(t, piece.More(), "the packet is not the last fragment itself")
		want := []byte{0x82, 7, 1, 2, 3, 4, 5, 0}
		if at == 0 {
			want = packet[IPv4Len : IPv4Len+options]
		}
		require.Equal(t, []byte(want), []byte(piece[IPv4Len:piece.HeaderLen()]))
		got = append(got, piece.Payload()...)
	}
	require.Equal(t, []byte(packet.Payload()), got)
	packet.SetFragment(false, false, 0)
	require.False(t, IPv4(AppendFragment(nil, packet, 32, room)).More())
}
