package gossip

import "encoding/binary"

// bounded reports whether each length that a message in MessagePack states is one that
// the message has room for. The decoder of memberlist believes them, and takes up to
// 4 GB for a string, of which there need not be a single byte.
func bounded(b []byte) bool {
	for len(b) > 0 {
		width, size, children := token(b[0])
		b = b[1:]
		if len(b) < width {
			return false
		}
		n := number(b[:width])
		b = b[width:]
		if children > 0 {
			if n += uint64(size); n*uint64(children) > uint64(len(b)) { // each takes a byte at least
				return false
			}
			continue
		}
		if n += uint64(size); n > uint64(len(b)) {
			return false
		}
		b = b[n:]
	}
	return true
}

// token says what follows the first byte of a value: the width of a length, and the
// bytes that come with it or without it. For an array or a map, size is the number of
// elements, and children what an element consists of. The format is that of
// https://github.com/msgpack/msgpack/blob/master/spec.md.
func token(first byte) (width, size, children int) {
	switch {
	case first < 0x80, first >= 0xe0: // small integers
		return 0, 0, 0
	case first < 0x90:
		return 0, int(first & 0xf), 2 // map
	case first < 0xa0:
		return 0, int(first & 0xf), 1 // array
	case first < 0xc0:
		return 0, int(first & 0x1f), 0 // string
	}
	t := tokens[first-0xc0]
	return int(t[0]), int(t[1]), int(t[2])
}

// tokens are those from 0xc0 to 0xdf.
var tokens = [32][3]uint8{
	{}, {}, {}, {}, // nil, unused, false, true
	{1, 0}, {2, 0}, {4, 0}, // bytes
	{1, 1}, {2, 1}, {4, 1}, // extensions, with their type
	{0, 4}, {0, 8}, // floats
	{0, 1}, {0, 2}, {0, 4}, {0, 8}, // unsigned integers
	{0, 1}, {0, 2}, {0, 4}, {0, 8}, // signed integers
	{0, 2}, {0, 3}, {0, 5}, {0, 9}, {0, 17}, // extensions of a fixed length, with their type
	{1, 0}, {2, 0}, {4, 0}, // strings
	{2, 0, 1}, {4, 0, 1}, // arrays
	{2, 0, 2}, {4, 0, 2}, // maps
}

// number reads a length of 0, 1, 2 or 4 bytes.
func number(b []byte) uint64 {
	var wide [8]byte
	copy(wide[8-len(b):], b)
	return binary.BigEndian.Uint64(wide[:])
}
