package header

// Types and codes of ICMP (RFC 792) that a router of flows knows.
const (
	ICMPEchoReply     = 0
	ICMPUnreachable   = 3
	ICMPSourceQuench  = 4
	ICMPRedirect      = 5
	ICMPEcho          = 8
	ICMPTimeExceeded  = 11
	ICMPParamProblem  = 12
	ICMPCodePort      = 3 // of ICMPUnreachable
	ICMPCodeFragNeed  = 4 // of ICMPUnreachable (RFC 1191)
	ICMPCodeTTLExpire = 0 // of ICMPTimeExceeded
)

// Types and codes of ICMPv6 (RFC 4443).
const (
	ICMPv6Unreachable  = 1
	ICMPv6TooBig       = 2
	ICMPv6TimeExceeded = 3
	ICMPv6ParamProblem = 4
	ICMPv6Echo         = 128
	ICMPv6EchoReply    = 129
	ICMPv6CodePort     = 4 // of ICMPv6Unreachable
	ICMPv6CodeHopLimit = 0 // of ICMPv6TimeExceeded
)

// ICMP is an ICMP or ICMPv6 message, at least its first eight bytes.
type ICMP []byte

// Type returns the message's type.
func (h ICMP) Type() uint8 { return h[0] }

// Code returns the message's code.
func (h ICMP) Code() uint8 { return h[1] }

// Checksum returns the checksum field.
func (h ICMP) Checksum() uint16 { return be.Uint16(h[2:]) }

// Rest returns bytes four to seven, whose meaning depends on the type. In an
// ICMPv6 "packet too big" they are the MTU in bytes.
func (h ICMP) Rest() uint32 { return be.Uint32(h[4:]) }

// NextHopMTU returns the MTU, in bytes, that an ICMP "fragmentation needed" gives;
// 0 if the sender predates RFC 1191.
func (h ICMP) NextHopMTU() uint16 { return be.Uint16(h[6:]) }

// Body returns what follows the first eight bytes: in an error, the quoted packet.
func (h ICMP) Body() []byte { return h[ICMPLen:] }

// SetChecksum stores the checksum field.
func (h ICMP) SetChecksum(sum uint16) { be.PutUint16(h[2:], sum) }

// ICMPFields is what [PutICMP] writes.
type ICMPFields struct {
	Type, Code uint8
	Rest       uint32 // bytes four to seven
}

// PutICMP writes the first eight bytes of a message to the front of b. The
// checksum is 0; see [PutChecksum].
func PutICMP(b []byte, f *ICMPFields) {
	h := ICMP(b[:ICMPLen])
	h[0], h[1] = f.Type, f.Code
	h.SetChecksum(0)
	be.PutUint32(h[4:], f.Rest)
}
