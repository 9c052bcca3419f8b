package lb

import (
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// oddities are values that nobody means, for a field of that kind.
func oddities(v reflect.Value) (list []any) {
	switch {
	case v.CanFloat():
		for _, x := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, math.MaxFloat64, math.SmallestNonzeroFloat64} {
			list = append(list, reflect.ValueOf(x).Convert(v.Type()).Interface())
		}
	case v.CanInt():
		for _, x := range []int64{math.MinInt64, -1, 1, math.MaxInt64} {
			list = append(list, reflect.ValueOf(x).Convert(v.Type()).Interface())
		}
	case v.CanUint():
		list = append(list, reflect.ValueOf(uint64(math.MaxUint64)).Convert(v.Type()).Interface())
	}
	return list
}

// eachField calls f for each exported number of the struct, those of its structs too.
func eachField(v reflect.Value, name string, f func(name string, field reflect.Value)) {
	for i := range v.NumField() {
		field, label := v.Field(i), name+"."+v.Type().Field(i).Name
		switch {
		case !v.Type().Field(i).IsExported():
		case field.Kind() == reflect.Struct:
			eachField(field, label, f)
		default:
			f(label, field)
		}
	}
}

// Whatever the fields of a policy hold, it chooses a host that may be chosen. Those of
// Parse are within range; a program may set what it likes.
func TestOddParameters(t *testing.T) {
	for _, name := range append(Names(), "slow start") {
		given, err := Parse(name)
		if name == "slow start" {
			given, err = &SlowStart{Policy: LeastConnections{}}, nil
		}
		require.NoError(t, err)
		of := reflect.Indirect(reflect.ValueOf(given)).Type()
		try := func(set func(reflect.Value)) {
			p := reflect.New(of)
			p.Elem().Set(reflect.Indirect(reflect.ValueOf(given)))
			set(p.Elem())
			requireChooses(t, p.Interface().(Policy))
		}
		eachField(reflect.New(of).Elem(), of.Name(), func(label string, field reflect.Value) {
			for _, odd := range oddities(field) {
				t.Run(label, func(t *testing.T) {
					try(func(v reflect.Value) {
						eachField(v, of.Name(), func(l string, f reflect.Value) {
							if l == label {
								f.Set(reflect.ValueOf(odd))
							}
						})
					})
				})
			}
		})
	}
}

func requireChooses(t *testing.T, p Policy) {
	t.Helper()
	for _, n := range []int{0, 1, 3} {
		s := &Snapshot{Self: n - 1, Taken: time.Second}
		for i := range n {
			s.Hosts = append(s.Hosts, Host{
				ID: string(rune('a' + i)), Weight: uint16(1 + i), Conns: uint32(3 * i), InFlight: uint32(i), Load: Resources{CPU: 0.5},
				Latency: time.Duration(i) * time.Millisecond, Since: time.Duration(i+1) * time.Second, Age: time.Second,
			})
		}
		q := p.Build(s)
		d := draws(n)
		for range 100 {
			c := q.Pick(Flow{d.next(), d.next()}, 2*time.Second)
			require.True(t, c.Do != Send || c.Host >= 0 && c.Host < n && c.Host != s.Self, "%+v of %d", c, n)
		}
	}
}
