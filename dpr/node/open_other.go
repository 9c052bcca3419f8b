//go:build !linux

package node

import "errors"

// Open returns an error on this system; New makes a node from the caller's parts.
func Open(Config) (*Node, error) {
	return nil, errors.New("node: Open works on Linux only; use New with a Host of your own")
}
