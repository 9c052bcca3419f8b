package header

import "fmt"

// A Reason says why a packet is refused. The zero Reason is OK: nothing is wrong.
type Reason uint8

// The reasons.
const (
	// OK: the headers are sound.
	OK Reason = iota
	// Short: the packet ends inside a header, or before the length that its
	// header gives.
	Short
	// BadVersion: neither IPv4 nor IPv6.
	BadVersion
	// BadHeaderLen: the IPv4 header length is below 20 bytes.
	BadHeaderLen
	// BadTotalLen: the IPv4 total length is less than the header, or 0.
	BadTotalLen
	// BadOption: an IPv4 option has a length of 0 or 1 or leaves the header.
	BadOption
	// SourceRoute: the packet carries an IPv4 loose or strict source route (LSRR,
	// SSRR), which lets a stranger choose the path (RFC 7126, section 4.3).
	SourceRoute
	// BadExtension: an IPv6 extension header where none may be: hop-by-hop
	// options that are not first, or a fragment header inside a fragment.
	BadExtension
	// ExtLimit: more IPv6 extension headers, in number or in bytes, than honest
	// packets have; see MaxExtHeaders and MaxExtBytes.
	ExtLimit
	// BadFragment: a fragment that ends beyond 65,535 bytes, is empty, is not the
	// last but no multiple of eight bytes long, or overwrites a TCP header
	// (RFC 1858, section 4.2).
	BadFragment
	// FirstFragmentShort: a first fragment that does not hold all headers, so that
	// nobody can tell its flow (RFC 7112; RFC 1858, section 4.1).
	FirstFragmentShort
	// BadTCPOffset: the TCP data offset is below 20 bytes or leaves the packet.
	BadTCPOffset
	// BadUDPLen: the UDP length is below eight bytes or leaves the packet.
	BadUDPLen

	// NumReasons is the number of reasons, for arrays of counters.
	NumReasons
)

var reasonNames = [NumReasons]string{
	OK:                 "ok",
	Short:              "short",
	BadVersion:         "bad-version",
	BadHeaderLen:       "bad-header-length",
	BadTotalLen:        "bad-total-length",
	BadOption:          "bad-option",
	SourceRoute:        "source-route",
	BadExtension:       "bad-extension-header",
	ExtLimit:           "too-many-extension-headers",
	BadFragment:        "bad-fragment",
	FirstFragmentShort: "short-first-fragment",
	BadTCPOffset:       "bad-tcp-data-offset",
	BadUDPLen:          "bad-udp-length",
}

// String returns the reason in lower-case words joined by hyphens, as labels of
// metrics are.
func (r Reason) String() string {
	if r < NumReasons {
		return reasonNames[r]
	}
	return fmt.Sprintf("reason %d", uint8(r))
}
