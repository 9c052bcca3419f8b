package flowtable

import "unsafe"

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

// equal compares keys without a call or a branch.
func (k *Key) equal(other *Key) bool {
	a, b := k.words(), other.words()
	return (a[0]^b[0])|(a[1]^b[1])|(a[2]^b[2]) == 0
}

// A Class is a group of entries that have the same timeout. What each class
// stands for is the caller's business.
type Class uint8

// Classes is the number of classes: valid ones are 0 to Classes-1.
const Classes = 9

// unused is the class of what is no entry: one on the free list, the end of a ring.
const unused Class = 0xff

// An Entry is what the table remembers of one flow. It fills one cache line and
// holds no pointers.
//
// A *Entry belongs to the shard that returned it and may be used only until the
// shard is unlocked. The caller may read all exported fields, and write all but
// Key and Class.
type Entry struct {
	// Key is the flow's key.
	Key Key

	hash       uint32 // what hashOf says of the key's hash
	next       uint32 // next entry of the bucket's list, or of the free list; 0 ends both
	prev, succ uint32 // neighbours in the ring of the class: touched earlier, touched later
	touched    uint32 // when the entry was last linked, in milliseconds of the caller's clock

	// ISN is the client's initial sequence number.
	ISN uint32
	// Seq is the sequence number that the client is expected to send next.
	Seq uint32
	// Peer is what the flow is bound to.
	Peer uint32
	// Class is the entry's class; Shard.Move changes it.
	Class Class
	// Flags are the caller's.
	Flags uint8
	// NATPort is the port that a translated flow uses towards its server.
	NATPort uint16
	// Server is the plain server that a translated flow goes to, 0 for none.
	Server uint16
	// Waits counts for the caller how often Config.Keep has kept the entry.
	Waits uint16
}

// entrySize is one cache line. The two declarations below do not compile unless
// it is the size of an Entry.
const entrySize = 64

var (
	_ [entrySize - unsafe.Sizeof(Entry{})]struct{}
	_ [unsafe.Sizeof(Entry{}) - entrySize]struct{}
)

// Touched returns the time of the entry's last Insert or effective Move, in
// milliseconds of the caller's clock.
func (e *Entry) Touched() uint32 { return e.touched }
