//go:build !linux

package resource

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// CPUs returns a meter of the processors that this process uses, in CPUs, as the Go
// runtime tells them. It learns of them when it collects garbage; in between they are
// unknown.
func CPUs() Meter { return &cpus{} }

// UsedMemory returns a meter of the memory that the Go runtime has from the system, in
// bytes, of its limit (GOMEMLIMIT). Without a limit it is unknown.
func UsedMemory() Meter { return MeterFunc(usedMemory) }

// BusyDisk is not available on this system: its use is unknown.
func BusyDisk(string) Meter { return unsupported("disks") }

// NetworkRate is not available on this system: its use is unknown.
func NetworkRate(string, float64) Meter { return unsupported("networks") }

// AcceptQueue is not available on this system: its use is unknown.
func AcceptQueue(uint16) Meter { return unsupported("accept queues") }

func unsupported(what string) Meter {
	err := fmt.Errorf("resource: no meter of %s on %s: %w", what, runtime.GOOS, errors.ErrUnsupported)
	return MeterFunc(func(time.Time) (Use, error) { return Use{}, err })
}

type cpus struct{ total, idle float64 }

func (m *cpus) Measure(time.Time) (Use, error) {
	s := []metrics.Sample{{Name: "/cpu/classes/total:cpu-seconds"}, {Name: "/cpu/classes/idle:cpu-seconds"}}
	metrics.Read(s)
	if s[0].Value.Kind() != metrics.KindFloat64 || s[1].Value.Kind() != metrics.KindFloat64 {
		return Use{}, errors.New("resource: the Go runtime does not tell the use of processors")
	}
	total, idle := s[0].Value.Float64(), s[1].Value.Float64()
	all, unused := total-m.total, idle-m.idle
	m.total, m.idle = total, idle
	if all <= 0 || total == all { // no collection since the last sample, or the first one
		return Use{}, errFirst
	}
	n := float64(runtime.GOMAXPROCS(0))
	return Use{Used: n * min(max(1-unused/all, 0), 1), Capacity: n}, nil
}

func usedMemory(time.Time) (Use, error) {
	limit := debug.SetMemoryLimit(-1)
	if limit == math.MaxInt64 {
		return Use{}, errors.New("resource: this process has no limit of memory: set GOMEMLIMIT")
	}
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(s)
	return Use{Used: float64(s[0].Value.Uint64() - s[1].Value.Uint64()), Capacity: float64(limit)}, nil
}
