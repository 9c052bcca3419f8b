package header_test

import (
	"testing"

	"github.com/carom-dpr/carom/internal/header"
)

func BenchmarkParse(b *testing.B) {
	for name, pkt := range map[string][]byte{
		"tcp4": tcp4(), "tcp6": tcp6(), "udp4": udp4(), "hopbyhop": hopByHop(),
	} {
		b.Run(name, func(b *testing.B) {
			var p header.Packet
			b.ReportAllocs()
			for b.Loop() {
				if p.Parse(pkt) != header.OK {
					b.Fatal("refused")
				}
			}
		})
	}
}
