package loadinfo

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/carom-dpr/carom/lb"
)

// The encoding of a report; all numbers are big-endian:
//
//	0   magic 0xca
//	1   version 1
//	2   key ID, 0 for none
//	3   state
//	4   length of the whole datagram, 2 bytes
//	6   boot, 8 bytes
//	14  weight, 2 bytes
//	16  seq, a varint of up to 10 bytes
//	    fields: type, length, value
//	    tag: HMAC-SHA256 of all before it, cut to 16 bytes; CRC-32C without a key
//
// A field of a type that the reader does not know is skipped: a later release may
// add some without a new version. The version says how to find the fields and
// the tag; a reader takes no other than its own.
const (
	magic   = 0xca
	version = 1
	fixed   = 16 // bytes before seq
)

// The types of fields. A list that is longer than the 255 bytes of a field takes
// several.
const (
	fieldID        = 1 // the name
	fieldNode      = 2 // address of 4 or 16 bytes, port
	fieldResources = 3 // four shares of 2 bytes: CPU, memory, disk, network
	fieldDialled4  = 4 // addresses of 4 bytes
	fieldDialled6  = 5 // addresses of 16 bytes
	fieldServices  = 6 // entries of serviceLen bytes
	fieldWork      = 7 // entries of workLen bytes, in the order of the services
	fieldPeriod    = 8 // milliseconds, as a quantity of 2 bytes
	fieldNamed     = 9 // entries: length of the name, name, namedLen bytes
)

// serviceLen is the length of one service, in bytes: ID, connections, weight and
// a byte of flags, of which the lowest says healthy.
const serviceLen = 4 + 4 + 2 + 1

// workLen is the length of the work on one service, in bytes: requests in flight,
// latency in microseconds, milliseconds since it is served, each a quantity.
const workLen = 2 + 2 + 2

// namedLen is the length of a resource behind its name, in bytes: the used share,
// the capacity as a quantity, the age in milliseconds as a quantity.
const namedLen = 2 + 2 + 2

// Why a datagram is not a report. Errors that ParseReport and Board.Receive
// return match one of these.
var (
	// ErrTruncated: the datagram is shorter, or longer, than it says.
	ErrTruncated = errors.New("loadinfo: report truncated")
	// ErrVersion: the datagram is not of this protocol, or of another version.
	ErrVersion = errors.New("loadinfo: not a report of this version")
	// ErrKey: the report is tagged with a key that the reader does not have.
	ErrKey = errors.New("loadinfo: report under an unknown key")
	// ErrTag: the report was changed on its way, or its sender lies.
	ErrTag = errors.New("loadinfo: report with a wrong tag")
	// ErrMalformed: the report was sent as it is and cannot be understood.
	ErrMalformed = errors.New("loadinfo: report malformed")
)

// Append appends the encoded report to b, tagged with the keyring's first key.
func (r *Report) Append(b []byte, keys *Keyring) ([]byte, error) {
	if err := r.Validate(); err != nil {
		return b, err
	}
	start := len(b)
	b = append(b, magic, version, keys.sendID(), byte(r.State), 0, 0)
	b = binary.BigEndian.AppendUint64(b, r.Boot)
	b = binary.BigEndian.AppendUint16(b, r.Weight)
	b = binary.AppendUvarint(b, r.Seq)
	b = r.appendFields(b)
	binary.BigEndian.PutUint16(b[start+4:], uint16(len(b)-start+keys.trailer()))
	return keys.appendTag(b, keys.sendID(), b[start:]), nil
}

func (r *Report) appendFields(b []byte) []byte {
	b = appendField(b, fieldID, []byte(r.ID))
	if r.Period > 0 {
		b = append(b, fieldPeriod, 2)
		b = binary.BigEndian.AppendUint16(b, encodeTime(r.Period, time.Millisecond))
	}
	if r.Resources != Unknown {
		b = append(b, fieldResources, 8)
		for _, x := range []float32{r.Resources.CPU, r.Resources.Memory, r.Resources.Disk, r.Resources.Network} {
			b = binary.BigEndian.AppendUint16(b, encodeShare(x))
		}
	}
	b = r.appendServices(b)
	if len(r.Named) > 0 {
		b = appendField(b, fieldNamed, appendNamed(nil, r.Named))
	}
	if r.Node.IsValid() {
		node := append(r.Node.Addr().Unmap().AsSlice(), byte(r.Node.Port()>>8), byte(r.Node.Port()))
		b = appendField(b, fieldNode, node)
	}
	return r.appendDialled(b)
}

func (r *Report) appendDialled(b []byte) []byte {
	var v4, v6 []byte
	for _, a := range r.Dialled {
		if a = a.Unmap(); a.Is4() {
			v4 = append(v4, a.AsSlice()...)
		} else {
			v6 = append(v6, a.AsSlice()...)
		}
	}
	b = appendList(b, fieldDialled4, v4, 4)
	return appendList(b, fieldDialled6, v6, 16)
}

// appendServices appends the services, and the work on them if there is any to
// tell of.
func (r *Report) appendServices(b []byte) []byte {
	var services, work []byte
	tell := false
	for _, s := range r.Services {
		services, work = appendService(services, s), appendWork(work, s)
		tell = tell || s.InFlight != 0 || s.Latency > 0 || s.Since > 0
	}
	b = appendList(b, fieldServices, services, serviceLen)
	if tell {
		b = appendList(b, fieldWork, work, workLen)
	}
	return b
}

func appendWork(b []byte, s ServiceReport) []byte {
	b = binary.BigEndian.AppendUint16(b, encodeQuantity(uint64(s.InFlight)))
	b = binary.BigEndian.AppendUint16(b, encodeTime(s.Latency, time.Microsecond))
	return binary.BigEndian.AppendUint16(b, encodeTime(s.Since, time.Millisecond))
}

func appendNamed(b []byte, list []NamedResource) []byte {
	for _, x := range list {
		b = append(append(b, byte(len(x.Name))), x.Name...)
		b = binary.BigEndian.AppendUint16(b, encodeShare(x.Used))
		b = binary.BigEndian.AppendUint16(b, encodeQuantity(x.Capacity))
		b = binary.BigEndian.AppendUint16(b, encodeTime(x.Age, time.Millisecond))
	}
	return b
}

func appendService(b []byte, s ServiceReport) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(s.ID))
	b = binary.BigEndian.AppendUint32(b, s.Conns)
	b = binary.BigEndian.AppendUint16(b, s.Weight)
	if s.Healthy {
		return append(b, 1)
	}
	return append(b, 0)
}

func appendField(b []byte, kind byte, value []byte) []byte {
	return append(append(b, kind, byte(len(value))), value...)
}

// appendList appends a list of items of the given size, in as many fields as it
// takes.
func appendList(b []byte, kind byte, list []byte, size int) []byte {
	room := 255 / size * size
	for len(list) > 0 {
		n := min(room, len(list))
		b, list = appendField(b, kind, list[:n]), list[n:]
	}
	return b
}

// ParseReport decodes a datagram. It takes what the keyring has a key for: with a
// nil keyring reports without a tag, and no others. The report shares no memory
// with b.
func ParseReport(b []byte, keys *Keyring) (Report, error) {
	var r Report
	switch {
	case len(b) < 2:
		return r, ErrTruncated
	case b[0] != magic || b[1] != version:
		return r, ErrVersion
	case len(b) < fixed+keys.trailer() || len(b) > MaxReport,
		int(binary.BigEndian.Uint16(b[4:])) != len(b):
		return r, ErrTruncated
	}
	body := b[:len(b)-keys.trailer()]
	if err := keys.verify(b[2], body, b[len(body):]); err != nil {
		return r, err
	}
	r.State, r.Resources = State(b[3]), Unknown
	r.Boot = binary.BigEndian.Uint64(b[6:])
	r.Weight = binary.BigEndian.Uint16(b[14:])
	seq, n := binary.Uvarint(body[fixed:])
	if n <= 0 {
		return r, fmt.Errorf("%w: seq", ErrMalformed)
	}
	r.Seq = seq
	if err := r.parseFields(body[fixed+n:]); err != nil {
		return r, err
	}
	if err := r.Validate(); err != nil {
		return r, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return r, nil
}

func (r *Report) parseFields(b []byte) error {
	var work []byte
	for len(b) > 0 {
		if len(b) < 2 || len(b) < 2+int(b[1]) {
			return fmt.Errorf("%w: a field reaches beyond the end", ErrMalformed)
		}
		kind, value := b[0], b[2:2+int(b[1])]
		if !r.parseField(kind, value) {
			return fmt.Errorf("%w: field %d of %d bytes", ErrMalformed, kind, len(value))
		}
		if kind == fieldWork {
			work = append(work, value...)
		}
		b = b[2+len(value):]
	}
	if !r.parseWork(work) {
		return fmt.Errorf("%w: work of %d bytes on %d services", ErrMalformed, len(work), len(r.Services))
	}
	return nil
}

// parseField reports whether the field makes sense. What may be there once only
// is refused the second time.
func (r *Report) parseField(kind byte, v []byte) bool {
	switch kind {
	case fieldID:
		once := r.ID == ""
		r.ID = string(v)
		return once
	case fieldNode:
		if r.Node.IsValid() || (len(v) != 6 && len(v) != 18) {
			return false
		}
		addr, ok := parseAddr(v[:len(v)-2])
		r.Node = netip.AddrPortFrom(addr, binary.BigEndian.Uint16(v[len(v)-2:]))
		return ok
	case fieldResources:
		if len(v) < 8 {
			return false
		}
		share := func(i int) float32 { return decodeShare(binary.BigEndian.Uint16(v[2*i:])) }
		r.Resources = lb.Resources{CPU: share(0), Memory: share(1), Disk: share(2), Network: share(3)}
		return true
	case fieldDialled4:
		return r.parseDialled(v, 4)
	case fieldDialled6:
		return r.parseDialled(v, 16)
	case fieldServices:
		return r.parseServices(v)
	case fieldPeriod:
		if len(v) != 2 {
			return false
		}
		r.Period = decodeTime(binary.BigEndian.Uint16(v), time.Millisecond)
		return true
	case fieldNamed:
		return r.parseNamed(v)
	}
	return true
}

func (r *Report) parseDialled(v []byte, size int) bool {
	for ; len(v) >= size; v = v[size:] {
		addr, ok := parseAddr(v[:size])
		if !ok {
			return false
		}
		r.Dialled = append(r.Dialled, addr)
	}
	return len(v) == 0
}

// parseAddr takes 4 or 16 bytes. An IPv4 address in the clothes of IPv6 is
// refused: each address has one form.
func parseAddr(v []byte) (netip.Addr, bool) {
	addr, ok := netip.AddrFromSlice(v)
	return addr, ok && !addr.Is4In6()
}

func (r *Report) parseServices(v []byte) bool {
	for ; len(v) >= serviceLen; v = v[serviceLen:] {
		r.Services = append(r.Services, ServiceReport{
			ID:      ServiceID(binary.BigEndian.Uint32(v)),
			Conns:   binary.BigEndian.Uint32(v[4:]),
			Weight:  binary.BigEndian.Uint16(v[8:]),
			Healthy: v[10]&1 != 0,
		})
	}
	return len(v) == 0
}

// parseWork takes the work on the services, which is told of all or of none.
func (r *Report) parseWork(v []byte) bool {
	if len(v) == 0 {
		return true
	}
	if len(v) != workLen*len(r.Services) {
		return false
	}
	for i := range r.Services {
		s, w := &r.Services[i], v[i*workLen:]
		s.InFlight = uint32(min(decodeQuantity(binary.BigEndian.Uint16(w)), math.MaxUint32))
		s.Latency = decodeTime(binary.BigEndian.Uint16(w[2:]), time.Microsecond)
		s.Since = decodeTime(binary.BigEndian.Uint16(w[4:]), time.Millisecond)
	}
	return true
}

func (r *Report) parseNamed(v []byte) bool {
	for len(v) > 0 {
		name := 1 + int(v[0])
		if len(v) < name+namedLen {
			return false
		}
		x := v[name:]
		r.Named = append(r.Named, NamedResource{
			Name:     string(v[1:name]),
			Used:     decodeShare(binary.BigEndian.Uint16(x)),
			Capacity: decodeQuantity(binary.BigEndian.Uint16(x[2:])),
			Age:      decodeTime(binary.BigEndian.Uint16(x[4:]), time.Millisecond),
		})
		v = x[namedLen:]
	}
	return true
}
