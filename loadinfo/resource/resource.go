package resource

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/carom-dpr/carom/internal/beat"
	"github.com/carom-dpr/carom/loadinfo"
)

// The names of the resources that every report has room for, as lb.Resources.
const (
	CPU     = "cpu"
	Memory  = "memory"
	Disk    = "disk"
	Network = "network"
)

// A Use is how much of a resource is used, and how much there is, in one unit.
type Use struct {
	// Used and Capacity are in the resource's unit. A Capacity of 0 or less means that
	// there is nothing to use.
	Used, Capacity float64
}

// A Meter measures a resource.
type Meter interface {
	// Measure returns the use as of now. It is not called by two goroutines at once
	// and may block for as long as reading a file of the kernel takes. An error means
	// that the use is unknown.
	Measure(now time.Time) (Use, error)
}

// MeterFunc makes a Meter of a function.
type MeterFunc func(now time.Time) (Use, error)

// Measure calls the function.
func (f MeterFunc) Measure(now time.Time) (Use, error) { return f(now) }

// A Resource is one that a host may be short of.
type Resource struct {
	// Name is CPU, Memory, Disk, Network, or another of 1 to
	// loadinfo.MaxResourceName bytes of UTF-8, by which all hosts mean the same.
	Name string
	// Unit is that of use and capacity, for people.
	Unit string
	// Meter measures it. Required.
	Meter Meter
	// Model says what the measured use means for the next moments; nil means that
	// it stays as it is. It serves one resource.
	Model Model
}

// A Reading is what is known of a resource.
type Reading struct {
	// Name and Unit are the resource's.
	Name, Unit string
	// Use is that of the last sample.
	Use
	// Forecast is the use now, by the model, and Deviation its standard deviation.
	Forecast, Deviation float64
	// Age is that of the last sample.
	Age time.Duration
	// Err says why nothing is known of it; nil means that the rest holds.
	Err error
}

// Share returns the used share by the forecast, from 0 on, or -1 if it is unknown.
func (r Reading) Share() float64 {
	if r.Err != nil || !(r.Capacity > 0) || math.IsNaN(r.Forecast) {
		return -1
	}
	return max(r.Forecast, 0) / r.Capacity
}

// A Service is what one connection of a service takes, and whether its server
// answers.
type Service struct {
	// Name is the service's name, the same on all hosts.
	Name string
	// Demand is what a connection needs of each resource, by its name and in its unit.
	// It needs nothing of those that are not there.
	Demand map[string]float64
	// Healthy says that the server answers.
	Healthy bool
}

// A Registry holds resources and services. All methods may be called by several
// goroutines.
type Registry struct {
	sampling sync.Mutex // held while meters measure

	mu        sync.Mutex
	resources map[string]*entry
	services  map[string]Service
}

type entry struct {
	Resource
	use Use
	at  time.Time
	err error
}

var errUnsampled = errors.New("resource: not sampled yet")

// NewRegistry returns an empty registry.
func NewRegistry() *Registry {
	return &Registry{resources: map[string]*entry{}, services: map[string]Service{}}
}

// Add takes a resource in, in the place of a former one of the name.
func (r *Registry) Add(x Resource) error {
	switch {
	case len(x.Name) == 0 || len(x.Name) > loadinfo.MaxResourceName || !utf8.ValidString(x.Name):
		return fmt.Errorf("resource: Resource.Name %q: want 1 to %d bytes of UTF-8", x.Name, loadinfo.MaxResourceName)
	case x.Meter == nil:
		return fmt.Errorf("resource: Resource.Meter of %q is nil", x.Name)
	}
	if x.Model == nil {
		x.Model = &LastValue{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.resources[x.Name]; !known && !wellKnown(x.Name) && r.named() >= loadinfo.MaxNamed {
		return fmt.Errorf("resource: %q: a report has room for %d resources by name: remove another", x.Name, loadinfo.MaxNamed)
	}
	r.resources[x.Name] = &entry{Resource: x, err: errUnsampled}
	return nil
}

func wellKnown(name string) bool {
	return name == CPU || name == Memory || name == Disk || name == Network
}

// named counts the resources that are not well known.
func (r *Registry) named() (n int) {
	for name := range r.resources {
		if !wellKnown(name) {
			n++
		}
	}
	return n
}

// Remove forgets a resource.
func (r *Registry) Remove(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.resources, name)
}

// Sample measures all resources, as of now.
func (r *Registry) Sample(now time.Time) {
	r.sampling.Lock()
	defer r.sampling.Unlock()
	for _, e := range r.entries() {
		use, err := e.Meter.Measure(now)
		if err == nil && !(use.Capacity > 0 && use.Used >= 0) { // NaN too
			err = fmt.Errorf("resource: %q: meter says that %v of %v is used", e.Name, use.Used, use.Capacity)
		}
		r.mu.Lock()
		if e.use, e.err = use, err; err == nil {
			e.at = now
			e.Model.Observe(use.Used, now)
		}
		r.mu.Unlock()
	}
}

func (r *Registry) entries() []*entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]*entry, 0, len(r.resources))
	for _, e := range r.resources {
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b *entry) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// Readings returns what is known of all resources at now, in the order of names.
func (r *Registry) Readings(now time.Time) []Reading {
	var list []Reading
	for _, e := range r.entries() {
		r.mu.Lock()
		list = append(list, e.read(now))
		r.mu.Unlock()
	}
	return list
}

func (e *entry) read(now time.Time) Reading {
	x := Reading{Name: e.Name, Unit: e.Unit, Use: e.use, Age: max(now.Sub(e.at), 0), Err: e.err}
	if e.err != nil {
		x.Use, x.Age = Use{}, 0
		return x
	}
	x.Forecast, x.Deviation = e.Model.Forecast(now)
	return x
}

// SetService takes a service in, in the place of a former one of the name.
func (r *Registry) SetService(s Service) error {
	if s.Name == "" {
		return errors.New("resource: Service.Name is empty")
	}
	demand := make(map[string]float64, len(s.Demand))
	for name, d := range s.Demand {
		if !(d >= 0) || math.IsInf(d, 0) {
			return fmt.Errorf("resource: Service.Demand of %q on %q: %v is no amount", s.Name, name, d)
		}
		demand[name] = d
	}
	s.Demand = demand
	r.mu.Lock()
	defer r.mu.Unlock()
	r.services[s.Name] = s
	return nil
}

// RemoveService forgets a service.
func (r *Registry) RemoveService(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.services, name)
}

// Services returns the services in the order of names. Their demands are the
// registry's: do not change them.
func (r *Registry) Services() []Service {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]Service, 0, len(r.services))
	for _, s := range r.services {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b Service) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// LoadFactor returns how near one more connection of the service brings this host to
// its end: the largest demand/(capacity - used) of all resources at now, +Inf where
// nothing is left of one that it needs. Below 1 there is room. ok is false if the
// service or the use of what it needs is unknown.
func (r *Registry) LoadFactor(service string, now time.Time) (factor float64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, ok := r.services[service]
	for name, demand := range s.Demand {
		if demand == 0 {
			continue
		}
		e := r.resources[name]
		if e == nil || e.err != nil {
			return 0, false
		}
		left := e.use.Capacity - max(e.read(now).Forecast, 0)
		if left <= 0 {
			factor = math.Inf(1)
			continue
		}
		factor = max(factor, demand/left)
	}
	return factor, ok
}

// Publish tells the board of all resources, and of the health of the services, as of
// now.
func (r *Registry) Publish(b *loadinfo.Board, now time.Time) error {
	four := loadinfo.Unknown
	var named []loadinfo.NamedResource
	for _, x := range r.Readings(now) {
		share := float32(x.Share())
		switch x.Name {
		case CPU:
			four.CPU = share
		case Memory:
			four.Memory = share
		case Disk:
			four.Disk = share
		case Network:
			four.Network = share
		default:
			named = append(named, loadinfo.NamedResource{Name: x.Name, Used: share, Capacity: uint64(x.Capacity), Age: x.Age})
		}
	}
	b.SetResources(four)
	return b.SetNamed(named, now)
}

// Run samples and publishes once per period, give or take a tenth, until the context
// is done. period 0 means loadinfo.DefaultPeriod. What a meter fails at is logged
// when it begins to.
func (r *Registry) Run(ctx context.Context, b *loadinfo.Board, period time.Duration) error {
	if period <= 0 {
		period = loadinfo.DefaultPeriod
	}
	failing := map[string]bool{}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		now := time.Now()
		r.Sample(now)
		for _, x := range r.Readings(now) {
			failed := x.Err != nil && !errors.Is(x.Err, errFirst)
			if failed && !failing[x.Name] {
				slog.Warn("resource: use is unknown", "name", x.Name, "err", x.Err)
			}
			failing[x.Name] = failed
		}
		if err := r.Publish(b, now); err != nil {
			return err
		}
		timer.Reset(beat.Wait(time.Now(), period-period/10+rand.N(period/5+1)))
	}
}

// errFirst is the answer of meters that measure a change, to their first question.
var errFirst = errors.New("resource: a change is known from the second sample on")
