package gue

import "github.com/carom-dpr/carom/internal/tunnel"

// mergeECN brings what the outer header says of congestion into the inner packet.
// It reports false if the packet is to be dropped instead.
func mergeECN(inner []byte, outer uint8) bool { return tunnel.MergeECN(inner, outer) }
