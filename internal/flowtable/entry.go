package flowtable

import (
	"sync/atomic"
	"unsafe"
)

// A Key identifies a flow. Its fields mean nothing to the table: it compares and
// hashes their 24 bytes.
type Key struct {
	// Client is the client's address, as two numbers; an IPv4 address in its
	// IPv6-mapped form.
	Client [2]uint64
	// ClientPort and Port are the source and destination port.
	ClientPort, Port uint16
	// Service and Addr are indexes of the caller's, for what else tells flows
	// apart: the service, and which of its addresses was dialled.
	Service, Addr uint16
}

// words returns the key as three words.
func (k *Key) words() *[3]uint64 { return (*[unsafe.Sizeof(*k) / 8]uint64)(unsafe.Pointer(k)) }

// equal compares a key with the words of another, which may be changing, without a call or
// a branch.
func (k *Key) equal(w *[3]uint64) bool {
	return (atomic.LoadUint64(&w[0])^k.words()[0])|(atomic.LoadUint64(&w[1])^k.words()[1])|(atomic.LoadUint64(&w[2])^k.words()[2]) == 0
}

// A Class is a group of entries that have the same timeout. What each class
// stands for is the caller's business.
type Class uint8

// Classes is the number of classes: valid ones are 0 to Classes-1.
const Classes = 9

// unused is the class of what is no entry: one on the free list, the end of a ring.
const unused Class = 0x7f

// An Entry is what the table remembers of one flow. It fills one cache line and
// holds no pointers.
//
// A *Entry that a Shard returned may be used until the shard is unlocked. One that
// Table.Entry returned needs no lock, but may be another flow's from one moment to the
// next. Only Status, Binding, Holds and Advance may be called of it. What they read is
// stored atomically, also under the lock; the rest is plain.
type Entry struct {
	// Key is the flow's key.
	Key Key

	hash       uint32 // what hashOf says of the key's hash
	next       uint32 // next entry of the bucket's list, or of the free list; 0 ends both
	prev, succ uint32 // neighbours in the ring of the class: touched earlier, touched later

	// ISN is the client's initial sequence number. The caller may read and write it.
	ISN uint32
	// Server is the plain server that a translated flow goes to, 0 for none, and NATPort
	// the port that it uses there. Both are read only.
	Server, NATPort uint16

	bound  Binding
	status Status
}

// A Status is what changes about a flow together, and is read together.
type Status uint64

// The fields of a status, by their lowest bits.
const (
	classBits      = 0  // 7
	translatedBits = 7  // 1: there is a Server
	flagsBits      = 8  // 8
	waitsBits      = 16 // 16
	touchedBits    = 32 // 32: when the entry was last linked, in milliseconds of the caller's clock
)

// A Start is what a new entry says.
type Start struct {
	Class           Class
	Flags           uint8
	Peer            uint32 // what the flow is bound to
	Server, NATPort uint16 // of a translated flow: its plain server, and the port that it uses there
	ISN, Seq        uint32 // the client's first sequence number, and the one that it is expected to send next
}

// fill lets an unused entry be the key's.
func (e *Entry) fill(k *Key, hash, now uint32, s *Start) {
	e.setKey(k)
	e.hash, e.ISN, e.Server, e.NATPort = hash, s.ISN, s.Server, s.NATPort
	e.setBinding(bind(s.Peer, s.Seq))
	status := Status(s.Class)<<classBits | Status(s.Flags)<<flagsBits | Status(now)<<touchedBits
	if s.Server != 0 {
		status |= 1 << translatedBits
	}
	e.setStatus(status) // last, see Holds
}

// A Binding is what a flow is bound to, and how far its client has got.
type Binding uint64

func bind(peer, seq uint32) Binding { return Binding(peer)<<32 | Binding(seq) }

// Peer returns what the flow is bound to.
func (b Binding) Peer() uint32 { return uint32(b >> 32) }

// Seq returns the sequence number that the client is expected to send next.
func (b Binding) Seq() uint32 { return uint32(b) }

// entrySize is one cache line. The two declarations below do not compile unless
// it is the size of an Entry.
const entrySize = 64

var (
	_ [entrySize - unsafe.Sizeof(Entry{})]struct{}
	_ [unsafe.Sizeof(Entry{}) - entrySize]struct{}
)

// Class returns the class; Shard.Move changes it.
func (s Status) Class() Class { return Class(s >> classBits & 0x7f) }

// Translated reports whether the flow has a Server.
func (s Status) Translated() bool { return s>>translatedBits&1 != 0 }

// Flags returns the caller's flags.
func (s Status) Flags() uint8 { return uint8(s >> flagsBits) }

// Waits returns what SetWaits has set: how often, for the caller, Config.Keep has kept
// the entry.
func (s Status) Waits() uint16 { return uint16(s >> waitsBits) }

// Touched returns the time of the entry's Insert or last effective Move, in milliseconds
// of the caller's clock.
func (s Status) Touched() uint32 { return uint32(s >> touchedBits) }

// Status returns the entry's status.
func (e *Entry) Status() Status { return Status(atomic.LoadUint64((*uint64)(&e.status))) }

func (e *Entry) setStatus(s Status) { atomic.StoreUint64((*uint64)(&e.status), uint64(s)) }

// set changes the bits of the status that are in the mask, shifted to where they are.
func (e *Entry) set(shift int, mask, value Status) {
	if was := e.Status(); was>>shift&mask != value {
		e.setStatus(was&^(mask<<shift) | value<<shift)
	}
}

// touch sets class and time.
func (e *Entry) touch(c Class, now uint32) {
	const kept = 1<<touchedBits - 1 - 0x7f<<classBits
	e.setStatus(e.Status()&kept | Status(c)<<classBits | Status(now)<<touchedBits)
}

// Class is the status's.
func (e *Entry) Class() Class { return e.Status().Class() }

// Flags are the status's.
func (e *Entry) Flags() uint8 { return e.Status().Flags() }

// Waits is the status's.
func (e *Entry) Waits() uint16 { return e.Status().Waits() }

// Touched is the status's.
func (e *Entry) Touched() uint32 { return e.Status().Touched() }

// Mark sets flags.
func (e *Entry) Mark(flags uint8) { e.set(flagsBits, 0xff, Status(e.Flags()|flags)) }

// Unmark takes flags away.
func (e *Entry) Unmark(flags uint8) { e.set(flagsBits, 0xff, Status(e.Flags()&^flags)) }

// SetWaits sets what Waits returns.
func (e *Entry) SetWaits(n uint16) { e.set(waitsBits, 0xffff, Status(n)) }

// Binding returns the entry's binding.
func (e *Entry) Binding() Binding { return Binding(atomic.LoadUint64((*uint64)(&e.bound))) }

func (e *Entry) setBinding(b Binding) { atomic.StoreUint64((*uint64)(&e.bound), uint64(b)) }

// Peer is the binding's.
func (e *Entry) Peer() uint32 { return e.Binding().Peer() }

// Seq is the binding's.
func (e *Entry) Seq() uint32 { return e.Binding().Seq() }

// SetSeq sets what Seq returns.
func (e *Entry) SetSeq(seq uint32) { e.setBinding(bind(e.Peer(), seq)) }

// Advance adds to what Seq returns, if the binding is still was.
func (e *Entry) Advance(was Binding, n uint32) {
	atomic.CompareAndSwapUint64((*uint64)(&e.bound), uint64(was), uint64(bind(was.Peer(), was.Seq()+n)))
}

// Holds reports whether the entry was the key's when it had the status, of an entry in use,
// and the binding. It needs no lock: an entry that becomes another's is unused while it
// changes, and then says something else before or after its key was seen.
func (e *Entry) Holds(k *Key, s Status, bound Binding) bool {
	return k.equal(e.Key.words()) && e.Status() == s && e.Binding() == bound
}

// setKey stores a key where Holds may be reading.
func (e *Entry) setKey(k *Key) {
	to, from := e.Key.words(), k.words()
	for i := range to {
		if to[i] != from[i] {
			atomic.StoreUint64(&to[i], from[i])
		}
	}
}

// copy returns a copy.
func (e *Entry) copy() Entry {
	return Entry{
		Key: e.Key, hash: e.hash, next: e.next, prev: e.prev, succ: e.succ,
		ISN: e.ISN, Server: e.Server, NATPort: e.NATPort, bound: e.Binding(), status: e.status,
	}
}
