package loadinfo

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/carom-dpr/carom/lb"
)

// A Report is what a host says of itself at one moment. It holds no time; its
// receiver knows when it came.
type Report struct {
	// ID names the host, in 1 to MaxID bytes of UTF-8.
	ID string
	// Boot orders the lives of one host: it is higher after each restart. It is
	// never compared with the clock of another host.
	Boot uint64
	// Seq orders the reports of one life.
	Seq uint64
	// Weight is the capacity of the host relative to others. It informs; what
	// counts is the weight of each service.
	Weight uint16
	// State is Up, Joining or Draining.
	State State
	// Node is where peers reach the host's tunnel. The zero AddrPort says nothing.
	Node netip.AddrPort
	// Dialled lists the addresses at which clients dial the host: at most
	// MaxDialled.
	Dialled []netip.Addr
	// Period is the time until the sender's next report, give or take a tenth, if
	// that comes; receivers judge its silence by it. 0 means the receiver's own
	// period.
	Period time.Duration
	// Resources is the used share of the host's resources.
	Resources lb.Resources
	// Named lists further resources, each once: at most MaxNamed.
	Named []NamedResource
	// Services lists the services that the host serves, each once: at most
	// MaxServices.
	Services []ServiceReport
}

// A ServiceReport is what a host says of one of its services.
type ServiceReport struct {
	// ID is the hash of the service's name.
	ID ServiceID
	// Conns is the number of established connections that the host serves.
	Conns uint32
	// Weight is the host's relative capacity for this service; 0 drains it.
	Weight uint16
	// Healthy reports whether the server answers.
	Healthy bool
	// InFlight is the number of requests that the server is working on.
	InFlight uint32
	// Latency is the median time of late for a request. 0 means unknown.
	Latency time.Duration
	// Since is how long the host has been taking connections of the service
	// without a break. 0 means unknown.
	Since time.Duration
}

// A NamedResource is what a host says of one of its resources beyond the four of
// lb.Resources, such as an accept queue or a licence.
type NamedResource struct {
	// Name says what it is, in 1 to MaxResourceName bytes of UTF-8. All hosts of a
	// cluster mean the same resource and unit by it.
	Name string
	// Used is the used share of the capacity, from 0 to 1; negative means unknown.
	Used float32
	// Capacity is the capacity in the resource's unit; 0 means unknown.
	Capacity uint64
	// Age is the age of the sample when the report was made.
	Age time.Duration
}

// The bounds of a report. Together they keep it below MaxReport.
const (
	// MaxID is the longest ID, in bytes: a DNS label, which has up to 63, fits.
	MaxID = 64
	// MaxServices is the number of services of one host.
	MaxServices = 32
	// MaxNamed is the number of resources by name.
	MaxNamed = 8
	// MaxResourceName is the longest name of a resource, in bytes.
	MaxResourceName = 16
	// MaxDialled is the number of addresses that a host is dialled at.
	MaxDialled = 16
	// MaxReport is the longest encoded report, in bytes: it fits the smallest MTU
	// of IPv6, 1280 bytes, with its headers and to spare.
	MaxReport = 1200
)

// A ServiceID is the compact name of a service: the 32-bit FNV-1a hash of its
// name. Two names of one host that collide are an error when they are set.
type ServiceID uint32

// HashService returns the ID of the named service.
func HashService(name string) ServiceID {
	h := fnv.New32a()
	h.Write([]byte(name))
	return ServiceID(h.Sum32())
}

// State is the condition of a host. A host reports the first three of itself; the
// others are what a board concludes from silence.
type State uint8

const (
	// Up: the host takes connections.
	Up State = iota
	// Joining: the host can be reached but does not serve yet.
	Joining
	// Draining: the host finishes the connections that it has.
	Draining
	// Stale: the last reports are missing. The host gets no new connections.
	Stale
	// Down: the host has been silent so long that it counts as dead.
	Down
)

// String returns the state's name in lower case.
func (s State) String() string {
	if s > Down {
		return fmt.Sprintf("state %d", uint8(s))
	}
	return [...]string{"up", "joining", "draining", "stale", "down"}[s]
}

// Unknown is the value of Resources of which nothing is known.
var Unknown = lb.Resources{CPU: -1, Memory: -1, Disk: -1, Network: -1}

// Validate returns an error that names the field that cannot be sent.
func (r *Report) Validate() error {
	switch {
	case len(r.ID) == 0 || len(r.ID) > MaxID || !utf8.ValidString(r.ID):
		return fmt.Errorf("loadinfo: ID %q: want 1 to %d bytes of UTF-8", r.ID, MaxID)
	case r.State > Draining:
		return fmt.Errorf("loadinfo: State %v: a host reports up, joining or draining", r.State)
	case r.Node.Addr().Zone() != "":
		return fmt.Errorf("loadinfo: Node %v: a zone means nothing to other hosts", r.Node)
	case len(r.Dialled) > MaxDialled:
		return fmt.Errorf("loadinfo: Dialled: %d addresses, at most %d fit", len(r.Dialled), MaxDialled)
	case len(r.Services) > MaxServices:
		return fmt.Errorf("loadinfo: Services: %d services, at most %d fit", len(r.Services), MaxServices)
	case len(r.Named) > MaxNamed:
		return fmt.Errorf("loadinfo: Named: %d resources, at most %d fit", len(r.Named), MaxNamed)
	}
	for _, a := range r.Dialled {
		if !a.IsValid() || a.Zone() != "" {
			return fmt.Errorf("loadinfo: Dialled: %q is not an address that other hosts understand", a)
		}
	}
	for i := range r.Services {
		if id := r.Services[i].ID; r.service(id) != &r.Services[i] {
			return fmt.Errorf("loadinfo: Services: %#x is there twice", uint32(id))
		}
	}
	return validNamed(r.Named)
}

func validNamed(list []NamedResource) error {
	for i, x := range list {
		if len(x.Name) == 0 || len(x.Name) > MaxResourceName || !utf8.ValidString(x.Name) {
			return fmt.Errorf("loadinfo: Named: %q: want 1 to %d bytes of UTF-8", x.Name, MaxResourceName)
		}
		if slices.ContainsFunc(list[:i], func(y NamedResource) bool { return y.Name == x.Name }) {
			return fmt.Errorf("loadinfo: Named: %q is there twice", x.Name)
		}
	}
	return nil
}

// service returns what the report says of one service, or nil.
func (r *Report) service(id ServiceID) *ServiceReport {
	for i := range r.Services {
		if r.Services[i].ID == id {
			return &r.Services[i]
		}
	}
	return nil
}

// A share of a resource travels as 16 bits: 0 is none, 65534 all, 65535 unknown.
const (
	fullShare    = 65534
	unknownShare = 65535
)

func encodeShare(x float32) uint16 {
	if !(x >= 0) { // NaN too
		return unknownShare
	}
	return uint16(math.Round(float64(min(x, 1)) * fullShare))
}

func decodeShare(n uint16) float32 {
	if n == unknownShare {
		return -1
	}
	return float32(n) / fullShare
}

// A quantity travels as 16 bits: 5 of exponent, 11 of mantissa. It is exact up to
// 2047 and right to one part in 2000 up to 4e12, beyond which it is cut.
const mantissa = 11

func encodeQuantity(x uint64) uint16 {
	exp := max(bits.Len64(x)-mantissa, 0)
	if exp > 0 {
		if x += 1 << (exp - 1); bits.Len64(x)-mantissa != exp { // rounded up to a power of two
			exp++
		}
	}
	if exp >= 32 {
		return math.MaxUint16
	}
	return uint16(exp<<mantissa) | uint16(x>>exp)
}

func decodeQuantity(n uint16) uint64 {
	return uint64(n&(1<<mantissa-1)) << (n >> mantissa)
}

// encodeTime encodes a time in units; what is not 0 does not become it.
func encodeTime(d, unit time.Duration) uint16 {
	if d <= 0 {
		return 0
	}
	return encodeQuantity(max(uint64((d+unit/2)/unit), 1))
}

// decodeTime is the reverse. The largest quantity of milliseconds is a Duration.
func decodeTime(n uint16, unit time.Duration) time.Duration {
	return time.Duration(decodeQuantity(n)) * unit
}
